"""From settings to the concrete classes behind the ports."""

from __future__ import annotations

from aft.brokers.base import Broker
from aft.config import Settings
from aft.errors import ConfigError
from aft.recovery.levels import Ladder
from aft.store import Store


def make_ladder(settings: Settings) -> Ladder:
    """Read the default ladder."""
    try:
        return Ladder.parse(settings.levels)
    except ValueError as error:
        raise ConfigError(f"AFT_LEVELS: {error}") from None


def make_broker(settings: Settings, store: Store) -> Broker:
    """Make the broker that the settings name; connects to nothing."""
    # Imported here: a process that uses one broker does not pay for loading the other.
    if settings.broker_url == "embedded":
        from aft.brokers.embedded import EmbeddedBroker

        return EmbeddedBroker(store)
    from aft.brokers.rabbitmq import RabbitBroker

    return RabbitBroker(settings.broker_url, queue_type=settings.queue_type, passive=settings.declare_passively)
