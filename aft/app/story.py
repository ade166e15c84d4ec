"""A run's story with those of its children in it. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from aft.app import timeline
from aft.app.timeline import Happening, What
from aft.ids import RunId
from aft.runs import families
from aft.runs.rows import RunRow
from aft.runs.states import Status

#: Generations below a run that are told, unless somebody asks for more or fewer.
DEPTH = 3
#: Children of one run whose stories are told; of the others only how they stand. Those that are in trouble come first.
MOST_CHILDREN = 30


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a run, oldest first; ``children`` are the stories of those that are told, by their step.

    Of several children that were started at one step, by generations of the run say, one that waits for a person is
    told, else the newest.
    """

    row: RunRow
    happenings: list[Happening]
    children: dict[str, Story]

    @property
    def runs(self) -> Iterator[RunRow]:
        """The run and every descendant that is told."""
        yield self.row
        for child in self.children.values():
            yield from child.runs


def tell(connection: Connection, namespace: str, run_id: RunId, depth: int = DEPTH) -> Story:
    """Tell a run's story so far, with so many generations below it."""
    row, happenings = timeline.read(connection, namespace, run_id)
    children: dict[str, Story] = {}
    if depth > 0 and any(one.what is What.CHILD for one in happenings):
        of_step: dict[str | None, RunRow] = {}
        for child in families.of(connection, run_id):
            before = of_step.get(child.parent_path)
            if before is None or before.status is not Status.PARKED or child.status is Status.PARKED:
                of_step[child.parent_path] = child
        for child in _most_telling(list(of_step.values())):
            children[child.parent_path or ""] = tell(connection, namespace, child.id, depth - 1)
    return Story(row, happenings, children)


def _most_telling(children: list[RunRow]) -> list[RunRow]:
    """Choose whose stories are told: those that are not done first, then the oldest."""
    return sorted(children, key=lambda child: child.status is Status.COMPLETED)[:MOST_CHILDREN]
