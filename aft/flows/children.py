"""Child flows: a flow that is called in a flow is a run of its own.

The child's id follows from its parent's and the step, so it is made once, however often the step is begun. Its parent
waits for it without holding anything; whoever ends the child tells the parent in the same transaction. What the child
has done is one frame of its parent's stack: undoing it means undoing the child, which is a run of its own then, too.

Rows are locked child first, parent second: the parent's owner sends orders to children in transactions of their own.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.errors import FlowCancelled
from aft.flows.asks import Ask, Landed, Raises, Returns
from aft.flows.calls import Call
from aft.flows.flow import Flow
from aft.flows.leaving import Awaits, Block, Leave
from aft.flows.steps import Stepper
from aft.ids import RunId, StepPath
from aft.runs import families, submit
from aft.runs.inbox import Verb
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.submit import NewRun
from aft.runs.waits import Wait, WaitKind
from aft.runs.waking import Post

#: Characters of an id that tell the time of its making.
TIME = 13
#: Who asks something of a child.
PARENT = "parent"


class Children:
    """The children of one run."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def ask(self, flow: Flow[Any, Any], call: Call[Any], path: StepPath, scope: str) -> Ask:
        """Make the step that starts a child and waits for its end."""
        stepper = self._stepper
        args = flow.arguments.encode(flow.arguments.bind(call.args, call.kwargs))
        child_id = _child_id(stepper.owner.run_id, stepper.key(path))

        def perform(landed: Landed | None) -> Entry:
            stepper.check_may_go_on()
            child = self._find(child_id)
            if child is None:
                child = self._start(flow, child_id, path, args)
            if child.ended_as is None:
                raise Leave(Awaits(self._wait(path, child.id)))
            return self._record(child, path, scope, args, landed)

        def read(entry: Entry) -> Returns | Raises:
            if entry.outcome is Outcome.OK:
                return Returns(flow.result.decode(entry.value or "null"))
            return Raises(FlowCancelled(f"child {child_id} of flow {flow.name!r} was cancelled", None))

        def was_begun() -> bool:
            return self._find(child_id) is not None

        return Ask(path, EntryKind.CHILD, flow.name, perform, read, quick=True, was_begun=was_begun)

    def _find(self, child_id: RunId) -> RunRow | None:
        namespace = self._stepper.tools.namespace
        return self._stepper.owner.read(lambda connection: families.find(connection, namespace, child_id))

    def _start(self, flow: Flow[Any, Any], child_id: RunId, path: StepPath, args: str) -> RunRow:
        tools, owner = self._stepper.tools, self._stepper.owner
        options, run = flow.run_options, owner.run
        new = NewRun(
            id=child_id,
            namespace=tools.namespace,
            flow=flow.name,
            version=flow.version,
            args=args,
            priority=options.priority or run.priority,
            owner=options.owner or run.owner,
            expected=options.expected,
            resources=options.resources,
            tags=options.tags,
            deadline=options.deadline,
            parent=(run.id, path, RunId(run.root_id)),
            after=options.after,
            at=options.at,
        )
        made: list[RunRow] = []

        def then(connection: Connection, seq: int) -> None:
            made[:] = [submit.enqueue(connection, new, tools.clock.now(), tools.grace)[0]]

        owner.write(then)
        return made[0]

    def _wait(self, path: StepPath, child_id: RunId) -> Wait:
        owner = self._stepper.owner
        known = next((wait for wait in owner.run.waits if wait.path == path), None)
        return known or owner.begin_wait(Wait(path, WaitKind.CHILD, child_id, self._stepper.mailbox.ask_now()))

    def _record(self, child: RunRow, path: StepPath, scope: str, args: str, landed: Landed | None) -> Entry:
        """Journal what a child has come to, and push its frame if there is anything to be undone in it."""
        owner, at = self._stepper.owner, self._stepper.tools.clock.now()
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
            key_generation=owner.run.key_generation,
        )

        def then(connection: Connection, seq: int) -> None:
            if child.ended_as is Status.FAILED or families.owes(connection, child.id):
                self._push(child, path, connection, seq)

        return self._stepper.record(entry, then, landed)

    # Backward -----------------------------------------------------------------------------------------------------

    def stop(self, under: str, *, undo: bool = True) -> None:
        """Stop children that have not ended, under a savepoint or all; with ``undo`` leave until they have."""
        owner, namespace = self._stepper.owner, self._stepper.tools.namespace
        running = owner.read(lambda connection: families.running(connection, namespace, owner.run_id, under))
        for child in running:
            self._order(child, Verb.CANCEL, {"compensate": undo})
        if running and undo:
            raise Leave(*(self._block(StepPath(child.parent_path or ""), child) for child in running))
        if undo:
            self._frame_unrecorded(under)

    def _frame_unrecorded(self, under: str) -> None:
        """Push frames of children that have ended without their parent having recorded it: they may owe something."""
        owner = self._stepper.owner
        for child in owner.read(lambda connection: families.unframed(connection, owner.run_id, under)):
            self._stepper.owner.forget_wait(child.parent_path or "")
            owner.write(partial(self._push, child, StepPath(child.parent_path or "")))

    def _push(self, child: RunRow, path: StepPath, connection: Connection, seq: int) -> None:
        """Push the frame of a child; one that could not be undone entirely leaves its parent so, too."""
        failed = child.ended_as in (Status.FAILED, Status.CANCELLED)
        stack.push_child(
            connection,
            self._stepper.owner.run_id,
            seq,
            path,
            path.rpartition(".")[0],
            child.flow,
            child.id,
            at=self._stepper.tools.clock.now(),
            state=FrameState.SKIPPED if failed else FrameState.OWED,
            note=_left_standing(child) if failed else None,
        )

    def undo(self, frame: Frame) -> None:
        """Have a completed child undone, and take its frame off; leaves until that has happened."""
        child = self._find(RunId(frame.child_id or ""))
        if child is None or child.ended_as is Status.COMPENSATED:
            self._take_off(frame, FrameState.UNDONE, None)
        elif child.ended_as in (Status.FAILED, Status.CANCELLED):
            self._take_off(frame, FrameState.SKIPPED, _left_standing(child))
        else:
            if child.ended_as is Status.COMPLETED:
                self._order(child, Verb.COMPENSATE, {})
            raise Leave(self._block(StepPath(f"{frame.path}/undo"), child))

    def _take_off(self, frame: Frame, state: FrameState, note: str | None) -> None:
        owner = self._stepper.owner
        owner.write(lambda connection, seq: stack.settle(connection, owner.run_id, frame.seq, state, note))
        self._stepper.owner.forget_wait(f"{frame.path}/undo")

    def _order(self, child: RunRow, verb: Verb, payload: dict[str, Any]) -> None:
        """Ask something of a child, once, in a transaction of its own."""
        tools = self._stepper.tools
        key = f"{PARENT}/{verb.value}/{self._stepper.owner.run_id}"
        post = Post(verb, payload, PARENT, tools.clock.now(), tools.grace, key)
        with tools.store.write() as connection:
            families.order(connection, tools.namespace, child.id, post)

    def _block(self, path: StepPath, child: RunRow) -> Block:
        wait = self._wait(path, child.id)
        return Awaits(wait, None if self._stepper.owner.run.status is Status.COMPENSATING else Status.WAITING)


def _left_standing(child: RunRow) -> str:
    """Why a child's effects stand though its parent is undone."""
    how = "could not be undone entirely" if child.ended_as is Status.FAILED else "was ended as it was, nothing undone"
    return f"child {child.id} {how}"


def _child_id(parent: RunId, key: str) -> RunId:
    """Make the id of a step's child: the same each time. It begins with its parent's time, so both are listed there."""
    return RunId(parent[:TIME] + str(uuid.uuid5(uuid.NAMESPACE_OID, key))[TIME:])
