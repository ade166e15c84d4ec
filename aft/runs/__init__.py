"""Runs: their states, their ownership, their records, and the orders that others may give them."""
