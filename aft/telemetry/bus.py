"""Handing events to whoever subscribes, and spelling them for logs and for others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

from aft.errors import is_interrupt
from aft.redaction import redact
from aft.telemetry.events import Event

logger = logging.getLogger("aft")

_fields: dict[type[Event], tuple[str, ...]] = {}

Subscriber = Callable[[Event], None]
#: Tells whether a subscriber wants to be told now; never raises.
Listens = Callable[[], bool]


class Telemetry:
    """Hands each event to every subscriber; thread-safe. What happens often is not even made when nobody ``hears``."""

    def __init__(self) -> None:
        self._subscribers: tuple[tuple[Subscriber, Listens], ...] = ()

    def subscribe(self, subscriber: Subscriber, listens: Listens | None = None) -> Callable[[], None]:
        """Add a subscriber; call what is returned to take it away again. It is told only while it ``listens``."""
        mine = (subscriber, listens or _always)
        self._subscribers = (*self._subscribers, mine)

        def unsubscribe() -> None:
            self._subscribers = tuple(other for other in self._subscribers if other is not mine)

        return unsubscribe

    @property
    def hears(self) -> bool:
        """Whether there is anybody to tell."""
        return any(listens() for _, listens in self._subscribers)

    def emit(self, event: Event) -> None:
        """Tell everybody who listens; never raises."""
        for subscriber, listens in self._subscribers:
            try:
                if listens():
                    subscriber(event)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                logger.exception("telemetry subscriber failed: event=%s", event.name)


def _always() -> bool:
    return True


def log_event(event: Event) -> None:
    """Write an event to the log ``aft``: what happened, then its fields. Subscribe this."""
    if logger.isEnabledFor(event.level):
        told = ((name, getattr(event, name)) for name in _names(type(event)))
        shown = " ".join(f"{name}={_one_line(value)}" for name, value in told if value is not None)
        logger.log(event.level, "%s: %s", event.text, shown)


def encode_event(event: Event) -> bytes:
    """Spell an event for others, as JSON: which run something happened to, and nothing else.

    On PostgreSQL whoever may connect can listen. Those who may know more look at the rows.
    """
    run = getattr(event, "run", None)
    return json.dumps({} if run is None else {"run": run}).encode()


def _names(kind: type[Event]) -> tuple[str, ...]:
    """The fields of a kind of event; asked for with each event, so they are kept."""
    if (known := _fields.get(kind)) is None:
        known = _fields[kind] = tuple(field.name for field in fields(kind))
    return known


def _one_line(value: Any) -> str:
    text = redact(str(_plain(value)))
    return text if text.isprintable() else repr(text)


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
