"""The records of what was done by hand, chained: each one's hash covers the one before, so that what is gone shows.

Records are written in the transactions of the deeds, beside each other, and get their places a little later, from one
writer at a time: the sweepers'. Whoever cuts out or changes a record in the chain has to make all later ones anew; and
whoever knows the number and the hash of one from before sees that, too.

Who may run at the same time: any number of sweepers. On PostgreSQL a lock lets one of them through, and the others
leave; on SQLite they come one after the other. A crash before the commit leaves the records without places.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select, text, update

from aft.runs.audit import AuditEntry, read
from aft.store.tables import audit

#: What the first record of a chain follows.
NONE = ""
_LOCK = 7_234_109_553
#: Records that are read at a time.
PAGE = 1000
#: Problems that are listed.
MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the chain, and the hash of all up to there."""

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


@dataclass(slots=True)
class ChainCheck:
    """What was found when the chain was gone through: how many records, the last one, and what is wrong.

    ``loose`` are records that have no place yet.
    """

    count: int = 0
    loose: int = 0
    last: Position | None = None
    problems: list[str] = field(default_factory=list)


def any_loose(connection: Connection) -> bool:
    """Tell whether there are records without a place."""
    return connection.execute(select(audit.c.id).where(audit.c.seq.is_(None)).limit(1)).first() is not None


def extend(connection: Connection, limit: int) -> int:
    """Give so many records their places, the oldest first; tells how many. Nothing, if somebody else is at it."""
    if not _is_alone(connection):
        return 0
    last = connection.execute(
        select(audit.c.seq, audit.c.hash).where(audit.c.seq.is_not(None)).order_by(audit.c.seq.desc()).limit(1)
    ).one_or_none()
    seq, before = (0, NONE) if last is None else (last.seq, last.hash)
    loose = select(audit).where(audit.c.seq.is_(None)).order_by(audit.c.id).limit(limit)
    found = [read(row) for row in connection.execute(loose)]
    for deed in found:
        seq, before = seq + 1, hash_of(deed, before)
        connection.execute(update(audit).where(audit.c.id == deed.id).values(seq=seq, hash=before))
    return len(found)


def _is_alone(connection: Connection) -> bool:
    """Tell whether nobody else extends the chain until this transaction ends; on SQLite nobody else writes at all."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": _LOCK}).scalar())


def hash_of(deed: AuditEntry, before: str) -> str:
    """The hash of a record that follows one with the hash ``before``."""
    said = [before, deed.id, deed.run_id, deed.actor, deed.action, deed.note, deed.at.isoformat()]
    return hashlib.sha256(json.dumps([*said, deed.os_user, deed.db_user]).encode()).hexdigest()


def verify(connection: Connection, known: Position | None = None) -> ChainCheck:
    """Go through the whole chain; ``known`` is a place and its hash from before, which must be in it still."""
    verdict, before, is_there = ChainCheck(), Position(0, NONE), known is None
    for deed in _go_through(connection):
        here = Position(deed.seq or 0, deed.hash or NONE)
        problem = _find_problem(deed, before, here)
        if problem is not None and len(verdict.problems) < MOST_PROBLEMS:
            verdict.problems.append(problem)
        verdict.count, verdict.last, before = verdict.count + 1, here, here
        is_there = is_there or here == known
    if not is_there and known is not None:
        verdict.problems.append(f"record {known.seq} is gone, or is not the one that is known")
    cut_out = connection.execute(select(func.count()).select_from(audit).where(audit.c.seq < 1)).scalar_one()
    if cut_out:
        verdict.problems.append(f"{cut_out} records were taken out of the chain")
    loose = select(func.count()).select_from(audit).where(audit.c.seq.is_(None))
    verdict.loose = int(connection.execute(loose).scalar_one())
    return verdict


def _go_through(connection: Connection) -> Iterator[AuditEntry]:
    """Yield the chained records, in order; so many are read at a time."""
    last = 0
    while rows := connection.execute(
        select(audit).where(audit.c.seq > last).order_by(audit.c.seq).limit(PAGE)
    ).fetchall():
        yield from map(read, rows)
        last = rows[-1].seq


def _find_problem(deed: AuditEntry, before: Position, here: Position) -> str | None:
    first, last = before.seq + 1, here.seq - 1
    if first < last:
        return f"records {first} to {last} are gone"
    if first == last:
        return f"record {first} is gone"
    return None if here.hash == hash_of(deed, before.hash) else f"record {here.seq} was changed, or put in its place"
