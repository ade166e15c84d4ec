"""Builds the story of one run, in order, from its rows. Reads only.

The rows are the truth; the live stream only says when to read them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Connection

from aft.app.views.exlet_reports import format_progress, format_rule, format_ruling, plans_of, read_ruling, taught
from aft.codec import stored_to_text
from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.steps.children import PARENT
from aft.ids import RunId, StepPath
from aft.rules.exlets.plans import Plan
from aft.rules.rule_types import RuleType
from aft.runs import run_rows, waits
from aft.runs.records import audit, faults, inbox, journal
from aft.runs.records.audit import AuditEntry
from aft.runs.records.inbox import InboxItem, InboxVerb
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.rulings import RulingAction
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind
from aft.runs.wakes import child_runs


class StoryEventKind(StrEnum):
    """The kinds of events in a run's story."""

    STARTED = "started"
    ACTIVITY = "activity"  #: an activity completed
    PUSHED = "pushed"  #: its undo was put on the stack
    FAULT = "fault"  #: something raised
    WAIT = "wait"  #: the fault was put into a level
    FINAL = "final"  #: the failure was found to be final
    EXLET = "exlet"  #: a rule has chosen an exlet for it
    PROCEEDED = "proceeded"  #: it failed for good, and the flow went on without it
    REMOVED = "removed"  #: an exlet removed it
    RULED = "ruled"  #: a constraint of the run was handled, and it went on
    ABORTED = "aborted"  #: the worker was lost
    POPPED = "popped"  #: a compensator ran, and its frame was popped
    CLOSED_WITHOUT_UNDO = "settled"  #: a frame was closed without its compensator: by a person, or past a pivot
    FORGOTTEN = "forgotten"  #: a retry went back before a step that nothing undoes
    UNDONE = "undone"  #: a savepoint was undone
    AWAITS = "awaits"  #: it waits for something now
    SIGNAL = "signal"  #: a signal that it awaited was taken
    TIMEOUT = "timeout"  #: a signal that it awaited did not come in time
    SLEPT = "slept"  #: a time that it awaited has come
    UNREAD = "unread"  #: something was sent to it that it has not asked for
    REFUSED = "refused"  #: a signal could not be read as what the flow asked for
    CHILD = "child"  #: a child was made
    RETURNED = "returned"  #: a child's end was recorded
    PATCH = "patch"  #: the code asked whether it runs with a change
    PIVOT = "pivot"  #: from here on it only goes forward
    ACTION = "action"  #: a person, or its parent, did something
    PARKED = "parked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One event; ``detail`` is for people: a text, or a value as JSON text (``codec.display``).

    ``signal`` is what a fault waits for instead of a time, ``by`` is the sender of a signal, ``awaited`` what was or is
    waited for, ``run`` the child's id; ``beside`` is the number of calls of the parallel step that it belongs to.
    """

    at: datetime
    what: StoryEventKind
    path: str | None
    name: str
    detail: str = field(default="", repr=False)
    level: int | None = None
    wait: timedelta | None = None
    queue: str | None = None
    signal: str | None = None
    by: str | None = None
    awaited: Wait | None = None
    run: RunId | None = None
    beside: int | None = None


def read_timeline(connection: Connection, namespace: str, run_id: RunId) -> tuple[RunRow, list[StoryEvent]]:
    """Return a run's story so far, oldest first."""
    row = run_rows.get_run(connection, namespace, run_id)
    children = child_runs.of(connection, run_id)
    # The journal has the current generation's steps only.
    current = [child for child in children if child.parent_generation == row.key_generation]
    items = inbox.of_run(connection, run_id)
    entries = journal.load(connection, run_id)
    story = [_of_child(child) for child in children]
    senders = _match(entries, items)
    for entry in entries:
        story += _of_entry(entry, senders.get(entry.path), current)
    plans = plans_of(connection, run_id)
    for fault in faults.of_run(connection, run_id):
        story += _of_fault(fault, plans.get(fault.id))
    for frame in stack.of_run(connection, run_id):
        story += _of_frame(frame)
    for audited in audit.of_run(connection, run_id):
        if audited.action == audit.SIGNAL:
            continue  # among the inbox's items
        story.append(
            StoryEvent(audited.at, StoryEventKind.ACTION, None, audited.action, _format_audit_entry(audited, run_id))
        )
    story += [happening for item in items for happening in _of_inbox_item(item)]
    story += _of_waits(row, {entry.path for entry in entries})
    story += _of_end(row, story)
    # The sort is stable: what happened in one transaction stays in the order in which it is added here. Two clocks, the
    # worker's and the database's: nothing is placed before the start, and no step after the end.
    started = StoryEvent(row.created_at, StoryEventKind.STARTED, None, row.flow, stored_to_text(row.args))
    return row, [started, *sorted(story, key=lambda happening: happening.at)]


def _format_audit_entry(entry: AuditEntry, run_id: RunId) -> str:
    """Format the actor and the note; an exlet that was chosen for this very run has its reason where it was chosen."""
    if entry.actor.startswith("exlet ") and (entry.note or "").endswith(f"of run {run_id}"):
        return f"by {entry.actor}"
    return f"by {entry.actor}: {entry.note or 'no note'}"


#: Events for outcomes that an exlet has decided.
_BY_EXLET = {Outcome.PROCEED: StoryEventKind.PROCEEDED, Outcome.REMOVED: StoryEventKind.REMOVED}


# Forward --------------------------------------------------------------------------------------------------------


def _of_entry(entry: Entry, item: InboxItem | None, children: list[RunRow]) -> list[StoryEvent]:
    if entry.outcome is Outcome.FAILED and entry.kind is not EntryKind.CHILD:
        return []  # the fault's event shows it: also where a wait, or a pivot, was interrupted
    kinds = {
        EntryKind.ACTIVITY: _BY_EXLET.get(entry.outcome, StoryEventKind.ACTIVITY),
        EntryKind.RULE: StoryEventKind.RULED,
        EntryKind.SAVEPOINT: StoryEventKind.UNDONE,
        EntryKind.SIGNAL: StoryEventKind.SIGNAL if entry.outcome is Outcome.OK else StoryEventKind.TIMEOUT,
        EntryKind.SLEEP: StoryEventKind.SLEPT,
        EntryKind.CHILD: StoryEventKind.RETURNED,
        EntryKind.PATCH: StoryEventKind.PATCH,
        EntryKind.PIVOT: StoryEventKind.PIVOT,
    }
    name = entry.name or ("savepoint" if entry.kind is EntryKind.SAVEPOINT else "")
    value = stored_to_text(entry.value, name if entry.kind is EntryKind.SIGNAL else "")
    event = StoryEvent(entry.recorded_at, kinds[entry.kind], entry.path, name, value, beside=entry.beside)
    if entry.kind is EntryKind.CHILD:
        return [_of_return(event, entry, next((child for child in children if child.parent_path == entry.path), None))]
    if entry.kind in (EntryKind.SIGNAL, EntryKind.SLEEP):
        wait = next(iter(waits.decode(entry.args)), None)
        event = replace(event, by=None if item is None else item.actor)
        return [replace(event, awaited=wait)]
    return [event]


def _match(entries: list[Entry], items: list[InboxItem]) -> dict[str, InboxItem]:
    """Return the inbox item of each taken signal: signals of one name are taken in order."""
    taken = [item for item in items if item.verb is InboxVerb.SIGNAL and item.read and item.note is None]
    found: dict[str, InboxItem] = {}
    for entry in entries:
        if entry.kind is not EntryKind.SIGNAL or entry.outcome is not Outcome.OK:
            continue
        for item in taken:
            if (item.payload.get("name"), item.payload.get("value")) == (entry.name, entry.value):
                found[entry.path] = item
                taken.remove(item)
                break
    return found


def _of_return(event: StoryEvent, entry: Entry, child: RunRow | None) -> StoryEvent:
    """Return the event of a child's end; its fault is in the child's own story."""
    event = replace(event, run=None if child is None else child.id)
    if entry.outcome is Outcome.OK:
        return event
    return replace(
        event, what=StoryEventKind.FAULT, detail="failed" if child is None else f"the child ended {child.status.value}"
    )


def _of_child(child: RunRow) -> StoryEvent:
    return StoryEvent(
        child.created_at, StoryEventKind.CHILD, child.parent_path, child.flow, child.status.value, run=child.id
    )


def _of_inbox_item(item: InboxItem) -> list[StoryEvent]:
    name = str(item.payload.get("name", item.verb.value))
    value = stored_to_text(str(item.payload.get("value", "")), name)
    if item.verb is InboxVerb.SIGNAL and item.note is not None and item.taken_by is None:
        why = item.note.removeprefix("refused: ")
        return [StoryEvent(item.at, StoryEventKind.REFUSED, None, name, f"{value}: {why}", by=item.actor)]
    if item.read and (item.note or "").startswith("refused: "):
        why = (item.note or "").removeprefix("refused: ")
        detail = f"of {item.actor} was not carried out: {why}"
        return [StoryEvent(item.at, StoryEventKind.ACTION, None, item.verb.value, detail, by=item.actor)]
    if item.read and item.note is not None:
        return [StoryEvent(item.at, StoryEventKind.ACTION, None, item.verb.value, f"of {item.actor} was {item.note}")]
    if item.verb not in (InboxVerb.CHILD, InboxVerb.RULING) and not item.read:
        return [StoryEvent(item.at, StoryEventKind.UNREAD, None, name, value, by=item.actor)]
    if item.verb in (InboxVerb.CANCEL, InboxVerb.COMPENSATE) and item.actor == PARENT:
        # Orders of people are audited, and shown from there.
        return [StoryEvent(item.at, StoryEventKind.ACTION, None, item.verb.value, "by its parent", by=item.actor)]
    return []


def _of_waits(row: RunRow, note_recorded: set[StepPath]) -> list[StoryEvent]:
    """Return what the run awaits now, without waits that it has passed since its last release.

    Waits for children and faults are left out: the child's own story, and the fault's event, show them.
    """
    if row.status.ended:
        return []
    return [
        StoryEvent(wait.since, StoryEventKind.AWAITS, wait.path, wait.name, str(wait), awaited=wait)
        for wait in row.waits
        if wait.path not in note_recorded and wait.kind in (WaitKind.SIGNAL, WaitKind.SLEEP)
    ]


# Backward -------------------------------------------------------------------------------------------------------


def _of_frame(frame: Frame) -> list[StoryEvent]:
    if frame.compensator == stack.NOTHING and frame.settled_at is not None:
        return [StoryEvent(frame.settled_at, StoryEventKind.FORGOTTEN, frame.path, frame.activity, frame.note or "")]
    name = frame.compensator if frame.child_id is None else f"child {frame.activity}"
    story = [StoryEvent(frame.pushed_at, StoryEventKind.PUSHED, frame.path, name)]
    if frame.settled_at is not None and frame.state is FrameState.UNDONE:
        story.append(StoryEvent(frame.settled_at, StoryEventKind.POPPED, frame.path, name, _called_with(frame)))
    elif frame.settled_at is not None:
        story.append(
            StoryEvent(frame.settled_at, StoryEventKind.CLOSED_WITHOUT_UNDO, frame.path, name, frame.state.value)
        )
    return story


def _called_with(frame: Frame) -> str:
    """Return the arguments of what was undone, which distinguish frames of one compensator; empty for a child."""
    return stored_to_text(frame.args) if frame.child_id is None else ""


# Trouble --------------------------------------------------------------------------------------------------------


#: When a constraint was asked, for people.
_WHEN = {
    RuleType.ACTIVITY_PRE: "before it",
    RuleType.ACTIVITY_POST: "after it",
    RuleType.VIOLATED: "while it was executed",
    RuleType.RUN_PRE: "before it begins",
    RuleType.RUN_POST: "before it ends",
    RuleType.ABORT: "after its worker was lost",
}
#: What is no failure, though there is no other try.
_NOT_FINAL = (RulingAction.COMPLETE, RulingAction.PROCEED, RulingAction.REMOVE, RulingAction.PARK)


def _of_fault(fault: Fault, plan: Plan | None) -> list[StoryEvent]:
    if fault.kind is FaultKind.ABORT:
        unseen = "; nobody has seen what it did then, which may stand" if fault.state is FaultState.FINAL else ""
        aborted = StoryEvent(fault.raised_at, StoryEventKind.ABORTED, None, fault.name, f"{fault.message}{unseen}")
        return [aborted, *_of_rule(fault, plan)]
    story = [StoryEvent(fault.raised_at, StoryEventKind.FAULT, fault.path, fault.name, _format_fault(fault))]
    if fault.kind is FaultKind.FLOW and fault.state is not FaultState.FINAL:
        return [StoryEvent(fault.raised_at, StoryEventKind.PARKED, None, fault.name, str(fault))]
    if fault.decided_at is None:
        return story
    # Two clocks, the worker's and the database's: a decision is never placed before its fault.
    at = max(fault.decided_at, fault.raised_at)
    story += _of_rule(fault, plan)
    if fault.level is not None or (fault.wait and read_ruling(fault).do is None):
        position = "by its rule" if fault.level is None else f"level {fault.level}, try {fault.try_in_level}"
        detail = f"{position}: {fault.why}"
        wait = StoryEvent(at, StoryEventKind.WAIT, fault.path, fault.name, detail, fault.level, fault.wait, fault.queue)
        story.append(replace(wait, signal=fault.signal))
    elif fault.kind is FaultKind.COMPENSATOR:
        story.append(StoryEvent(at, StoryEventKind.PARKED, fault.path, fault.name, _format_parked(fault)))
    elif fault.state is FaultState.FINAL and read_ruling(fault).do not in _NOT_FINAL:
        story.append(
            StoryEvent(at, StoryEventKind.FINAL, fault.path, fault.name, _format_why(fault), queue=fault.queue)
        )
    return story


def _format_parked(fault: Fault) -> str:
    """Format why a run is parked for a compensator; the fault before it shows what went wrong."""
    step = (fault.path or "").removesuffix("/undo")
    return f"compensator {fault.name!r} of step {step} failed{f': {fault.why}' if fault.why else ''}"


def _of_rule(fault: Fault, plan: Plan | None) -> list[StoryEvent]:
    """Return the event of the exlet that a taught rule has chosen: how far it is, and what it has decided."""
    decision = taught(fault)
    if decision is None or fault.decided_at is None:
        return []
    at = max(fault.decided_at, fault.raised_at)
    is_shown_below = fault.settled_at is not None and read_ruling(fault).do in (
        RulingAction.PROCEED,
        RulingAction.REMOVE,
        RulingAction.FAIL,
    )
    ruling = "" if is_shown_below else format_ruling(fault)
    parts = (format_rule(decision), "" if plan is None else format_progress(plan), ruling)
    detail = f"by {'; '.join(part for part in parts if part)}"
    return [StoryEvent(at, StoryEventKind.EXLET, fault.path, decision.exlet, detail)]


def _format_why(fault: Fault) -> str:
    """Format why there is no other try; empty if the rule's own event shows it."""
    decision = taught(fault)
    return "" if decision is not None and fault.why == decision.why else fault.why or ""


def _format_fault(fault: Fault) -> str:
    """Format what went wrong; for a constraint, the rule's condition."""
    decision = taught(fault) if fault.kind is FaultKind.CONSTRAINT else None
    if decision is None:
        return str(fault)
    return f"constraint {_WHEN.get(RuleType(decision.on), decision.on)}: {decision.condition}"


def _of_end(row: RunRow, story: list[StoryEvent]) -> list[StoryEvent]:
    parked = row.status is Status.PARKED and all(happening.what is not StoryEventKind.PARKED for happening in story)
    at = row.updated_at if parked else row.ended_at
    if at is None:
        return []
    at = max([at, *(happening.at for happening in story if happening.path is not None)])
    if parked:
        return [StoryEvent(at, StoryEventKind.PARKED, None, row.flow, row.reason or "")]
    return [StoryEvent(at, StoryEventKind.ENDED, None, row.status.value, stored_to_text(row.result))]
