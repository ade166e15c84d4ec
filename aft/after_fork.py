"""Notifies objects in a forked child that they were inherited from the parent.

A lock that a thread of the parent held during the fork stays locked in the child, for ever: the thread is not copied.
Connections are copied, and belong to the parent. So objects that have either, and may be used in a child, are notified
there; each starts from a fresh state, or is of no use there any more.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object that a child inherits from its parent."""

    def forget_in_child(self) -> None:
        """Drop what belongs to the parent. Called in the child, before anything else runs there."""
        ...


#: Objects that a child keeps alive: collecting them could end what is the parent's, such as a database session.
inherited: list[object] = []
_told: WeakSet[ForkAware] = WeakSet()


def register(one: ForkAware) -> None:
    """Register an object to be notified in each child of this process, as long as it exists."""
    _told.add(one)


def _forget_all() -> None:
    for one in list(_told):
        one.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
