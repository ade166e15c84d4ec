"""Compensation: which undo belongs to which activity, the stack of owed undos, and unwinding it."""
