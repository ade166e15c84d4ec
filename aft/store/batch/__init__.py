"""Frequent statements that bypass SQLAlchemy: shared commits and prepared queries."""
