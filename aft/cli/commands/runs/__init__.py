"""``aft runs``: list, start, follow and steer runs."""
