"""The schema's history, run by alembic through ``aft db upgrade``."""
