"""What happened to a run, in order: its rows put together into one story. Reads only.

The rows are the truth; the live stream only says when to look again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Connection

from aft.app.handling import plans_of, read_ruling, spell_progress, spell_rule, spell_ruling, taught
from aft.codec import stored_to_text
from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.children import PARENT
from aft.ids import RunId, StepPath
from aft.rules.kinds import On
from aft.rules.plans import Plan
from aft.runs import audit, families, faults, inbox, journal, rows, waits
from aft.runs.audit import AuditEntry
from aft.runs.inbox import Letter, Verb
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.rows import RunRow
from aft.runs.rulings import Do
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind


class What(StrEnum):
    """The kinds of things that happen to a run."""

    STARTED = "started"
    ACTIVITY = "activity"  #: an activity completed
    PUSHED = "pushed"  #: its undo was put on the stack
    FAULT = "fault"  #: something raised
    WAIT = "wait"  #: the fault was put into a level
    FINAL = "final"  #: the failure was found to be final
    EXLET = "exlet"  #: a rule has chosen what is done about it
    PROCEEDED = "proceeded"  #: it failed for good, and the flow went on without it
    REMOVED = "removed"  #: an exlet took it away
    RULED = "ruled"  #: a constraint of the run was handled, and it went on
    ABORTED = "aborted"  #: the worker was lost
    POPPED = "popped"  #: a compensator ran, and its frame came off
    SETTLED = "settled"  #: a person took a frame off
    FORGOTTEN = "forgotten"  #: a retry went back before a step that nothing undoes
    UNDONE = "undone"  #: a savepoint was undone
    AWAITS = "awaits"  #: it waits for something now
    SIGNAL = "signal"  #: a signal that it awaited was taken
    TIMEOUT = "timeout"  #: a signal that it awaited did not come in time
    SLEPT = "slept"  #: a moment that it awaited has come
    UNREAD = "unread"  #: something was sent to it that it has not asked for
    REFUSED = "refused"  #: a signal could not be read as what the flow asked for
    CHILD = "child"  #: a child was made
    RETURNED = "returned"  #: a child's end was recorded
    PATCH = "patch"  #: the code asked whether it runs with a change
    PIVOT = "pivot"  #: from here on it only goes forward
    DEED = "deed"  #: a person, or its parent, did something
    PARKED = "parked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened; ``detail`` is for people: a text, or a value as JSON text (``codec.display``).

    ``signal`` is what a fault waits for instead of a time, ``by`` is who sent a signal, ``awaited`` what was or is
    waited for, ``run`` the child's id; ``beside`` is how many calls the parallel step has that it belongs to.
    """

    at: datetime
    what: What
    path: str | None
    name: str
    detail: str = ""
    level: int | None = None
    wait: timedelta | None = None
    queue: str | None = None
    signal: str | None = None
    by: str | None = None
    awaited: Wait | None = None
    run: RunId | None = None
    beside: int | None = None


def read(connection: Connection, namespace: str, run_id: RunId) -> tuple[RunRow, list[Happening]]:
    """Tell a run's story so far, oldest first."""
    row = rows.get(connection, namespace, run_id)
    children = families.of(connection, run_id)
    # The journal has the current generation's steps only.
    current = [child for child in children if child.parent_generation == row.key_generation]
    letters = inbox.of_run(connection, run_id)
    entries = journal.load(connection, run_id)
    story = [_of_child(child) for child in children]
    senders = _match(entries, letters)
    for entry in entries:
        story += _of_entry(entry, senders.get(entry.path), current)
    plans = plans_of(connection, run_id)
    for fault in faults.of_run(connection, run_id):
        story += _of_fault(fault, plans.get(fault.id))
    for frame in stack.of_run(connection, run_id):
        story += _of_frame(frame)
    for deed in audit.of_run(connection, run_id):
        story.append(Happening(deed.at, What.DEED, None, deed.action, _spell_deed(deed, run_id)))
    story += [happening for letter in letters for happening in _of_letter(letter)]
    story += _of_waits(row, {entry.path for entry in entries})
    story += _of_end(row, story)
    # The sort is stable: what happened in one transaction stays in the order in which it is told here. Two clocks, the
    # worker's and the database's: nothing is told before the start, and no step after the end.
    started = Happening(row.created_at, What.STARTED, None, row.flow, stored_to_text(row.args))
    return row, [started, *sorted(story, key=lambda happening: happening.at)]


def _spell_deed(deed: AuditEntry, run_id: RunId) -> str:
    """Who did it, and why; an exlet that was chosen for this very run is told where it was chosen."""
    if deed.actor.startswith("exlet ") and (deed.note or "").endswith(f"of run {run_id}"):
        return f"by {deed.actor}"
    return f"by {deed.actor}: {deed.note or 'no note'}"


#: What became of a step that an exlet has settled.
_BY_EXLET = {Outcome.PROCEED: What.PROCEEDED, Outcome.REMOVED: What.REMOVED}


# Forward --------------------------------------------------------------------------------------------------------


def _of_entry(entry: Entry, letter: Letter | None, children: list[RunRow]) -> list[Happening]:
    if entry.outcome is Outcome.FAILED and entry.kind is not EntryKind.CHILD:
        return []  # the fault tells it: also where a wait, or a pivot, was interrupted
    kinds = {
        EntryKind.ACTIVITY: _BY_EXLET.get(entry.outcome, What.ACTIVITY),
        EntryKind.RULE: What.RULED,
        EntryKind.SAVEPOINT: What.UNDONE,
        EntryKind.SIGNAL: What.SIGNAL if entry.outcome is Outcome.OK else What.TIMEOUT,
        EntryKind.SLEEP: What.SLEPT,
        EntryKind.CHILD: What.RETURNED,
        EntryKind.PATCH: What.PATCH,
        EntryKind.PIVOT: What.PIVOT,
    }
    name = entry.name or ("savepoint" if entry.kind is EntryKind.SAVEPOINT else "")
    told = Happening(
        entry.recorded_at, kinds[entry.kind], entry.path, name, stored_to_text(entry.value), beside=entry.beside
    )
    if entry.kind is EntryKind.CHILD:
        return [_of_return(told, entry, next((child for child in children if child.parent_path == entry.path), None))]
    if entry.kind in (EntryKind.SIGNAL, EntryKind.SLEEP):
        wait = next(iter(waits.decode(entry.args)), None)
        told = replace(told, by=None if letter is None else letter.actor)
        return [replace(told, awaited=wait)]
    return [told]


def _match(entries: list[Entry], letters: list[Letter]) -> dict[str, Letter]:
    """Find the letter that each taken signal came with: signals of a name are taken in order."""
    taken = [letter for letter in letters if letter.verb is Verb.SIGNAL and letter.read and letter.note is None]
    found: dict[str, Letter] = {}
    for entry in entries:
        if entry.kind is not EntryKind.SIGNAL or entry.outcome is not Outcome.OK:
            continue
        for letter in taken:
            if (letter.payload.get("name"), letter.payload.get("value")) == (entry.name, entry.value):
                found[entry.path] = letter
                taken.remove(letter)
                break
    return found


def _of_return(told: Happening, entry: Entry, child: RunRow | None) -> Happening:
    """Tell what a child has come to; its fault is told where it was raised, in the child's own story."""
    told = replace(told, run=None if child is None else child.id)
    if entry.outcome is Outcome.OK:
        return told
    return replace(told, what=What.FAULT, detail="failed" if child is None else f"the child ended {child.status.value}")


def _of_child(child: RunRow) -> Happening:
    return Happening(child.created_at, What.CHILD, child.parent_path, child.flow, child.status.value, run=child.id)


def _of_letter(letter: Letter) -> list[Happening]:
    name = str(letter.payload.get("name", letter.verb.value))
    value = stored_to_text(str(letter.payload.get("value", "")))
    if letter.verb is Verb.SIGNAL and letter.note is not None and letter.taken_by is None:
        why = letter.note.removeprefix("refused: ")
        return [Happening(letter.at, What.REFUSED, None, name, f"{value}: {why}", by=letter.actor)]
    if letter.read and (letter.note or "").startswith("refused: "):
        why = (letter.note or "").removeprefix("refused: ")
        detail = f"of {letter.actor} was not carried out: {why}"
        return [Happening(letter.at, What.DEED, None, letter.verb.value, detail, by=letter.actor)]
    if letter.read and letter.note is not None:
        return [Happening(letter.at, What.DEED, None, letter.verb.value, f"of {letter.actor} was {letter.note}")]
    if letter.verb not in (Verb.CHILD, Verb.RULING) and not letter.read:
        return [Happening(letter.at, What.UNREAD, None, name, value, by=letter.actor)]
    if letter.verb in (Verb.CANCEL, Verb.COMPENSATE) and letter.actor == PARENT:
        # What people ask is audited, and told from there.
        return [Happening(letter.at, What.DEED, None, letter.verb.value, "by its parent", by=letter.actor)]
    return []


def _of_waits(row: RunRow, passed: set[StepPath]) -> list[Happening]:
    """Tell what the run awaits now; what it has gone past since it last let go is over.

    Not told here is what others tell: a child its own story, a fault that it waits for a signal.
    """
    if row.status.ended:
        return []
    return [
        Happening(wait.since, What.AWAITS, wait.path, wait.name, str(wait), awaited=wait)
        for wait in row.waits
        if wait.path not in passed and wait.kind in (WaitKind.SIGNAL, WaitKind.SLEEP)
    ]


# Backward -------------------------------------------------------------------------------------------------------


def _of_frame(frame: Frame) -> list[Happening]:
    if frame.compensator == stack.NOTHING and frame.settled_at is not None:
        return [Happening(frame.settled_at, What.FORGOTTEN, frame.path, frame.activity, frame.note or "")]
    name = frame.compensator if frame.child_id is None else f"child {frame.activity}"
    story = [Happening(frame.pushed_at, What.PUSHED, frame.path, name)]
    if frame.settled_at is not None and frame.state is FrameState.UNDONE:
        story.append(Happening(frame.settled_at, What.POPPED, frame.path, name, _called_with(frame)))
    elif frame.settled_at is not None:
        story.append(Happening(frame.settled_at, What.SETTLED, frame.path, name, frame.state.value))
    return story


def _called_with(frame: Frame) -> str:
    """The arguments of what was undone, which tell frames of one compensator apart; a child is told by its name."""
    return stored_to_text(frame.args) if frame.child_id is None else ""


# Trouble --------------------------------------------------------------------------------------------------------


#: When a constraint was asked, for people.
_WHEN = {
    On.ACTIVITY_PRE: "before it",
    On.ACTIVITY_POST: "after it",
    On.VIOLATED: "while it was executed",
    On.RUN_PRE: "before it begins",
    On.RUN_POST: "before it ends",
    On.ABORT: "after its worker was lost",
}
#: What is no failure, though there is no other try.
_NOT_FINAL = (Do.COMPLETE, Do.PROCEED, Do.REMOVE, Do.PARK)


def _of_fault(fault: Fault, plan: Plan | None) -> list[Happening]:
    if fault.kind is FaultKind.ABORT:
        unseen = "; nobody has seen what it did then, which may stand" if fault.state is FaultState.FINAL else ""
        aborted = Happening(fault.raised_at, What.ABORTED, None, fault.name, f"{fault.message}{unseen}")
        return [aborted, *_of_rule(fault, plan)]
    story = [Happening(fault.raised_at, What.FAULT, fault.path, fault.name, _spell_fault(fault))]
    if fault.kind is FaultKind.FLOW and fault.state is not FaultState.FINAL:
        return [Happening(fault.raised_at, What.PARKED, None, fault.name, str(fault))]
    if fault.decided_at is None:
        return story
    # Two clocks, the worker's and the database's: a decision is never told before its fault.
    at = max(fault.decided_at, fault.raised_at)
    story += _of_rule(fault, plan)
    if fault.level is not None or (fault.wait and read_ruling(fault).do is None):
        rung = "by its rule" if fault.level is None else f"level {fault.level}, try {fault.try_in_level}"
        told = f"{rung}: {fault.verdict}"
        wait = Happening(at, What.WAIT, fault.path, fault.name, told, fault.level, fault.wait, fault.queue)
        story.append(replace(wait, signal=fault.signal))
    elif fault.kind is FaultKind.COMPENSATOR:
        story.append(Happening(at, What.PARKED, fault.path, fault.name, _spell_parked(fault)))
    elif fault.state is FaultState.FINAL and read_ruling(fault).do not in _NOT_FINAL:
        story.append(Happening(at, What.FINAL, fault.path, fault.name, _spell_verdict(fault), queue=fault.queue))
    return story


def _spell_parked(fault: Fault) -> str:
    """Why a run is parked for a compensator; what went wrong in it is told by the fault before."""
    step = (fault.path or "").removesuffix("/undo")
    return f"compensator {fault.name!r} of step {step} failed{f': {fault.verdict}' if fault.verdict else ''}"


def _of_rule(fault: Fault, plan: Plan | None) -> list[Happening]:
    """Tell which exlet somebody's rule has chosen, how far it is, and what it has decided."""
    decision = taught(fault)
    if decision is None or fault.decided_at is None:
        return []
    at = max(fault.decided_at, fault.raised_at)
    told_below = fault.settled_at is not None and read_ruling(fault).do in (Do.PROCEED, Do.REMOVE, Do.FAIL)
    ruling = "" if told_below else spell_ruling(fault)
    parts = (spell_rule(decision), "" if plan is None else spell_progress(plan), ruling)
    told = f"by {'; '.join(part for part in parts if part)}"
    return [Happening(at, What.EXLET, fault.path, decision.exlet, told)]


def _spell_verdict(fault: Fault) -> str:
    """Why there is no other try; a rule that says so was told already."""
    decision = taught(fault)
    return "" if decision is not None and fault.verdict == decision.why else fault.verdict or ""


def _spell_fault(fault: Fault) -> str:
    """What went wrong; of a constraint, what the rule has asked."""
    decision = taught(fault) if fault.kind is FaultKind.CONSTRAINT else None
    if decision is None:
        return str(fault)
    return f"constraint {_WHEN.get(On(decision.on), decision.on)}: {decision.condition}"


def _of_end(row: RunRow, story: list[Happening]) -> list[Happening]:
    parked = row.status is Status.PARKED and all(happening.what is not What.PARKED for happening in story)
    at = row.updated_at if parked else row.ended_at
    if at is None:
        return []
    at = max([at, *(happening.at for happening in story if happening.path is not None)])
    if parked:
        return [Happening(at, What.PARKED, None, row.flow, row.reason or "")]
    return [Happening(at, What.ENDED, None, row.status.value, stored_to_text(row.result))]
