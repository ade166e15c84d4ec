"""The database: tables, transactions, outbox and leases. It is the truth; messages are only wake-ups."""

from aft.store.engine import Store

__all__ = ["Store"]
