"""Rules and exlets as TOML files: read, checked and written."""
