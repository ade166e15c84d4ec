"""Ripple-down rules: trees of conditions, the choice for a case, and previews of what a new rule changes."""
