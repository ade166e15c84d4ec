"""Applies the orders of people, parents and exlets to a run, and interrupts its steps."""
