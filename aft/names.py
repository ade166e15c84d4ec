"""Every queue and exchange name, as pure functions of the namespace.

Names carry the topology's version: a queue with changed arguments gets a new name and never meets an old one.
A wake-up is routed by its run's ``flow@version``, its *key*. An *address* is a queue and a key in one text, as the
outbox and the embedded broker's tables store it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import timedelta

from aft import durations

#: Raised whenever the arguments of any queue change.
TOPOLOGY = "v2"

#: A delay queue for each declared wait, up to this many in a namespace; other waits are left to the timer.
MOST_DELAYS = 32

#: Bytes of a key. RabbitMQ takes 255 as a routing key; an address of aft's longest queue name must fit into a column.
MOST_KEY = 150
#: Bytes of a queue's name, and of a key, that brokers take.
MOST_NAME = 255
#: Hexadecimal digits of a digest that replaces what does not fit into a name.
DIGITS = 16

_NAMESPACE = re.compile(r"[a-z][a-z0-9_-]{0,39}")


def check_namespace(namespace: str) -> str:
    """Return the namespace if it may stand in a queue name, else raise ValueError."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"{namespace!r} is not a namespace; use lower-case letters, digits, '-' and '_', "
            "beginning with a letter, 40 characters at the most"
        )
    return namespace


def faults(namespace: str) -> str:
    """Return the queue that every raised fault is published to."""
    return f"{namespace}.faults.{TOPOLOGY}"


def resume(namespace: str) -> str:
    """Return the queue of wake-ups for runs that go on."""
    return f"{namespace}.resume.{TOPOLOGY}"


def compensate(namespace: str) -> str:
    """Return the queue of wake-ups for final failures and orders, which do not wait behind those of ``resume``."""
    return f"{namespace}.compensate.{TOPOLOGY}"


def delay(namespace: str, wait: timedelta) -> str:
    """Return the queue in which messages wait for this long before they are moved to the resume queue."""
    return f"{namespace}.delay.{durations.format(wait)}.{TOPOLOGY}"


def undeliverable(namespace: str) -> str:
    """Return the queue of messages that the broker delivered too often."""
    return f"{namespace}.undeliverable.{TOPOLOGY}"


def live_events(namespace: str) -> str:
    """Return the channel of live events; memory only."""
    return f"{namespace}.express.{TOPOLOGY}"


def shared(queue: str) -> str:
    """Return the exchange that takes wake-ups for which no pool of workers is bound, into the queue itself."""
    return _within(queue, "shared")


def pool(queue: str, keys: Iterable[str]) -> str:
    """Return the queue of all workers with exactly these keys, for wake-ups at ``queue`` with one of them."""
    return _within(queue, _digest("\n".join(sorted(keys))))


def key(flow: str, version: int) -> str:
    """Return the routing key of a run's wake-ups: ``flow@version``, its end replaced by a digest if it is too long."""
    formatted = f"{flow}@{version}"
    data = formatted.encode()
    if len(data) <= MOST_KEY:
        return formatted
    return f"{data[: MOST_KEY - DIGITS - 1].decode('utf-8', 'ignore')}~{_digest(formatted)}"


def address(queue: str, key: str) -> str:
    """Return a queue and a key in one text; without a key it is the queue's name."""
    return f"{queue}/{key}" if key else queue


def split(address: str) -> tuple[str, str]:
    """Split an address into the queue, and the key or an empty text. A queue's name holds no slash, a key may."""
    queue, _, key = address.partition("/")
    return queue, key


def is_too_long(address: str) -> bool:
    """Return whether no broker takes this address: its queue's name or its key has too many bytes."""
    return any(len(part.encode()) > MOST_NAME for part in split(address))


def resume_run(namespace: str, flow: str, version: int) -> str:
    """Return the address of wake-ups for a run of this flow."""
    return address(resume(namespace), key(flow, version))


def order_run(namespace: str, flow: str, version: int) -> str:
    """Return the address of wake-ups about orders for a run of this flow."""
    return address(compensate(namespace), key(flow, version))


def _within(queue: str, part: str) -> str:
    """Insert a part before the topology's version."""
    return f"{queue.removesuffix(TOPOLOGY)}{part}.{TOPOLOGY}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
