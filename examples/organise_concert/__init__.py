"""Organising a concert: the example of the paper that aft's rules are taken from.

Importing this package declares the flow, so ``aft dispatcher examples.organise_concert`` executes its runs.
"""

from .flow import organise_concert

__all__ = ["organise_concert"]
