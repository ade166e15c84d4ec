"""What a child after a fork must not share with its parent.

A lock that a thread of the parent held in that moment stays locked in the child, for ever: the thread did not come
along. Connections came along, and are the parent's. So whoever has such things, and may be used in a child, is told
there that it is in one; it begins afresh, or is of no use there any more.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """One that a child gets from its parent."""

    def forget_in_child(self) -> None:
        """Take nothing for one's own that is the parent's. Called in the child, before anything else goes on there."""
        ...


#: What a child keeps: to collect it could end what is the parent's, as a session of a database.
inherited: list[object] = []
_told: WeakSet[Inherited] = WeakSet()


def tell(one: Inherited) -> None:
    """Have one told in each child of this process, as long as it exists."""
    _told.add(one)


def _tell_all() -> None:
    for one in list(_told):
        one.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
