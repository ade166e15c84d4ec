"""``aft replay``: plays an example's scenarios with real worker processes, draws each run, and checks its tables."""
