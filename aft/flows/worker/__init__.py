"""The worker: claims runs that may go on, and executes them on its threads."""
