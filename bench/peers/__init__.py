"""The others, each set up as its own documentation says for work that survives SIGKILL; each in its own environment."""
