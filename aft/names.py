"""Every queue and exchange name, as pure functions of the namespace.

Names carry the topology's version: a queue with changed arguments gets a new name and never meets an old one.
"""

from __future__ import annotations

import re
from datetime import timedelta

from aft import durations

#: Raised whenever the arguments of any queue change.
TOPOLOGY = "v1"

#: A delay queue for each declared wait, up to this many in a namespace; other waits are the timer's.
MOST_DELAYS = 32

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
    """The queue of runs whose failure is final."""
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
