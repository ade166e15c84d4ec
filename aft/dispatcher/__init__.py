"""The dispatcher: consumes faults, decides about each, and wakes or parks its run."""
