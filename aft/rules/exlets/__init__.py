"""Exlets, the responses to exceptions: their primitives, and the plans that carry them out."""
