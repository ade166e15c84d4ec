"""What is recorded about runs that were claimed just now? All of it is read together, in one round trip.

Only after the claim has committed: before, it could be a stale owner's world. From then on nobody but the owner writes
to a run's journal, stack and faults; what comes into its inbox after this, the owner learns of from its next write.

A run that nobody has executed before has nothing recorded, and nothing is read for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aft.compensation import stack
from aft.fault import Fault
from aft.ids import RunId
from aft.runs import faults, inbox, journal
from aft.runs.inbox import Letter
from aft.runs.journal import Entry
from aft.runs.rows import RunRow
from aft.store import Store
from aft.store.questions import PreparedQuery


@dataclass(slots=True)
class Recorded:
    """What earlier owners of a run have left, and what has come for it.

    ``armed`` are the steps that were started, whatever came of it, by path, with their activities; ``undone`` tells how
    often each was taken off; ``late``: effects arrived late that have to be undone before the run goes on.
    """

    entries: list[Entry] = field(default_factory=list)
    live: list[Fault] = field(default_factory=list)
    armed: dict[str, str] = field(default_factory=dict)
    undone: Counter[str] = field(default_factory=Counter)
    letters: list[Letter] = field(default_factory=list)
    late: bool = False


def load(store: Store, runs: Sequence[RunRow]) -> dict[RunId, Recorded]:
    """Read what is recorded about each of these runs. Raises StoreError."""
    found = {run.id: Recorded() for run in runs}
    executed = json.dumps([run.id for run in runs if _was_executed(run)])
    written_to = json.dumps([run.id for run in runs if run.inbox_seq])
    about_executed = dict.fromkeys((journal.OF_RUNS, faults.LIVE_OF_RUNS, stack.BEGUN), executed)
    asked = _ask(store, {**about_executed, inbox.UNREAD: written_to})
    for run_id, *values in asked[journal.OF_RUNS]:
        found[run_id].entries.append(journal.read(values))
    for values in asked[faults.LIVE_OF_RUNS]:
        fault = faults.read(dict(zip(faults.NAMES, values, strict=True)))
        found[fault.run_id].live.append(fault)
    generations = {run.id: run.key_generation for run in runs}
    for run_id, path, state, generation, activity in asked[stack.BEGUN]:
        if state == stack.FrameState.LATE.value:
            found[run_id].late = True
        elif stack.is_of(generation, generations[run_id]):
            _add_frame(found[run_id], path, state, activity)
    for run_id, *values in asked[inbox.UNREAD]:
        found[run_id].letters.append(inbox.read(values))
    return found


def _was_executed(run: RunRow) -> bool:
    """Whether somebody had the run before us: the first owner's epoch is 1, and its first write is the first at all."""
    return run.epoch > 1 or run.seq > 0


def _ask(store: Store, questions: dict[PreparedQuery, str]) -> dict[PreparedQuery, Iterable[Any]]:
    """Ask what there is to be asked; about no run there is nothing to say."""
    wanted = [(question, ids) for question, ids in questions.items() if ids != "[]"]
    answers = store.ask(wanted) if wanted else []
    said = {question: answer for (question, _), answer in zip(wanted, answers, strict=True)}
    return {question: said.get(question, ()) for question in questions}


def _add_frame(found: Recorded, path: str, state: str, activity: str) -> None:
    if state == stack.FrameState.ARMED.value:
        found.armed[path] = activity
    else:
        found.undone[path] += 1
