"""Compensation: which undo belongs to which activity, and the stack of owed undos."""
