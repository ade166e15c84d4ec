"""The course of one pass over a flow: step numbers, the loop of its tasks, and which tasks knew of a failure."""
