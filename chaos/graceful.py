"""Checks graceful stops: a process completes what it has begun, and nothing is repeated because of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import select

from aft.store import Store
from aft.store.tables import workers
from chaos.fleet import Hit
from chaos.ledger import Entry

#: What begins an attempt, what ends it, and what of that is an outcome which stands.
WAYS = (("begin", ("done", "raised"), "done"), ("undoing", ("undone", "undo_raised"), "undone"))


def burned(
    stops: Sequence[Hit], statuses: Mapping[int, int], entries: Sequence[Entry], buried: Collection[int]
) -> list[str]:
    """Return what was lost with processes that were asked to stop. Pure.

    ``statuses`` tells how they ended: one that has not drained in time has left something undone by right. ``buried``
    are those that others took for dead.
    """
    found = [f"5 stop: process {hit.pid} was asked to stop and did not" for hit in stops if hit.pid not in statuses]
    drained = {hit.pid for hit in stops if statuses.get(hit.pid) == 0}
    found += [f"5 stop: process {pid} stopped in order, and was taken for dead" for pid in sorted(drained & {*buried})]
    for way in WAYS:
        found += _interrupted(drained, entries, *way)
        found += _repeated(drained, entries, *way)
    return found


def _interrupted(
    drained: Collection[int], entries: Sequence[Entry], begun: str, ended: Collection[str], outcome: str
) -> Iterator[str]:
    told = {(line.pid, line.load, line.step, line.attempt) for line in entries if line.what in ended}
    for line in entries:
        if line.pid in drained and line.what == begun and (line.pid, line.load, line.step, line.attempt) not in told:
            yield f"5 stop: {line.load}: step {line.step} {begun}: process {line.pid} stopped in the middle of it"


def _repeated(
    drained: Collection[int], entries: Sequence[Entry], begun: str, ended: Collection[str], outcome: str
) -> Iterator[str]:
    done: dict[tuple[str, str], int] = {}
    for line in entries:
        place = (line.load, line.step)
        if line.what == outcome and line.pid in drained:
            done[place] = line.pid
        elif line.what == begun and place in done:
            yield f"5 stop: {line.load}: step {line.step} {begun} again after process {done[place]} had {outcome} it"


def read_buried(store: Store, namespace: str) -> set[int]:
    """Return the ids of the processes that were taken for dead."""
    with store.read() as connection:
        statement = select(workers.c.pid).where(workers.c.namespace == namespace, workers.c.died)
        return set(connection.execute(statement).scalars())
