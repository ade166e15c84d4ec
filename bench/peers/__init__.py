"""The peers, each in its own environment, set up by its own documentation for work that survives SIGKILL."""
