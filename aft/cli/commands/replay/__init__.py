"""``aft replay``: the command, and how it reports."""
