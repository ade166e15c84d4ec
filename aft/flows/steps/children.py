"""Child flows: a flow that is called in a flow is a run of its own.

The child's id is derived from its parent's id and the step, so it is created once, however often the step begins. The
parent is released while it waits; the transaction that ends the child notifies the parent. The child's effects are one
frame of its parent's stack: undoing the frame means having the child run undo itself.

Rows are locked child first, parent second: the parent's owner sends orders to children in separate transactions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.errors import DefinitionError, FlowCancelled, ReplayDiverged
from aft.flows.course.divergence import check_arguments
from aft.flows.declare.calls import Call
from aft.flows.declare.flow import Flow
from aft.flows.session.blocks import Block, Blocked, WaitPending
from aft.flows.steps.request import OnRecorded, Raises, Returns, StepRequest
from aft.flows.steps.run_session import RunSession
from aft.ids import RunId, StepPath
from aft.runs import family_limits, run_rows, submit, waits
from aft.runs.family_limits import FamilySize
from aft.runs.new_runs import NewRun
from aft.runs.records.inbox import PUT_OFF, InboxItem, InboxVerb
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind
from aft.runs.wakes import child_runs
from aft.runs.wakes.wake import NewInboxItem

#: Characters of an id that encode its creation time.
TIME = 13
#: Children that a run begins before its family is measured again, at most.
MEASURE_EVERY = 100
#: One of so many of those that its family may still have: as many others may begin theirs at the same time.
SHARE = 1000
#: How long a run whose family is being cancelled waits before it checks again for its own order.
LOOK_AGAIN = timedelta(seconds=5)
#: The actor of a parent's orders to its child.
PARENT = "parent"


def refusal_of(item: InboxItem, why: str) -> tuple[InboxItem, str]:
    """Return the reply of a run that cannot be cancelled yet: a person is refused, a parent's order is postponed."""
    return item, PUT_OFF if item.actor == PARENT else f"refused: {why}"


class _ChildRows:
    """The rows of one run's children."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        #: The steps of this pass that may have a child whose end is not recorded, by the child's id.
        self._requested: dict[RunId, StepRequest] = {}
        #: Their children, read together and not used yet, and how far the inbox had been read then.
        self._read: dict[RunId, RunRow | None] = {}
        self._read_to = -1

    def add(self, child_id: RunId, step: StepRequest) -> None:
        """Note a step of this pass that may have a child."""
        self._requested[child_id] = step

    def take(self, child_id: RunId) -> RunRow | None:
        """Return a child, or None; it is read again the next time."""
        child = self.look_up(child_id)
        self._read.pop(child_id, None)
        return child

    def look_up(self, child_id: RunId) -> RunRow | None:
        """Return a child, or None; children of all steps without an outcome are read in one statement.

        They are read again when one is looked up a second time, and when the inbox has got something since: a notice of
        a child's end must not be passed over because the rows were read before it.
        """
        owner = self._session.owner
        if child_id not in self._read or self._read_to != owner.read_to:
            self._requested = {id: step for id, step in self._requested.items() if step.entry is None}
            self._read_to, ids = owner.read_to, [*self._requested]
            self._read = {**dict.fromkeys(ids), **{child.id: child for child in self.find_all(ids)}}
        return self._read[child_id]

    def find_all(self, ids: Sequence[RunId]) -> list[RunRow]:
        """Return these children, as they are now."""
        (found,) = self._session.owner.query([(child_runs.NAMED, json.dumps(ids))])
        return [run_rows.read_run(values) for values in found]

    def find(self, child_id: RunId) -> RunRow | None:
        """Return a child as it is now, or None."""
        namespace = self._session.deps.namespace
        return self._session.owner.read(lambda connection: child_runs.find_child(connection, namespace, child_id))


class _Family:
    """All runs with the same root, as large as it was when it was measured last."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._size: FamilySize | None = None
        #: The children that this run has begun since.
        self.begun = 0

    def may_begin(self, connection: Connection) -> bool:
        """Whether another child may start: not in a family that is being cancelled.

        Raises LimitExceeded if there are too many already; the nearer the limit is, the more often they are counted.
        """
        most, run = self._session.deps.limits, self._session.owner.run
        room = 0 if self._size is None else most.family - self._size.family
        if self._size is None or self.begun >= min(MEASURE_EVERY, max(1, room // SHARE)):
            self._size, self.begun = family_limits.measure(connection, run, most), 0
        family_limits.check(self._size, most, self.begun)
        return not self._size.is_cancelled


class Children:
    """Starts, awaits, stops and undoes the children of one run."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._rows = _ChildRows(session)
        self._family = _Family(session)

    def make_step(self, flow: Flow[Any, Any], call: Call[Any], path: StepPath, scope: str) -> StepRequest:
        """Make the step that starts a child and waits for its end; raises DefinitionError if it is given a key."""
        if flow.run_options.key is not None:
            raise DefinitionError(
                f"child flow {flow.name!r} was called with key={flow.run_options.key!r}, but a child is its parent's "
                "alone: give the key to the run that calls it, or start it with app.submit(…) in an activity"
            )
        session = self._session
        args, given = flow.arguments.encode_call(call.args, call.kwargs)
        child_id = child_of(session, path)

        def perform(on_recorded: OnRecorded | None) -> Entry:
            session.release_or_read_inbox()
            child = self._rows.take(child_id)
            if child is None:
                child = self._start(flow, child_id, path, args)
            else:
                _check_same(flow, child, path, args, given)
            if child.ended_as is None:
                raise Blocked(WaitPending(self._wait(path, child.id)))
            return self._record(child, path, scope, args, given, on_recorded)

        def read(entry: Entry) -> Returns | Raises:
            if entry.outcome is Outcome.OK:
                return Returns(flow.result.decode(entry.value or "null"))
            return Raises(FlowCancelled(f"child {child_id} of flow {flow.name!r} was cancelled", None))

        def was_begun() -> bool:
            return self._rows.look_up(child_id) is not None

        def stop() -> None:
            if (child := self._rows.find(child_id)) is not None and child.ended_as is None:
                self._order(child, InboxVerb.CANCEL, {"compensate": True})

        made = StepRequest(path, EntryKind.CHILD, flow.name, perform, read, quick=True, was_begun=was_begun, stop=stop)
        made.args, made.given, made.arguments = args, given, flow.arguments
        self._rows.add(child_id, made)
        return made

    def _start(self, flow: Flow[Any, Any], child_id: RunId, path: StepPath, args: str) -> RunRow:
        deps, owner = self._session.deps, self._session.owner
        options, run = flow.run_options, owner.run
        new = NewRun(
            id=child_id,
            namespace=deps.namespace,
            flow=flow.name,
            version=flow.version,
            args=args,
            options=replace(options, priority=options.priority or run.priority, owner=options.owner or run.owner),
            parent=(run.id, path, run.key_generation, RunId(run.root_id)),
        )
        made: list[RunRow] = []

        def then(connection: Connection, seq: int) -> None:
            if self._family.may_begin(connection):
                made[:] = [submit.enqueue(connection, new, deps.clock.now(), deps.grace)[0]]

        owner.write(then)
        if not made:
            # The order to stop is on its way down the family; the run checks again in case it is lost.
            raise Blocked(
                WaitPending(replace(self._wait(path, child_id), until=self._session.run_inbox.query_now() + LOOK_AGAIN))
            )
        self._family.begun += 1
        return made[0]

    def _wait(self, path: StepPath, child_id: RunId) -> Wait:
        owner = self._session.owner
        # The path alone is ambiguous: another child waited there, in an earlier generation or before an undo.
        known = next((wait for wait in owner.run.waits if (wait.path, wait.name) == (path, child_id)), None)
        return known or owner.begin_wait(Wait(path, WaitKind.CHILD, child_id, self._session.run_inbox.query_now()))

    def _record(
        self, child: RunRow, path: StepPath, scope: str, args: str, given: str, on_recorded: OnRecorded | None
    ) -> Entry:
        """Journal a child's end, and push its frame if there is anything to undo in it."""
        at = self._session.deps.clock.now()
        completed = child.ended_as is Status.COMPLETED
        entry = Entry(
            path=path,
            scope=scope,
            kind=EntryKind.CHILD,
            name=child.flow,
            outcome=Outcome.OK if completed else Outcome.FAILED,
            recorded_at=at,
            args=args,
            value=child.result if completed else None,
            fault_id=None if completed else child.fault_id,  # type: ignore[arg-type]
            key_generation=self._session.generation(path),
            asked=None if given == args else given,
        )

        def then(connection: Connection, seq: int) -> None:
            if child_runs.has_effects_left(connection, child):
                self._push(child, path, connection, seq, entry.key_generation)

        return self._session.record(entry, then, on_recorded)

    # Backward -----------------------------------------------------------------------------------------------------

    def stop(self, under: str, *, undo: bool = True) -> None:
        """Cancel children that have not ended, under a savepoint or all; with ``undo`` raise Blocked until they have.

        A child past its pivot is not stopped by undoing it: it gets a frame, which parks the unwinding when reached.
        """
        for child in self._running(under):
            self._order(child, InboxVerb.CANCEL, {"compensate": undo})
        if not undo:
            return
        # Read again: a child may have gone past its pivot before the order came.
        self._leave_until_ended(self._running(under))
        self._frame_unrecorded(under)

    def _running(self, under: str) -> list[RunRow]:
        owner, namespace = self._session.owner, self._session.deps.namespace
        generation = owner.run.key_generation
        return owner.read(lambda connection: child_runs.running(connection, namespace, owner.run_id, under, generation))

    def _leave_until_ended(self, running: Sequence[RunRow]) -> None:
        """Raise Blocked if any of these children is being undone; those past their pivot are not waited for."""
        stopping = [child for child in running if child.pivoted_at is None]
        if stopping:
            raise Blocked(*(self._block(StepPath(child.parent_path or ""), child) for child in stopping))

    def end_interrupted(self, paths: Sequence[StepPath]) -> None:
        """Cancel the children of interrupted steps, raise Blocked until they have ended, then push their frames.

        Each pass repeats it before the flow's code sees the interrupt, so a crash anywhere leaves the rest to the next.
        """
        owner = self._session.owner
        if not (ids := [child_of(self._session, path) for path in paths]):
            return
        for child in self._rows.find_all(ids):
            if child.ended_as is None:
                self._order(child, InboxVerb.CANCEL, {"compensate": True})
        # Read again: a child may have gone past its pivot before the order came.
        found = self._rows.find_all(ids)
        self._leave_until_ended([child for child in found if child.ended_as is None])
        for child in found:
            owner.remove_wait(child.parent_path or "")
        for child in owner.read(lambda connection: child_runs.unframed(connection, owner.run_id)):
            if child.id in ids:
                owner.write(partial(self._push, child, StepPath(child.parent_path or "")))

    def _frame_unrecorded(self, under: str) -> None:
        """Push frames of children whose end their parent has not recorded: they may owe an undo."""
        owner = self._session.owner
        generation = owner.run.key_generation
        for child in owner.read(lambda connection: child_runs.unframed(connection, owner.run_id, under, generation)):
            self._session.owner.remove_wait(child.parent_path or "")
            owner.write(partial(self._push, child, StepPath(child.parent_path or "")))

    def mark_children_not_undone(self) -> None:
        """Note which children of an undone run are not fully undone: a late effect was left in them.

        Each in its own transaction, repeated by every owner; a crash leaves the rest to the next one.
        """
        owner = self._session.owner
        self._frame_unrecorded("")
        for child in owner.read(lambda connection: child_runs.of(connection, owner.run_id)):
            if child.ended_as is Status.FAILED:
                owner.write(partial(_mark_not_undone, owner.run_id, child))

    def _push(
        self, child: RunRow, path: StepPath, connection: Connection, seq: int, generation: int | None = None
    ) -> None:
        """Push the frame of a child; as skipped if it failed or was cancelled: its parent is not fully undone either.

        ``generation`` is that of its step's journal entry, if there is one.
        """
        failed = child.ended_as in (Status.FAILED, Status.CANCELLED)
        stack.push_child(
            connection,
            self._session.owner.run_id,
            seq,
            path,
            path.rpartition(".")[0],
            child.flow,
            child.id,
            at=self._session.deps.clock.now(),
            key_generation=(child.parent_generation or 0) if generation is None else generation,
            after=(child.parent_seq, child.parent_inbox_seq),
            state=FrameState.SKIPPED if failed else FrameState.OWED,
            note=describe_remaining(child) if failed else None,
        )

    def undo(self, frame: Frame) -> str | None:
        """Have a completed child undone and pop its frame; raises Blocked until the child has ended.

        Returns why it cannot be undone, if it went past its pivot.
        """
        child = self._rows.find(RunId(frame.child_id or ""))
        if child is None:
            self._undo_frame(frame, FrameState.SKIPPED, f"child {frame.child_id} was deleted: nothing of it is undone")
        elif child.ended_as is Status.COMPENSATED:
            self._undo_frame(frame, FrameState.UNDONE, None)
        elif child.ended_as in (Status.FAILED, Status.CANCELLED):
            self._undo_frame(frame, FrameState.SKIPPED, describe_remaining(child))
        elif child.pivoted_at is not None:
            how = "completed" if child.ended_as is not None else "goes on"
            ends = ", and this run will end failed" if self._session.owner.run.cause is not None else ""
            return (
                f"child {child.id} of flow {child.flow!r} (step {frame.path}) has gone past its pivot and {how}: "
                f"it is not undone; `skip-frame` lets it stand{ends}"
            )
        else:
            if child.ended_as is Status.COMPLETED:
                self._order(child, InboxVerb.COMPENSATE, {})
            raise Blocked(self._block(StepPath(f"{frame.path}/undo"), child))
        return None

    def _undo_frame(self, frame: Frame, state: FrameState, note: str | None) -> None:
        """Pop a child's frame together with the wait for that child: a crash leaves both, or neither."""
        owner = self._session.owner
        owner.remove_wait(f"{frame.path}/undo")
        left = waits.encode(owner.run.waits)
        owner.write(
            lambda connection, seq: stack.pop_child_frame(connection, owner.run_id, frame.seq, state, note), waits=left
        )

    def _order(self, child: RunRow, verb: InboxVerb, payload: dict[str, Any]) -> None:
        """Send an order to a child, once (by its key), in a transaction of its own."""
        deps = self._session.deps
        key = f"{PARENT}/{verb.value}/{self._session.owner.run_id}"
        post = NewInboxItem(verb, payload, PARENT, deps.clock.now(), deps.grace, key)
        with deps.store.write() as connection:
            child_runs.order(connection, deps.namespace, child.id, post)

    def _block(self, path: StepPath, child: RunRow) -> Block:
        wait = self._wait(path, child.id)
        return WaitPending(wait, None if self._session.owner.run.status is Status.COMPENSATING else Status.WAITING)


def _check_same(flow: Flow[Any, Any], child: RunRow, path: StepPath, args: str, given: str) -> None:
    """Raise ReplayDiverged if the child that this step started is not the one that the code calls now."""
    if child.flow != flow.name:
        raise ReplayDiverged(
            f"step {path} has started flow {child.flow!r}, but the code now calls flow {flow.name!r} there; bring back "
            "code that matches, then retry"
        )
    if child.key_generation == 0:  # one that has continued as new has other arguments
        check_arguments(f"step {path}", f"child {flow.name!r}", flow.arguments, child.args, args, given=given)


def _mark_not_undone(run_id: RunId, child: RunRow, connection: Connection, seq: int) -> None:
    stack.mark_skipped(connection, run_id, child.id, describe_remaining(child))


def describe_remaining(child: RunRow) -> str:
    """Return why a child's effects remain although its parent is undone."""
    how = "could not be undone entirely" if child.ended_as is Status.FAILED else "was ended as it was, nothing undone"
    return f"child {child.id} {how}"


def child_of(session: RunSession, path: StepPath) -> RunId:
    """Return the id of a step's child: the same each time, until the step is undone and starts again.

    It begins with the time part of its parent's id, so that both sort together.
    """
    key = session.key(path)
    return RunId(session.owner.run_id[:TIME] + str(uuid.uuid5(uuid.NAMESPACE_OID, key))[TIME:])
