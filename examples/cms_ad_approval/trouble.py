"""What can go wrong in the CMS, and when? Outages that a scenario orders, kept in a table until they have struck.

==========  =====================================================  ======================================
kind        strikes                                                as
==========  =====================================================  ======================================
``busy``    before anything is changed                             CmsBusy: it will pass
``policy``  before anything is changed                             PolicyViolation: it will not pass
``hang``    when the change is on disk, and the caller not told    blocks until the process is killed
==========  =====================================================  ======================================

A row is counted down in a transaction of its own before it strikes, so that it also counts when its process dies.
Outside a run nothing is in trouble.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import Column, Integer, String, Table, insert, select, update

import aft

from .database import database, metadata

trouble = Table(
    "cms_trouble",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("slot_id", String(80), nullable=False, index=True),
    Column("place", String(80), nullable=False),  # the activity or compensator that it strikes
    Column("kind", String(20), nullable=False),
    Column("remaining", Integer, nullable=False),
    Column("pid", Integer),  # the process that hangs
)


class Kind(StrEnum):
    """The kinds of trouble."""

    BUSY = "busy"
    POLICY = "policy"
    HANG = "hang"


class CmsBusy(Exception):
    """Raised when the CMS has no time now; the same call may succeed later."""


class PolicyViolation(Exception):
    """Raised when the rules of the CMS forbid what is asked; they will forbid it again."""


def order(slot_id: str, place: str, kind: Kind, times: int = 1) -> None:
    """Let the next ``times`` calls for this slot, in this activity or compensator, meet trouble."""
    row = {"slot_id": slot_id, "place": place, "kind": kind.value, "remaining": times}
    with database().write() as connection:
        connection.execute(insert(trouble), row)


def meet(slot_id: str) -> None:
    """Raise what was ordered for this slot and the activity at hand; return if nothing was."""
    match _next(slot_id, [Kind.BUSY, Kind.POLICY]):
        case Kind.BUSY:
            raise CmsBusy("the CMS is publishing an edition")
        case Kind.POLICY:
            raise PolicyViolation("the advertiser's licence has expired")


def hang(slot_id: str) -> None:
    """Block for ever if that was ordered for this slot and the activity at hand; the table then names this process."""
    if _next(slot_id, [Kind.HANG]) is not None:
        threading.Event().wait()


def hanging(slot_id: str) -> int | None:
    """Name the process that hangs, or has hung, at this slot."""
    statement = select(trouble.c.pid).where(trouble.c.slot_id == slot_id, trouble.c.pid.is_not(None))
    with database().read() as connection:
        return connection.execute(statement).scalar()


def _next(slot_id: str, kinds: Sequence[Kind]) -> Kind | None:
    """Count the next ordered trouble down and name it."""
    place = aft.current().activity
    if place is None:
        return None
    ahead = trouble.c.slot_id == slot_id, trouble.c.place == place, trouble.c.kind.in_(kinds), trouble.c.remaining > 0
    first = select(trouble.c.id).where(*ahead).order_by(trouble.c.id).limit(1).scalar_subquery()
    strike = {"remaining": trouble.c.remaining - 1, "pid": os.getpid() if Kind.HANG in kinds else None}
    with database().write() as connection:
        struck = connection.execute(
            update(trouble).where(trouble.c.id == first).values(strike).returning(trouble.c.kind)
        ).scalar()
    return None if struck is None else Kind(struck)
