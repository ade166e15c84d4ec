"""Flows: declaring them, executing and replaying them, and the worker that does so."""
