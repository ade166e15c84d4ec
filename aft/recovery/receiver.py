"""Receives messages from some queues of the broker; closes its consumer when they cannot be handled.

Who may run at the same time: one thread receives; others interrupt it, or close the consumer under it
(``recovery.lease_guard``). A crash leaves nothing behind: the broker redelivers what is not acknowledged, as it does
when the consumer is closed. Messages that a broker has lost are found in the database, by timer and sweeper.
"""

from __future__ import annotations

from collections.abc import Callable

from aft.brokers.base import Consumer
from aft.errors import BrokerError, Unroutable


class Receiver:
    """Gives a consumer to what receives messages. ``use`` belongs to one thread; all else is thread-safe."""

    def __init__(self, begin: Callable[[], Consumer], declare: Callable[[], object]) -> None:
        """``begin`` begins to consume; ``declare`` declares the queues again."""
        self._begin = begin
        self._declare = declare
        self._consumer: Consumer | None = None

    def use(self, receive: Callable[[Consumer], None]) -> None:
        """Call ``receive`` with the consumer, begun if there is none; if it raises, the next call begins another."""
        consumer = self._consumer
        try:
            if consumer is None:
                consumer = self._consumer = self._begin()
            receive(consumer)
        except Unroutable:
            # The broker has lost its queues: wiped, or a new node.
            self.stop_consuming()
            self._declare()
        except BrokerError:
            if self._consumer is consumer:
                raise  # it connects again by itself, and goes on with what it has begun
            # Otherwise the lease guard has closed it meanwhile.
        except Exception:
            self.stop_consuming()
            raise

    def interrupt(self) -> None:
        """Make a receive that waits for messages return."""
        consumer = self._consumer
        if consumer is not None:
            consumer.interrupt()

    def stop_consuming(self, last: Callable[[Consumer], None] | None = None) -> None:
        """Close the consumer until it is used again, so that unacknowledged messages are redelivered, also to others.

        ``last`` is called with it before.
        """
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            if last is not None:
                last(consumer)
            consumer.close()
