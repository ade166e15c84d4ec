"""Reads a run's story, with those of its children in it. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from aft.app.views import timeline
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.ids import RunId
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import child_runs

#: Generations below a run that are included, unless the caller asks for more or fewer.
DEPTH = 3
#: Children of one run whose stories are included; of the others only the status. Those not completed come first.
MOST_CHILDREN = 30


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a run, oldest first; ``children`` are the stories of included children, by their step.

    Of several children that were started at one step, by generations of the run for example, a parked one is included,
    else the newest.
    """

    row: RunRow
    happenings: list[StoryEvent]
    children: dict[str, Story]

    @property
    def runs(self) -> Iterator[RunRow]:
        """The run and every descendant that is included."""
        yield self.row
        for child in self.children.values():
            yield from child.runs


def read_story(connection: Connection, namespace: str, run_id: RunId, depth: int = DEPTH) -> Story:
    """Return a run's story so far, with ``depth`` generations below it."""
    row, happenings = timeline.read_timeline(connection, namespace, run_id)
    children: dict[str, Story] = {}
    if depth > 0 and any(one.what is StoryEventKind.CHILD for one in happenings):
        of_step: dict[str | None, RunRow] = {}
        for child in child_runs.of(connection, run_id):
            before = of_step.get(child.parent_path)
            if before is None or before.status is not Status.PARKED or child.status is Status.PARKED:
                of_step[child.parent_path] = child
        for child in _most_telling(list(of_step.values())):
            children[child.parent_path or ""] = read_story(connection, namespace, child.id, depth - 1)
    return Story(row, happenings, children)


def _most_telling(children: list[RunRow]) -> list[RunRow]:
    """Choose the children whose stories are included: those that have not completed first, then the oldest."""
    return sorted(children, key=lambda child: child.status is Status.COMPLETED)[:MOST_CHILDREN]
