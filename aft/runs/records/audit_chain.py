"""Chains the audit log: the hash of each record covers the record before, so that removed or changed ones are found.

Records are written concurrently, in the transactions of their actions, and get their positions a little later from a
sweeper, one at a time. To remove or change a record, an attacker has to rewrite all later ones; and a person who has
noted the position and hash of an earlier record detects that, too.

The chain has the order in which the database got the records; ``verify`` reports any other. So a record is chained only
when none with a lower number can come any more. Numbers without a record are those of transactions that were undone, or
have not ended yet: the transactions that were under way when the record was added must have ended first. Whoever keeps
one open on PostgreSQL delays the chain, and stops nothing else.

Who may run at the same time: any number of sweepers. On PostgreSQL an advisory lock admits one of them, and the others
do nothing; on SQLite they are serialized. A crash before the commit leaves the records without positions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Row,
    Select,
    cast,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    update,
)

from aft.runs.records.audit import COLUMNS, AuditEntry, order_of, read_entry
from aft.store.tables import audit

#: The hash that the first record of a chain follows.
NONE = ""
_LOCK = 7_234_109_553
#: The last position that a record may have and be followed by another one.
MOST = 2**53
#: Whether a position is a whole number: SQLite stores any type.
_IS_PLACE = cast(audit.c.seq, BigInteger) == audit.c.seq
#: Records that are read at a time.
PAGE = 1000
#: Problems that are listed.
MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the chain, and the hash of all records up to there."""

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class Place(NamedTuple):
    """A record in the order of the database: its number there, and whether none can be added before it any more."""

    entry: AuditEntry
    number: int | None
    settled: bool = True


@dataclass(slots=True)
class ChainCheck:
    """The result of verifying the chain: the number of records, the last one, and the problems.

    ``loose`` counts records that have no position yet.
    """

    count: int = 0
    loose: int = 0
    last: Position | None = None
    problems: list[str] = field(default_factory=list)


def any_loose(connection: Connection) -> bool:
    """Return whether there are records without a position."""
    return connection.execute(select(audit.c.id).where(audit.c.seq.is_(None)).limit(1)).first() is not None


def extend(connection: Connection, limit: int) -> int:
    """Give up to ``limit`` records their positions, oldest first; returns how many.

    0 if another process extends it, or if records may be added before those that are there.
    """
    if not _is_alone(connection):
        return 0
    end = _find_end(connection)
    seq, before = end.seq, end.hash
    beyond = select(audit.c.seq).where(audit.c.seq > seq, _IS_PLACE).order_by(audit.c.seq).limit(1)
    free = connection.execute(beyond).scalar()
    limit = limit if free is None else min(limit, free - seq - 1)
    last = connection.execute(select(order_of(connection)).where(audit.c.seq == seq)).scalar()
    loose = (
        _select_places(connection, _is_settled(connection))
        .where(audit.c.seq.is_(None))
        .order_by(order_of(connection))
        .limit(limit)
    )
    found = take_settled([_read_place(row) for row in connection.execute(loose)], last)
    for entry in found:
        seq, before = seq + 1, hash_of(entry, before)
        connection.execute(update(audit).where(audit.c.id == entry.id).values(seq=seq, hash=before))
    return len(found)


def take_settled(places: Iterable[Place], last: int | None) -> list[AuditEntry]:
    """Return the first records, up to one before which others may be added; ``last`` is the chain's last number. Pure.

    One whose number is the next needs no other proof.
    """
    taken: list[AuditEntry] = []
    for place in places:
        if not place.settled and (last is None or place.number != last + 1):
            break
        taken.append(place.entry)
        last = place.number
    return taken


def _is_settled(connection: Connection) -> ColumnElement[bool]:
    """Return whether all transactions have ended that were under way when a record was added."""
    if connection.dialect.name != "postgresql":
        return true()  # one writer at a time
    return literal_column(f"age({audit.name}.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)", Boolean)


def _select_places(connection: Connection, settled: ColumnElement[bool]) -> Select[Any]:
    columns: list[Any] = [*COLUMNS, order_of(connection), settled]
    return select(*columns)


def _read_place(row: Row[Any]) -> Place:
    return Place(read_entry(row), *row[len(COLUMNS) :])


def _find_end(connection: Connection) -> Position:
    """Return the last position of the unbroken chain.

    Who may write positions could set one far beyond the others, up to the largest number, and none would be left for
    new records. So what lies beyond a gap is ignored, and what is beyond ``MOST``; ``verify`` reports both.
    """
    chained = select(audit.c.seq, audit.c.hash).order_by(audit.c.seq.desc())
    last = connection.execute(chained.where(_IS_PLACE).limit(2)).all()
    below = last[1].seq if len(last) > 1 else 0
    if last and last[0].seq == below + 1 and 1 <= last[0].seq <= MOST:
        return Position(last[0].seq, last[0].hash or NONE)
    following = audit.alias()
    has_next = select(following.c.id).where(following.c.seq == audit.c.seq + 1).exists()
    ends = select(audit.c.seq, audit.c.hash).where(audit.c.seq.between(1, MOST), _IS_PLACE, ~has_next)
    end = connection.execute(ends.order_by(audit.c.seq).limit(1)).one_or_none()
    return Position(0, NONE) if end is None else Position(end.seq, end.hash or NONE)


def _is_alone(connection: Connection) -> bool:
    """Try to lock the chain until this transaction ends; always true on SQLite, where there is one writer at a time."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": _LOCK}).scalar())


def hash_of(entry: AuditEntry, before: str) -> str:
    """Return the hash of a record that follows one with the hash ``before``."""
    hashed = [before, entry.id, entry.run_id, entry.actor, entry.action, entry.note, entry.at.isoformat()]
    return hashlib.sha256(json.dumps([*hashed, entry.os_user, entry.db_user]).encode()).hexdigest()


def verify(connection: Connection, known: Position | None = None) -> ChainCheck:
    """Verify the whole chain; ``known`` is a position noted earlier, which must still be in it."""
    verdict, before, is_there, last = ChainCheck(), Position(0, NONE), known is None, None
    for entry, number, _ in _go_through(connection):
        here = Position(entry.seq or 0, entry.hash or NONE)
        problem = _find_problem(entry, before, here) or _find_disorder(before, here, last, number)
        last = number
        if problem is not None and len(verdict.problems) < MOST_PROBLEMS:
            verdict.problems.append(problem)
        verdict.count, verdict.last, before = verdict.count + 1, here, here
        is_there = is_there or here == known
    if not is_there and known is not None:
        verdict.problems.append(f"record {known.seq} is gone, or is not the one that is known")
    cut_out = connection.execute(
        select(func.count()).select_from(audit).where(or_(audit.c.seq < 1, ~_IS_PLACE))
    ).scalar_one()
    if cut_out:
        verdict.problems.append(f"{cut_out} records were taken out of the chain")
    loose = select(func.count()).select_from(audit).where(audit.c.seq.is_(None))
    verdict.loose = int(connection.execute(loose).scalar_one())
    return verdict


def _go_through(connection: Connection) -> Iterator[Place]:
    """Yield the chained records in the chain's order, reading ``PAGE`` at a time."""
    last = 0
    while rows := connection.execute(
        _select_places(connection, true()).where(audit.c.seq > last, _IS_PLACE).order_by(audit.c.seq).limit(PAGE)
    ).fetchall():
        yield from map(_read_place, rows)
        last = rows[-1].seq


def _find_problem(entry: AuditEntry, before: Position, here: Position) -> str | None:
    first, last = before.seq + 1, here.seq - 1
    if first < last:
        return f"records {first} to {last} are gone"
    if first == last:
        return f"record {first} is gone"
    return None if here.hash == hash_of(entry, before.hash) else f"record {here.seq} was changed, or put in its place"


def _find_disorder(before: Position, here: Position, last: int | None, number: int | None) -> str | None:
    """Return how the chain differs from the order in which the database got the records; it writes no two numbers."""
    if last is None or number is None or last < number:
        return None
    return f"record {here.seq} was added before record {before.seq}: somebody has changed their order in the chain"
