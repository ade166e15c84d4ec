"""The JSON that listings print: one function for each kind of object. Keys are stable; times are ISO 8601 in UTC.

Arguments, results and values of signals are ordinary JSON data; what JSON has no word for is text (``codec.display``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from aft.app.health import WorkerSeen
from aft.app.story import Story
from aft.app.timeline import Happening
from aft.app.undoing import Undo
from aft.cli.output import iso
from aft.codec import stored_to_json, tagged_to_json, value_to_json
from aft.compensation.stack import Frame
from aft.errors import DefinitionError
from aft.fault import Fault
from aft.ids import RunId
from aft.recovery.levels import Ladder, read_ladder
from aft.rules.plans import Plan
from aft.runs.inbox import Letter
from aft.runs.quarantine import Refusal
from aft.runs.rows import RunRow
from aft.runs.schedules import ScheduleRow
from aft.runs.states import Status
from aft.runs.waits import Wait


def run(row: RunRow) -> dict[str, Any]:
    """A run."""
    return {
        "id": row.id,
        "flow": row.flow,
        "version": row.version,
        "status": row.status.value,
        "key": row.key,
        "args": stored_to_json(row.args),
        "result": stored_to_json(row.result),
        "reason": row.reason,
        "cause": row.cause,
        "fault": row.fault_id,
        "priority": row.priority,
        "owner": row.owner,
        "tags": tagged_to_json(row.tags),
        "root": row.root_id,
        "parent": row.parent_id,
        "parent_path": row.parent_path,
        "waits": [wait(one) for one in row.waits],
        "resources": list(row.resources),
        "expected": None if row.expected is None else row.expected.total_seconds(),
        "worker": row.worker_id,
        "epoch": row.epoch,
        "deaths": row.deaths,
        "created_at": iso(row.created_at),
        "started_at": iso(row.started_at),
        "updated_at": iso(row.updated_at),
        "due_at": iso(row.due_at),
        "deadline_at": iso(row.deadline_at),
        "ended_at": iso(row.ended_at),
    }


def schedule(row: ScheduleRow, status: Status | None) -> dict[str, Any]:
    """A schedule, and the status of its last run."""
    return {
        "name": row.name,
        "flow": row.flow,
        "version": row.version,
        "args": stored_to_json(row.args),
        "cron": row.cron,
        "every_seconds": row.every_seconds,
        "zone": row.zone,
        "catch_up": row.catch_up,
        "overlap": row.overlap,
        "options": stored_to_json(row.options),
        "paused": row.paused,
        "broken": row.broken,
        "next_at": iso(row.next_at),
        "next_local": _local(row, row.next_at),
        "last_at": iso(row.last_at),
        "last_local": _local(row, row.last_at),
        "last_run": row.last_run_id,
        "last_status": None if status is None else status.value,
        "skipped_at": iso(row.skipped_at),
        "skipped_why": row.skipped_why,
        "made_by": row.made_by,
        "changed_by": row.changed_by,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


def _local(row: ScheduleRow, at: datetime | None) -> str | None:
    try:
        return None if at is None else iso(row.calendar().local(at))
    except DefinitionError:
        return None  # edited by hand; the rest is better seen than hidden behind an error


def wait(one: Wait) -> dict[str, Any]:
    """One thing that a run awaits; ``name`` is the signal's, or the child's id."""
    return {
        "path": one.path,
        "kind": one.kind.value,
        "name": one.name,
        "since": iso(one.since),
        "until": iso(one.until),
    }


def story(told: Story, letters: dict[RunId, list[Letter]]) -> dict[str, Any]:
    """A run with all that happened to it, all that was sent to it, and its children's stories."""
    return {
        **run(told.row),
        "timeline": [happening(one) for one in told.happenings],
        "inbox": [letter(one) for one in letters[told.row.id]],
        "children": [story(child, letters) for child in told.children.values()],
    }


def letter(one: Letter) -> dict[str, Any]:
    """Something that was sent to a run; ``name`` and ``value`` are a signal's, ``note`` says why it was refused."""
    return {
        "id": one.id,
        "kind": one.verb.value,
        "name": one.payload.get("name"),
        "value": stored_to_json(one.payload.get("value")),
        "from": one.actor,
        "at": iso(one.at),
        "read": one.read,
        "note": one.note,
    }


def happening(one: Happening) -> dict[str, Any]:
    """One thing that happened to a run."""
    return {
        "at": iso(one.at),
        "what": one.what.value,
        "path": one.path,
        "name": one.name,
        "detail": one.detail,
        "level": one.level,
        "wait_seconds": None if one.wait is None else one.wait.total_seconds(),
        "by": one.by,
        "since": None if one.awaited is None else iso(one.awaited.since),
        "until": None if one.awaited is None else iso(one.awaited.until),
        "child": one.run,
        "beside": one.beside,
    }


def fault(one: Fault) -> dict[str, Any]:
    """A fault."""
    return {
        "id": one.id,
        "run": one.run_id,
        "kind": one.kind.value,
        "name": one.name,
        "path": one.path,
        "state": one.state.value,
        "type": one.type,
        "message": one.message,
        "attempt": one.attempt,
        "level": one.level,
        "try_in_level": one.try_in_level,
        "wait_seconds": None if one.wait is None else one.wait.total_seconds(),
        "ladder": [{"wait_seconds": level.wait.total_seconds(), "tries": level.tries} for level in ladder(one).levels],
        "resource": one.resource,
        "signal": one.signal,
        "verdict": one.verdict,
        "exception": one.exception,
        "decision": stored_to_json(one.decision),
        "ruling": stored_to_json(one.ruling),
        "said": None if one.said is None else one.said.value,
        "declared": None if one.declared is None else one.declared.value,
        "http_status": one.status,
        "retry_after_seconds": None if one.after is None else one.after.total_seconds(),
        "lineage": list(one.lineage),
        "traceback": one.traceback,
        "epoch": one.epoch,
        "raised_at": iso(one.raised_at),
        "decided_at": iso(one.decided_at),
        "due_at": iso(one.due_at),
        "settled_at": iso(one.settled_at),
    }


def plan(one: Plan) -> dict[str, Any]:
    """An exlet that is, or was, carried out; ``position`` primitives of it are done."""
    return {
        "exlet": one.exlet.name,
        "does": [str(step) for step in one.exlet.steps],
        "state": one.state.value,
        "position": one.position,
        "note": one.note,
        "made_at": iso(one.made_at),
        "ended_at": iso(one.ended_at),
    }


def frame(one: Frame) -> dict[str, Any]:
    """One owed undo."""
    return {
        "path": one.path,
        "scope": one.scope,
        "activity": one.activity,
        "compensator": one.compensator,
        "child": one.child_id,
        "state": one.state.value,
        "args": stored_to_json(one.args),
        "result": stored_to_json(one.value),
        "note": one.note,
        "pushed_at": iso(one.pushed_at),
        "settled_at": iso(one.settled_at),
    }


def undo(one: Undo) -> dict[str, Any]:
    """One thing that would be undone, or that stands: ``obstacle`` says why."""
    return {
        "run_id": one.run_id,
        "path": one.path,
        "activity": one.activity,
        "compensator": one.compensator,
        "arguments": value_to_json(one.arguments),
        "result": value_to_json(one.result),
        "obstacle": one.obstacle,
    }


def refusal(one: Refusal) -> dict[str, Any]:
    """A message that was refused at the door."""
    return {
        "id": one.id,
        "queue": one.queue,
        "state": one.state.value,
        "reason": one.reason,
        "size": one.size,
        "body": one.body.decode(errors="backslashreplace"),
        "at": iso(one.at),
        "settled_at": iso(one.settled_at),
        "settled_by": one.settled_by,
        "note": one.note,
    }


def worker(one: WorkerSeen) -> dict[str, Any]:
    """A worker whose lease stands; ``alive`` is false if its process has ended."""
    return {
        "id": one.id,
        "host": one.host,
        "pid": one.pid,
        "roles": list(one.roles),
        "flows": list(one.flows),
        "runs": one.runs,
        "watched": one.watched,
        "alive": not one.dead,
        "started_at": iso(one.started_at),
        "expires_at": iso(one.expires_at),
    }


def ladder(one: Fault) -> Ladder:
    """Read the ladder of a fault; none, where its row was damaged."""
    try:
        return read_ladder(one.ladder)
    except ValueError:
        return Ladder()
