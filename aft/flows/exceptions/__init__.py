"""Exceptions as stored data: captured into a fault, and rebuilt from it in another process."""
