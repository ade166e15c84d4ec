"""The JSON that listings print: one list of keys for each kind of object. Keys are stable; times are ISO 8601 in UTC.

A key is an attribute of its object; ``key=attribute`` where the names differ, ``key=one.attribute`` for one of a part.
What is not listed is not printed: a new attribute is no new key.

Arguments, results and values of signals are ordinary JSON data; types that JSON lacks are text (``codec.display``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any

from aft.app.operations import RunOutcome
from aft.app.views.health import WorkerStatus
from aft.app.views.story import Story
from aft.app.views.timeline import StoryEvent
from aft.app.views.undo_preview import Undo
from aft.cli.show.output import iso
from aft.codec import stored_to_json, tagged_to_json, value_to_json
from aft.compensation.stack import Frame
from aft.errors import DefinitionError
from aft.fault import Fault
from aft.ids import RunId
from aft.recovery.levels import Ladder, read_ladder
from aft.rules.exlets.plans import Plan
from aft.runs.find.read_groups import FailureGroup
from aft.runs.operations.operation_rows import OperationRow, OutcomeState
from aft.runs.records.inbox import InboxItem
from aft.runs.records.quarantine import Refusal
from aft.runs.run_rows import RunRow
from aft.runs.schedules.schedule_rows import ScheduleRow
from aft.runs.states import Status
from aft.runs.waits import Wait

#: Attributes that hold stored values as text, of whatever object.
_STORED = frozenset({"args", "result", "value", "options", "decision", "ruling"})


def document(one: object, keys: str, **given: Any) -> dict[str, Any]:
    """Return the JSON of an object with these keys; ``given`` are the values of those that are no attributes."""
    return {key: _to_json(given[key]) if key in given else _read(one, path) for key, path in _parse(keys)}


@lru_cache
def _parse(keys: str) -> list[tuple[str, list[str]]]:
    pairs = [word.partition("=") for word in keys.split()]
    return [(key, (path or key).split(".")) for key, _, path in pairs]


def _read(one: object, path: Sequence[str]) -> Any:
    """Return the value of an attribute, or of one of a part; None if there is no such part."""
    for name in path:
        one = None if one is None else getattr(one, name)
    return stored_to_json(one) if path[-1] in _STORED and isinstance(one, str) else _to_json(one)


def _to_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return list(value) if isinstance(value, tuple) else value


_RUN = """
id flow version status key args result reason cause fault=fault_id priority owner tags root=root_id parent=parent_id
parent_path waits resources expected worker=worker_id epoch deaths created_at started_at updated_at due_at deadline_at
ended_at
"""


def run(row: RunRow) -> dict[str, Any]:
    """Return a run."""
    return document(row, _RUN, tags=tagged_to_json(row.tags), waits=[wait(one) for one in row.waits])


_SCHEDULE = """
name flow version args cron every_seconds zone catch_up overlap options paused broken next_at next_local last_at
last_local last_run=last_run_id last_status skipped_at skipped_why made_by changed_by created_at updated_at
"""


def schedule(row: ScheduleRow, status: Status | None) -> dict[str, Any]:
    """Return a schedule, and the status of its last run."""
    local = {"next_local": _local(row, row.next_at), "last_local": _local(row, row.last_at)}
    return document(row, _SCHEDULE, last_status=status, **local)


_OPERATION = """
id verb state why where=wanted total batch batch_size brake rate patience note made_by changed_by made_at ordered_at
ended_at runs
"""


def operation(row: OperationRow, counts: dict[OutcomeState, int]) -> dict[str, Any]:
    """Return an operation, with how many of its runs are in each state."""
    return document(row, _OPERATION, runs={state.value: number for state, number in counts.items()})


def outcome(one: RunOutcome) -> dict[str, Any]:
    """Return what came of an operation's order to one run."""
    return document(one, "run=run.id state batch note")


def _local(row: ScheduleRow, at: datetime | None) -> datetime | None:
    try:
        return None if at is None else row.calendar().local(at)
    except DefinitionError:
        return None  # edited by hand; the rest is shown all the same


def wait(one: Wait) -> dict[str, Any]:
    """Return one wait of a run; ``name`` is the signal's, or the child's id."""
    return document(one, "path kind name since until")


def story(found: Story, items: dict[RunId, list[InboxItem]]) -> dict[str, Any]:
    """Return a run with its timeline, its inbox, and its children's stories."""
    return {
        **run(found.row),
        "timeline": [happening(one) for one in found.happenings],
        "inbox": [item(one) for one in items[found.row.id]],
        "children": [story(child, items) for child in found.children.values()],
    }


def item(one: InboxItem) -> dict[str, Any]:
    """Return an inbox item; ``name`` and ``value`` are a signal's, ``note`` says why it was refused."""
    name = one.payload.get("name")
    value = stored_to_json(one.payload.get("value"), str(name))
    return document(one, "id kind=verb name value from=actor at read note", name=name, value=value)


def happening(one: StoryEvent) -> dict[str, Any]:
    """Return one event of a run's story."""
    keys = (
        "at what path name detail level wait_seconds=wait by since=awaited.since until=awaited.until child=run beside"
    )
    return document(one, keys)


_FAULT = """
id run=run_id kind name path state type message attempt level try_in_level wait_seconds=wait ladder resource signal why
rule_type decision ruling own_answer declared_answer http_status retry_after_seconds=after lineage traceback epoch
raised_at decided_at due_at settled_at
"""


def fault(one: Fault) -> dict[str, Any]:
    """Return a fault."""
    levels = [document(level, "wait_seconds=wait tries") for level in ladder(one).levels]
    return document(one, _FAULT, ladder=levels)


def failure_group(one: FailureGroup) -> dict[str, Any]:
    """Return a failure group with its example."""
    keys = "group=id count runs first_at last_at trend kind=example.kind step=example.name type=example.type"
    return document(one, f"{keys} message=example.message fault=example.id run=example.run_id")


def plan(one: Plan) -> dict[str, Any]:
    """Return a plan; ``position`` primitives of its exlet are done."""
    does = [str(step) for step in one.exlet.steps]
    return document(one, "exlet=exlet.name does state position note made_at ended_at", does=does)


def frame(one: Frame) -> dict[str, Any]:
    """Return one owed undo."""
    return document(
        one, "path scope activity compensator child=child_id state args result=value note pushed_at settled_at"
    )


def undo(one: Undo) -> dict[str, Any]:
    """Return one effect that would be undone, or would remain: ``obstacle`` says why."""
    values = {"arguments": value_to_json(one.arguments), "result": value_to_json(one.result)}
    return document(one, "run_id path activity compensator arguments result obstacle", **values)


def refusal(one: Refusal) -> dict[str, Any]:
    """Return a message that was refused by admission."""
    body = one.body.decode(errors="backslashreplace")
    return document(one, "id queue state reason size body at settled_at settled_by note", body=body)


def worker(one: WorkerStatus) -> dict[str, Any]:
    """Return a worker whose lease is valid; ``alive`` is false if its process has ended."""
    return document(one, "id host pid roles flows runs watched alive started_at expires_at", alive=not one.dead)


def ladder(one: Fault) -> Ladder:
    """Return the ladder of a fault; an empty one if its row is damaged."""
    try:
        return read_ladder(one.ladder)
    except ValueError:
        return Ladder()
