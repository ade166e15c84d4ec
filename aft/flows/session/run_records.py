"""Reads the records of runs that were just claimed, all in one round trip.

Only after the claim has committed: before, a stale owner could still write. From then on only the owner writes to a
run's journal, stack and faults; it learns of later inbox items from its next write.

A run that was never executed has no records, and nothing is read for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from aft.clock import Clock
from aft.compensation import stack
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.session.unknown_outcomes import UnknownSteps
from aft.ids import RunId
from aft.runs.records import faults, inbox, journal
from aft.runs.records.inbox import InboxItem
from aft.runs.records.journal import Entry
from aft.runs.run_rows import RunRow
from aft.store import Store
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import SQLITE_NOW, read_time

#: The database's time; takes an empty text.
NOW = PreparedQuery("SELECT statement_timestamp() WHERE %s = ''", f"SELECT {SQLITE_NOW} WHERE ? = ''")


@dataclass(slots=True)
class RunRecords:
    """The records that earlier owners of a run have left, and its unread inbox items.

    ``armed`` are the activities of armed frames, by path; ``undone`` counts how often each path's frame was undone;
    ``late``: late effects have to be undone before the run goes on.
    """

    entries: list[Entry] = field(default_factory=list)
    live: list[Fault] = field(default_factory=list)
    #: Those of them that cannot be read, and that the run is not parked for yet.
    corrupt: list[Fault] = field(default_factory=list)
    armed: dict[str, str] = field(default_factory=dict)
    undone: Counter[str] = field(default_factory=Counter)
    items: list[InboxItem] = field(default_factory=list)
    late: bool = False
    #: The database's time when they were read, and the ticks of the clock right after that; None: it was not asked for.
    measured: tuple[float, datetime] | None = None


def load(store: Store, runs: Sequence[RunRow], clock: Clock | None = None) -> dict[RunId, RunRecords]:
    """Read the records of each of these runs, and the database's time if a clock is given. Raises StoreError."""
    found = {run.id: RunRecords() for run in runs}
    executed = json.dumps([run.id for run in runs if _was_executed(run)])
    written_to = json.dumps([run.id for run in runs if run.inbox_seq])
    about_executed = dict.fromkeys((journal.OF_RUNS, faults.LIVE_OF_RUNS, stack.BEGUN), executed)
    asked = _query(store, {**about_executed, inbox.UNREAD: written_to}, [] if clock is None else [(NOW, "")])
    if clock is not None and (times := list(asked[NOW])):
        # Taken after the answer: the time that is computed from it is never ahead of the database's.
        measured = clock.ticks(), cast(datetime, read_time(times[0][0]))
        for run in runs:
            found[run.id].measured = measured
    for run_id, *values in asked[journal.OF_RUNS]:
        found[run_id].entries.append(journal.read_entry(values))
    for values in asked[faults.LIVE_OF_RUNS]:
        row = dict(zip(faults.NAMES, values, strict=True))
        fault = _read_live(row)
        found[fault.run_id].live.append(fault)
        if fault.state is FaultState.PARKED and row["state"] != FaultState.PARKED.value:
            found[fault.run_id].corrupt.append(fault)
    generations = {run.id: run.key_generation for run in runs}
    for run_id, path, state, generation, activity in asked[stack.BEGUN]:
        if state == stack.FrameState.LATE.value:
            found[run_id].late = True
        elif stack.is_of(generation, generations[run_id]):
            _add_frame(found[run_id], path, state, activity)
    for run_id, *values in asked[inbox.UNREAD]:
        found[run_id].items.append(inbox.read_item(values))
    return found


def _read_live(row: dict[str, Any]) -> Fault:
    fault = faults.read_live(row)
    if fault.kind is FaultKind.ABORT:
        try:
            UnknownSteps.decode(fault.args)
        except faults.MEANINGLESS:
            return faults.stand_in(row, "args")
    return fault


def _was_executed(run: RunRow) -> bool:
    """Whether the run had an owner before: the first owner's epoch is 1, and the run's first write is that owner's."""
    return run.epoch > 1 or run.seq > 0


def _query(
    store: Store, questions: dict[PreparedQuery, str], besides: list[tuple[PreparedQuery, str]]
) -> dict[PreparedQuery, Iterable[Any]]:
    """Execute the queries that concern any run, and if there are some, those ``besides``; the others return no rows."""
    wanted = [(question, ids) for question, ids in questions.items() if ids != "[]"]
    wanted += besides if wanted else []
    answers = store.query(wanted) if wanted else []
    rows = {question: answer for (question, _), answer in zip(wanted, answers, strict=True)}
    return {question: rows.get(question, ()) for question in (*questions, *(question for question, _ in besides))}


def _add_frame(found: RunRecords, path: str, state: str, activity: str) -> None:
    if state == stack.FrameState.ARMED.value:
        found.armed[path] = activity
    else:
        found.undone[path] += 1
