"""Wakes runs: for inbox items, for children that ended, and as a fallback for runs that nothing else wakes."""
