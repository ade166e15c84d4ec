"""Every queue and exchange name, as pure functions of the namespace.

Names carry the topology's version: a queue with changed arguments gets a new name and never meets an old one.

A wake-up is routed by its run's ``flow@version``, its *key*. An *address* is a queue and a key in one text; that is how
the outbox and the embedded broker's tables spell it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import timedelta

from aft import durations

#: Raised whenever the arguments of any queue change.
TOPOLOGY = "v2"

#: A delay queue for each declared wait, up to this many in a namespace; other waits are the timer's.
MOST_DELAYS = 32

#: Bytes of a key. RabbitMQ takes 255 as a routing key; an address of aft's longest queue name must fit into a column.
MOST_KEY = 150
#: Hexadecimal digits that stand for what does not fit into a name.
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
    """The queue that every raised fault goes to."""
    return f"{namespace}.faults.{TOPOLOGY}"


def resume(namespace: str) -> str:
    """The queue of runs that shall go on."""
    return f"{namespace}.resume.{TOPOLOGY}"


def compensate(namespace: str) -> str:
    """The queue of runs whose failure is final, or that somebody gave an order to: not behind all that shall go on."""
    return f"{namespace}.compensate.{TOPOLOGY}"


def delay(namespace: str, wait: timedelta) -> str:
    """The queue in which messages wait for so long before they turn up in the resume queue."""
    return f"{namespace}.delay.{durations.spell(wait)}.{TOPOLOGY}"


def undeliverable(namespace: str) -> str:
    """Where the broker puts a message that it delivered too often."""
    return f"{namespace}.undeliverable.{TOPOLOGY}"


def express(namespace: str) -> str:
    """The channel of live events; memory only."""
    return f"{namespace}.express.{TOPOLOGY}"


def shared(queue: str) -> str:
    """The exchange that takes wake-ups of this queue for which no pool of workers is bound, into the queue itself."""
    return _within(queue, "shared")


def pool(queue: str, keys: Iterable[str]) -> str:
    """The queue of all workers with exactly these keys, for what is addressed to one of them at ``queue``."""
    return _within(queue, _digest("\n".join(sorted(keys))))


def key(flow: str, version: int) -> str:
    """The routing key of a run's wake-ups: ``flow@version``, its end replaced by a digest if it is too long."""
    spelled = f"{flow}@{version}"
    data = spelled.encode()
    if len(data) <= MOST_KEY:
        return spelled
    return f"{data[: MOST_KEY - DIGITS - 1].decode('utf-8', 'ignore')}~{_digest(spelled)}"


def address(queue: str, key: str) -> str:
    """Spell a queue and a key in one text; without a key it is the queue's name."""
    return f"{queue}/{key}" if key else queue


def split(address: str) -> tuple[str, str]:
    """Read an address: the queue, and the key or an empty text. A queue's name holds no slash, a key may."""
    queue, _, key = address.partition("/")
    return queue, key


def resume_run(namespace: str, flow: str, version: int) -> str:
    """The address of wake-ups for a run of this flow."""
    return address(resume(namespace), key(flow, version))


def order_run(namespace: str, flow: str, version: int) -> str:
    """The address of wake-ups about orders for a run of this flow."""
    return address(compensate(namespace), key(flow, version))


def _within(queue: str, part: str) -> str:
    """Put a part before the topology's version."""
    return f"{queue.removesuffix(TOPOLOGY)}{part}.{TOPOLOGY}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
