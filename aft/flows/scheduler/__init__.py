"""Brings the steps that a flow's code requests to their outcomes: one at a time, or several on a thread each."""
