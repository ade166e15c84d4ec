"""One pass of a flow's code over its journal: recorded outcomes are returned, new steps are executed."""
