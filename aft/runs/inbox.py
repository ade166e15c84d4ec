"""The run's inbox: what everybody but its owner may write. The owner reads it and acts.

An entry takes its number from ``inbox_seq`` of the run, raised in the same transaction: entries are in one order, and
the owner's next guarded write tells it that there is something to read. So far only parked runs are asked for
anything, so whoever claims the run reads it all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, insert, select, update

from aft.ids import OrderId, RunId
from aft.store.moments import now
from aft.store.tables import inbox


class Verb(StrEnum):
    """What is asked of a run."""

    RETRY = "retry"  #: try again what it was parked for
    SKIP = "skip"  #: let the failed frame go, with a note
    DONE = "done"  #: the failed frame was undone by hand, with a note


@dataclass(frozen=True, slots=True)
class Letter:
    """One entry of an inbox."""

    seq: int
    id: OrderId
    verb: Verb
    payload: dict[str, Any]
    actor: str
    at: datetime


def append(
    connection: Connection,
    run_id: RunId,
    seq: int,
    order: OrderId,
    verb: Verb,
    payload: dict[str, Any],
    actor: str,
) -> None:
    """Write an entry under a number that was taken in this transaction."""
    connection.execute(
        insert(inbox).values(
            run_id=run_id,
            seq=seq,
            id=order,
            kind=verb.value,
            payload=json.dumps(payload),
            actor=actor,
            at=now(),
        )
    )


def unread(connection: Connection, run_id: RunId) -> list[Letter]:
    """Return what no owner has acted on, in order."""
    statement = select(inbox).where(inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None)).order_by(inbox.c.seq)
    return [
        Letter(row.seq, row.id, Verb(row.kind), json.loads(row.payload), row.actor, row.at)
        for row in connection.execute(statement)
    ]


def mark_read(connection: Connection, run_id: RunId, epoch: int, letters: Iterable[Letter]) -> None:
    """Say that the owner of this epoch has acted; only in the transaction in which it does."""
    statement = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq.in_([letter.seq for letter in letters]))
    connection.execute(statement.values(read_epoch=epoch))
