"""Runs: their states, who may change them, and what others may ask of them."""
