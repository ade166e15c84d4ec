"""The tables that belong to a run, one module for the SQL of each."""
