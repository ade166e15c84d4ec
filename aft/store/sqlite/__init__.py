"""SQLite only: its connection, the queue of its writers, forks, and the files beside it."""
