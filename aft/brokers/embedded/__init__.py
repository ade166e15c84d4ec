"""The embedded broker: queues as rows of aft's own database, PostgreSQL or SQLite."""

from aft.brokers.embedded.broker import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
