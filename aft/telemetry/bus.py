"""Delivers events to subscribers, and formats them for logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

from aft.errors import is_interrupt
from aft.security.redaction import redact
from aft.telemetry.events import Event

logger = logging.getLogger("aft")

_fields: dict[type[Event], tuple[str, ...]] = {}

Subscriber = Callable[[Event], None]


class Telemetry:
    """Delivers each event to every subscriber; thread-safe. Frequent events are not made without subscribers."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Add a subscriber; call what is returned to remove it again."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(other for other in self._subscribers if other is not subscriber)

        return unsubscribe

    @property
    def has_subscribers(self) -> bool:
        """Whether there is any subscriber."""
        return bool(self._subscribers)

    def emit(self, event: Event) -> None:
        """Deliver an event to every subscriber; raises nothing but Ctrl-C."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                logger.exception("telemetry subscriber failed: event=%s", event.name)


def log_event(event: Event) -> None:
    """Write an event to the log ``aft``: what happened, then its fields. Subscribe this."""
    if logger.isEnabledFor(event.level):
        fields = ((name, getattr(event, name)) for name in _names(type(event)))
        shown = " ".join(f"{name}={_one_line(value)}" for name, value in fields if value is not None)
        logger.log(event.level, "%s: %s", event.text, shown)


def _names(kind: type[Event]) -> tuple[str, ...]:
    """Return the fields of an event class; cached, because each event needs them."""
    if (known := _fields.get(kind)) is None:
        known = _fields[kind] = tuple(field.name for field in fields(kind))
    return known


def _one_line(value: Any) -> str:
    text = redact(str(_seconds(value)))
    return text if text.isprintable() else repr(text)


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
