"""Compensation: the compensators of activities, and the stack of owed frames."""
