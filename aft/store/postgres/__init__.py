"""PostgreSQL only: dedicated connections, transport security, statements by libpq, and times out of Python's range."""
