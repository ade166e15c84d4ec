"""The implementations by name, so that a process of its own can be told which one to use."""

from __future__ import annotations

from aft.brokers.base import Broker
from aft.brokers.embedded import EmbeddedBroker
from aft.brokers.rabbitmq import RabbitBroker
from aft.store import Store

#: Seconds after which a killed consumer's messages come back from the embedded broker.
VISIBILITY = 2.0


def make_broker(kind: str, url: str, *, timeout: float = 10.0) -> Broker:
    """Make a broker of an implementation; an embedded one on a database that is migrated."""
    match kind:
        case "rabbitmq":
            return RabbitBroker(url, timeout=timeout)
        case "rabbitmq-classic":
            return RabbitBroker(url, queue_type="classic", timeout=timeout)
        case "embedded-sqlite" | "embedded-postgresql":
            return StoreOwningBroker(url)
    raise ValueError(f"no broker of kind {kind!r}")


class StoreOwningBroker(EmbeddedBroker):
    """An embedded broker that closes its store with itself: the suite knows only the port."""

    def __init__(self, url: str) -> None:
        self._own = Store(url)
        super().__init__(self._own, visibility=VISIBILITY)

    def close(self) -> None:
        super().close()
        self._own.close()
