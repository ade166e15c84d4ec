"""Ownership of runs: claims, the owner's fenced writes, and rescue from dead workers."""
