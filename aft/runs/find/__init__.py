"""Finds runs and failures: filters, the text that people write for them, and groups of failures."""
