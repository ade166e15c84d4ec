"""Flows that are run at certain times: their calendar, their rows, and firing what is due."""
