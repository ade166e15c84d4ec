"""One owned run in memory: its records, its step states, and the writes that release it."""
