"""One step, executed and recorded: an activity, a wait, a child, a pivot, or the undo of one of them."""
