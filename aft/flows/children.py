"""Child flows: a flow that is called in a flow is a run of its own.

The child's id follows from its parent's and the step, so it is made once, however often the step is begun. Its parent
waits for it without holding anything; whoever ends the child tells the parent in the same transaction. What the child
has done is one frame of its parent's stack: undoing it means undoing the child, which is a run of its own then, too.

Rows are locked child first, parent second: the parent's owner sends orders to children in transactions of their own.
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
from aft.flows.asks import Ask, Landed, Raises, Returns
from aft.flows.calls import Call
from aft.flows.divergence import check_arguments
from aft.flows.flow import Flow
from aft.flows.leaving import Awaits, Block, Leave
from aft.flows.steps import Stepper
from aft.ids import RunId, StepPath
from aft.runs import families, limits, rows, submit, waits
from aft.runs.inbox import PUT_OFF, Letter, Verb
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.limits import FamilySize
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.submit import NewRun
from aft.runs.waits import Wait, WaitKind
from aft.runs.waking import Post

#: Characters of an id that tell the time of its making.
TIME = 13
#: Children that a run begins before its family is measured again.
MEASURE_EVERY = 100
#: How long a run whose family is being cancelled waits for its own order.
LOOK_AGAIN = timedelta(seconds=5)
#: Who asks something of a child.
PARENT = "parent"


def answer(letter: Letter, why: str) -> tuple[Letter, str]:
    """What a run answers that cannot be cancelled yet: a person is refused, a parent's order is carried out later."""
    return letter, PUT_OFF if letter.actor == PARENT else f"refused: {why}"


class Children:
    """The children of one run."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        #: The steps of this pass that may have a child whose end is not recorded, by the child's id.
        self._asked: dict[RunId, Ask] = {}
        #: Their children, read together and not looked at yet, and how far the inbox had been read then.
        self._read: dict[RunId, RunRow | None] = {}
        self._read_to = -1
        #: How large the family was when it was measured last, and how many children were begun since.
        self._family: FamilySize | None = None
        self._begun = 0

    def ask(self, flow: Flow[Any, Any], call: Call[Any], path: StepPath, scope: str) -> Ask:
        """Make the step that starts a child and waits for its end; raises DefinitionError if it is given a key."""
        if flow.run_options.key is not None:
            raise DefinitionError(
                f"child flow {flow.name!r} was called with key={flow.run_options.key!r}, but a child is its parent's "
                "alone: give the key to the run that calls it, or start it with app.submit(…) in an activity"
            )
        stepper = self._stepper
        args, given = flow.arguments.encode_call(call.args, call.kwargs)
        child_id = child_of(stepper, path)

        def perform(landed: Landed | None) -> Entry:
            stepper.check_may_go_on()
            child = self._look_up(child_id)
            self._read.pop(child_id, None)
            if child is None:
                child = self._start(flow, child_id, path, args)
            else:
                _check_same(flow, child, path, args, given)
            if child.ended_as is None:
                raise Leave(Awaits(self._wait(path, child.id)))
            return self._record(child, path, scope, args, given, landed)

        def read(entry: Entry) -> Returns | Raises:
            if entry.outcome is Outcome.OK:
                return Returns(flow.result.decode(entry.value or "null"))
            return Raises(FlowCancelled(f"child {child_id} of flow {flow.name!r} was cancelled", None))

        def was_begun() -> bool:
            return self._look_up(child_id) is not None

        def stop() -> None:
            if (child := self._find(child_id)) is not None and child.ended_as is None:
                self._order(child, Verb.CANCEL, {"compensate": True})

        made = Ask(path, EntryKind.CHILD, flow.name, perform, read, quick=True, was_begun=was_begun, stop=stop)
        made.args, made.given, made.arguments = args, given, flow.arguments
        self._asked[child_id] = made
        return made

    def _look_up(self, child_id: RunId) -> RunRow | None:
        """Return a child; those of all steps that have no outcome yet are read together, so that n cost one statement.

        They are read again when one is looked at a second time, and when something has come into the inbox since: what
        tells of a child's end that the rows do not show must not be passed over.
        """
        owner = self._stepper.owner
        if child_id not in self._read or self._read_to != owner.read_to:
            self._asked = {id: ask for id, ask in self._asked.items() if ask.entry is None}
            self._read_to, ids = owner.read_to, [*self._asked]
            self._read = {**dict.fromkeys(ids), **{child.id: child for child in self._find_all(ids)}}
        return self._read[child_id]

    def _find_all(self, ids: Sequence[RunId]) -> list[RunRow]:
        (found,) = self._stepper.owner.ask([(families.NAMED, json.dumps(ids))])
        return [rows.read(values) for values in found]

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
            parent=(run.id, path, run.key_generation, RunId(run.root_id)),
            after=options.after,
            at=options.at,
        )
        made: list[RunRow] = []

        def then(connection: Connection, seq: int) -> None:
            if self._may_begin(connection):
                made[:] = [submit.enqueue(connection, new, tools.clock.now(), tools.grace)[0]]

        owner.write(then)
        if not made:
            # The order to stop is on its way down the family; it is looked for again should it be lost.
            raise Leave(Awaits(replace(self._wait(path, child_id), until=self._stepper.mailbox.ask_now() + LOOK_AGAIN)))
        self._begun += 1
        return made[0]

    def _may_begin(self, connection: Connection) -> bool:
        """Tell whether another child may be begun: not in a family that is being cancelled.

        Raises LimitExceeded if there are too many already. They are counted now and then: a map would count each time
        what it has begun itself.
        """
        most, run = self._stepper.tools.limits, self._stepper.owner.run
        if self._family is None or self._begun >= MEASURE_EVERY:
            self._family, self._begun = limits.measure(connection, run, most), 0
        limits.check(self._family, most, self._begun)
        return not self._family.is_cancelled

    def _wait(self, path: StepPath, child_id: RunId) -> Wait:
        owner = self._stepper.owner
        # The path alone is also that of another child's wait: of an earlier generation, or of a step begun anew.
        known = next((wait for wait in owner.run.waits if (wait.path, wait.name) == (path, child_id)), None)
        return known or owner.begin_wait(Wait(path, WaitKind.CHILD, child_id, self._stepper.mailbox.ask_now()))

    def _record(self, child: RunRow, path: StepPath, scope: str, args: str, given: str, landed: Landed | None) -> Entry:
        """Journal what a child has come to, and push its frame if there is anything to be undone in it."""
        at = self._stepper.tools.clock.now()
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
            key_generation=self._stepper.generation(path),
            asked=None if given == args else given,
        )

        def then(connection: Connection, seq: int) -> None:
            if families.stands(connection, child):
                self._push(child, path, connection, seq, entry.key_generation)

        return self._stepper.record(entry, then, landed)

    # Backward -----------------------------------------------------------------------------------------------------

    def stop(self, under: str, *, undo: bool = True) -> None:
        """Stop children that have not ended, under a savepoint or all; with ``undo`` leave until they have.

        One past its pivot is not stopped by undoing it: it gets a frame, which parks the unwinding where it is met.
        """
        for child in self._running(under):
            self._order(child, Verb.CANCEL, {"compensate": undo})
        if not undo:
            return
        # Read again: a child may have gone past its pivot before the order came.
        self._leave_until_ended(self._running(under))
        self._frame_unrecorded(under)

    def _running(self, under: str) -> list[RunRow]:
        owner, namespace = self._stepper.owner, self._stepper.tools.namespace
        generation = owner.run.key_generation
        return owner.read(lambda connection: families.running(connection, namespace, owner.run_id, under, generation))

    def _leave_until_ended(self, running: Sequence[RunRow]) -> None:
        """Leave if any of these children is being undone; those past their pivot are not waited for."""
        stopping = [child for child in running if child.pivoted_at is None]
        if stopping:
            raise Leave(*(self._block(StepPath(child.parent_path or ""), child) for child in stopping))

    def end_interrupted(self, paths: Sequence[StepPath]) -> None:
        """Stop the children of interrupted steps and leave until they have ended; what they owe then is their frames'.

        Repeated by each pass, before the flow hears of the interrupt: a crash anywhere leaves the rest to the next.
        """
        owner = self._stepper.owner
        if not (ids := [child_of(self._stepper, path) for path in paths]):
            return
        for child in self._find_all(ids):
            if child.ended_as is None:
                self._order(child, Verb.CANCEL, {"compensate": True})
        # Read again: a child may have gone past its pivot before the order came.
        found = self._find_all(ids)
        self._leave_until_ended([child for child in found if child.ended_as is None])
        for child in found:
            owner.forget_wait(child.parent_path or "")
        for child in owner.read(lambda connection: families.unframed(connection, owner.run_id)):
            if child.id in ids:
                owner.write(partial(self._push, child, StepPath(child.parent_path or "")))

    def _frame_unrecorded(self, under: str) -> None:
        """Push frames of children that have ended without their parent having recorded it: they may owe something."""
        owner = self._stepper.owner
        generation = owner.run.key_generation
        for child in owner.read(lambda connection: families.unframed(connection, owner.run_id, under, generation)):
            self._stepper.owner.forget_wait(child.parent_path or "")
            owner.write(partial(self._push, child, StepPath(child.parent_path or "")))

    def note_standing(self) -> None:
        """Note which children of a run that was undone did not stay so: a late effect was let go in them.

        Each in a transaction of its own, repeated by whoever comes next; a crash leaves the rest to the next.
        """
        owner = self._stepper.owner
        self._frame_unrecorded("")
        for child in owner.read(lambda connection: families.of(connection, owner.run_id)):
            if child.ended_as is Status.FAILED:
                owner.write(partial(_let_stand, owner.run_id, child))

    def _push(
        self, child: RunRow, path: StepPath, connection: Connection, seq: int, generation: int | None = None
    ) -> None:
        """Push the frame of a child; one that could not be undone entirely leaves its parent so, too.

        ``generation`` is that of its step's entry in the journal, if there is one.
        """
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
            key_generation=(child.parent_generation or 0) if generation is None else generation,
            after=(child.parent_seq, child.parent_inbox_seq),
            state=FrameState.SKIPPED if failed else FrameState.OWED,
            note=left_standing(child) if failed else None,
        )

    def undo(self, frame: Frame) -> str | None:
        """Have a completed child undone, and take its frame off; leaves until that has happened.

        Returns why it cannot be undone, if it went past its pivot.
        """
        child = self._find(RunId(frame.child_id or ""))
        if child is None:
            self._take_off(frame, FrameState.SKIPPED, f"child {frame.child_id} was deleted: nothing of it is undone")
        elif child.ended_as is Status.COMPENSATED:
            self._take_off(frame, FrameState.UNDONE, None)
        elif child.ended_as in (Status.FAILED, Status.CANCELLED):
            self._take_off(frame, FrameState.SKIPPED, left_standing(child))
        elif child.pivoted_at is not None:
            how = "completed" if child.ended_as is not None else "goes on"
            ends = ", and this run will end failed" if self._stepper.owner.run.cause is not None else ""
            return (
                f"child {child.id} of flow {child.flow!r} (step {frame.path}) has gone past its pivot and {how}: "
                f"it is not undone; `skip-frame` lets it stand{ends}"
            )
        else:
            if child.ended_as is Status.COMPLETED:
                self._order(child, Verb.COMPENSATE, {})
            raise Leave(self._block(StepPath(f"{frame.path}/undo"), child))
        return None

    def _take_off(self, frame: Frame, state: FrameState, note: str | None) -> None:
        """Take a child's frame off, and with it the wait for that child: a crash leaves both, or neither."""
        owner = self._stepper.owner
        owner.forget_wait(f"{frame.path}/undo")
        left = waits.encode(owner.run.waits)
        owner.write(lambda connection, seq: stack.settle(connection, owner.run_id, frame.seq, state, note), waits=left)

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


def _check_same(flow: Flow[Any, Any], child: RunRow, path: StepPath, args: str, given: str) -> None:
    """Raise ReplayDiverged if a child that was started for this step is another one than the code calls now."""
    if child.flow != flow.name:
        raise ReplayDiverged(
            f"step {path} has started flow {child.flow!r}, but the code now calls flow {flow.name!r} there; bring back "
            "code that matches, then retry"
        )
    if child.key_generation == 0:  # one that has begun anew has given itself other arguments
        check_arguments(f"step {path}", f"child {flow.name!r}", flow.arguments, child.args, args, given=given)


def _let_stand(run_id: RunId, child: RunRow, connection: Connection, seq: int) -> None:
    stack.let_stand(connection, run_id, child.id, left_standing(child))


def left_standing(child: RunRow) -> str:
    """Why a child's effects stand though its parent is undone."""
    how = "could not be undone entirely" if child.ended_as is Status.FAILED else "was ended as it was, nothing undone"
    return f"child {child.id} {how}"


def child_of(stepper: Stepper, path: StepPath) -> RunId:
    """Tell the id of a step's child: the same each time, until the step is begun anew.

    It begins with its parent's time, so both are listed there.
    """
    key = stepper.key(path)
    return RunId(stepper.owner.run_id[:TIME] + str(uuid.uuid5(uuid.NAMESPACE_OID, key))[TIME:])
