"""One pass of a flow's code over its journal: recorded outcomes are returned, new steps are executed.

The flow's own thread is the only one here. Steps are numbered as the code asks for them: "1", "2", and "2.1" for the
first step under savepoint 2, in branch 2, or for the first call of parallel step 2; so a replay that takes the same way
finds each outcome under the same path.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from aft.codec import ValueCodec, value_codec
from aft.errors import CodecError, DefinitionError, ReplayDiverged
from aft.fault import FaultKind, FaultState
from aft.flows import context, failures
from aft.flows.activity import Activity
from aft.flows.asks import Ask, Landed, Raises, Returns
from aft.flows.calls import Call
from aft.flows.context import Current
from aft.flows.declaring import MOST_NAME
from aft.flows.failures import Place
from aft.flows.flow import Flow, declared_signal
from aft.flows.leaving import HasMail, Leave, Lost, NewMail, Parks
from aft.flows.loop import FlowLoop, foreign_awaitable, running_on
from aft.flows.policy import Policy
from aft.flows.settling import Settler
from aft.flows.steps import Stepper
from aft.flows.unwind import unwind
from aft.flows.waiting import Waiting
from aft.ids import StepPath
from aft.runs import faults
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status


@dataclass(slots=True)
class Scope:
    """A savepoint, a branch, or the flow itself: numbers the steps directly under it."""

    path: str
    count: int = 0

    def next(self) -> StepPath:
        self.count += 1
        return StepPath(f"{self.path}.{self.count}" if self.path else str(self.count))


#: Where the code that is running now takes its numbers from: each task of an async flow has its own.
_scope: ContextVar[Scope] = ContextVar("aft_scope")


class Execution:
    """A flow being executed for its run's owner; what the flow's code may ask of the engine is here."""

    def __init__(self, stepper: Stepper, flow: Flow[Any, Any], entries: list[Entry]) -> None:
        self._stepper = stepper
        self._run = stepper.owner.run
        self._flow = flow
        self._settler = Settler(stepper, entries, self._parking)
        self._waiting = Waiting(stepper)
        self._leaving: Leave | None = None
        self._unawaited: set[Call[Any]] = set()
        self._now = self._run.started_at or self._run.created_at
        self._uuids = 0
        self._random: random.Random | None = None

    # Running ----------------------------------------------------------------------------------------------------

    def play(self) -> Any:
        """Run the flow's code and return its result; raises Leave, or what the code raised."""
        args, kwargs = self._flow.arguments.call_arguments(self._flow.arguments.decode(self._run.args))
        token = _scope.set(Scope(""))
        try:
            with context.in_flow(self):
                if self._flow.is_async:
                    return self._checked(self._drive(self._flow.fn(*args, **kwargs)))
                return self._checked(self._flow.fn(*args, **kwargs))
        finally:
            _scope.reset(token)
            self._land()

    def _checked(self, value: Any) -> Any:
        self.check_leaving()  # the flow's code may have swallowed it
        for call in self._unawaited:
            raise DefinitionError(f"{call} was called but never awaited; write `await {call.name}(…)`")
        self.check_spent("the flow returned")
        return value

    def _land(self) -> None:
        """Wait for branches that are still at work; what keeps them from going on keeps the run, too."""
        blocks = self._settler.land_all()
        if self._leaving is not None:
            known = {id(block) for block in self._leaving.blocks}
            self._leaving.blocks = [*self._leaving.blocks, *(block for block in blocks if id(block) not in known)]

    def check_spent(self, now: str) -> None:
        """Park if the journal holds what the code did not ask for."""
        try:
            self._settler.replay.check_spent(now)
        except ReplayDiverged as error:
            self.park(error)

    def park(self, error: BaseException) -> NoReturn:
        """Stop the run for a person, because its code cannot go on; always leaves."""
        self._leave(Leave(self._parking(error)))

    def _parking(self, error: BaseException) -> Parks:
        owner, tools = self._stepper.owner, self._stepper.tools
        place = Place(owner.run_id, owner.epoch, None, FaultKind.FLOW, self._flow.name)
        fault = failures.describe(error, place, Policy(), tools.ladder, tools.clock.now(), state=FaultState.PARKED)
        reason = f"{fault.short_type}: {fault.message}" if fault.message else fault.short_type
        return Parks(reason, fault, self._stepper.standing.replaced())

    def _leave(self, leave: Leave) -> NoReturn:
        self._leaving = leave
        raise leave

    def check_leaving(self) -> None:
        """Leave, if the run is leaving, whatever the flow's code has made of that."""
        if self._leaving is not None:
            raise self._leaving

    # An async flow ------------------------------------------------------------------------------------------------

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an async flow: its tasks go on until all await something, then the next outcome is handed out."""
        loop = FlowLoop(self._branch_context)  # type: ignore[abstract]  # abstract for type checkers only
        with running_on(loop):
            main = loop.run_main(coroutine)
            try:
                self._run_until(loop, main)
                self._end_tasks(loop)
                return _result(main)
            except Leave as leave:
                self._leaving = leave
                raise
            finally:
                self._close(loop, main)

    def _run_until(self, loop: FlowLoop, main: asyncio.Task[Any]) -> None:
        loop.run_ready()
        while not main.done():
            self.check_leaving()
            if (ask := self._settler.next()) is None:
                raise foreign_awaitable("what aft knows nothing of")
            self._hand_out(ask)
            loop.run_ready()
        self.check_leaving()

    def _hand_out(self, ask: Ask) -> None:
        outcome = self._outcome(ask)
        if ask.future is None or ask.future.done():
            return  # nobody waits for it any more
        if isinstance(outcome, Raises):
            ask.future.set_exception(outcome.error)
        else:
            ask.future.set_result(outcome.value)

    def _end_tasks(self, loop: FlowLoop) -> None:
        """The flow has come to its end: what it began beside is cancelled, but steps with effects come to theirs."""
        while True:
            for task in loop.tasks:
                task.cancel()
            loop.run_ready()
            for path in [path for path, ask in self._settler.pending.items() if not ask.needed]:
                del self._settler.pending[path]
            if not self._settler.pending:
                return
            if (ask := self._settler.next()) is not None:
                self._hand_out(ask)

    def _close(self, loop: FlowLoop, main: asyncio.Task[Any]) -> None:
        """Let every task see that the run leaves, here, where its code still counts as the flow's."""
        if self._leaving is not None:
            for ask in self._settler.pending.values():
                if ask.future is not None and not ask.future.done():
                    ask.future.set_exception(self._leaving)
        for task in (main, *loop.tasks):
            if not task.done():
                task.cancel()
        loop.run_ready()
        for task in (main, *loop.tasks):
            if task.done() and not task.cancelled():
                task.exception()  # looked at: asyncio would complain otherwise

    def _branch_context(self) -> contextvars.Context:
        """The context of a new task: it takes its numbers under a number of its own."""
        here = contextvars.copy_context()
        here.run(_scope.set, Scope(_scope.get().next()))
        return here

    def awaited(self, call: Call[Any]) -> Generator[Any, Any, Any]:
        self.check_leaving()
        self._unawaited.discard(call)
        ask = self._ask(call)
        loop = asyncio.get_running_loop()
        if not isinstance(loop, FlowLoop):
            raise foreign_awaitable(f"{call} on another event loop")
        ask.future = loop.create_future()
        self._settler.pending[ask.path] = ask
        return (yield from ask.future)

    # What the flow's code may ask --------------------------------------------------------------------------------

    def current(self) -> Current:
        return Current(run_id=self._run.id, key=self._stepper.key("flow"), attempt=1, epoch=self._run.epoch)

    def now(self) -> datetime:
        self.check_leaving()
        return self._now

    def uuid(self) -> uuid.UUID:
        self.check_leaving()
        self._uuids += 1
        return uuid.uuid5(uuid.NAMESPACE_OID, self._stepper.key(f"uuid/{self._uuids}"))

    def random(self) -> random.Random:
        self.check_leaving()
        if self._random is None:
            self._random = random.Random(self._stepper.key("random"))
        return self._random

    def signal_codec(self, name: str, annotation: Any) -> ValueCodec:
        """How a signal's value is read: as the wait says, or as the flow declares it."""
        declared = self._flow.signals
        if declared and annotation is Any:
            return declared_signal(self._flow.name, declared, name)
        return value_codec(annotation)

    def call(self, call: Call[Any]) -> Any:
        self.check_leaving()
        if self._flow.is_async and call.is_async:
            self._unawaited.add(call)
            return call
        return self._settle([self._ask(call)])[0]

    def parallel(self, calls: Sequence[Call[Any]], most: int | None) -> Any:
        self.check_leaving()
        inner = Scope(_scope.get().next())
        self._stepper.widths[inner.path] = len(calls)
        return self._settle([self._ask(call, inner) for call in calls], most)

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        self.check_leaving()
        name = name[:MOST_NAME]
        outer = _scope.get()
        path = outer.next()
        token = _scope.set(Scope(path))
        failure: BaseException | None = None
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            failure = error
        finally:
            _scope.reset(token)
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            self._undo_scope(path, outer.path, name, failure)
            raise failure

    # Steps ------------------------------------------------------------------------------------------------------

    def _ask(self, call: Call[Any], scope: Scope | None = None) -> Ask:
        """Number a step; raises CodecError for arguments that cannot be stored, before anything has happened."""
        scope = scope or _scope.get()
        target = call.target
        if isinstance(target, Activity):
            encoded = target.arguments.encode(target.arguments.bind(call.args, call.kwargs))
            return self._activity(target, scope.next(), scope.path, encoded)
        return self._waiting.ask(call, scope.next(), scope.path)

    def _activity(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str) -> Ask:
        def perform(landed: Landed | None) -> Entry:
            fault = self._stepper.standing.final_fault(path)
            if fault is not None and fault.name != activity.name:
                raise ReplayDiverged(
                    f"step {path} is activity {fault.name!r}, which failed for good, but the code now calls "
                    f"{activity.name!r} there; bring back code that matches, then retry"
                )
            if fault is not None:
                return self._stepper.record_failure(activity, path, scope, args, fault, landed)
            return self._stepper.execute(activity, path, scope, args, landed)

        def read(entry: Entry) -> Returns | Raises:
            if entry.outcome is Outcome.OK:
                return Returns(activity.result.decode(entry.value or "null"))
            failure = self._failure(entry)
            self._undo_armed(path, failure)
            return Raises(failure)

        return Ask(path, EntryKind.ACTIVITY, activity.name, perform, read)

    def _settle(self, asks: Sequence[Ask], most: int | None = None) -> list[Any]:
        """Return what each step has come to; the first failure is raised, as its own class, when all have ended."""
        try:
            self._settler.settle(asks, most)
        except Leave as leave:
            self._leave(leave)
        ended = [(ask.entry.seq, place) for place, ask in enumerate(asks) if ask.entry is not None]
        outcomes = {asks[place].path: self._outcome(asks[place]) for _, place in sorted(ended)}
        for outcome in outcomes.values():
            if isinstance(outcome, Raises):
                raise outcome.error
        return [outcome.value for ask in asks if isinstance(outcome := outcomes[ask.path], Returns)]

    def _outcome(self, ask: Ask) -> Returns | Raises:
        """What an outcome is for the flow's code."""
        assert ask.entry is not None
        self._now = ask.entry.recorded_at
        try:
            return ask.read(ask.entry)
        except Leave as leave:
            self._leave(leave)
        except NewMail:
            self._leave(Leave(HasMail()))
        except (CodecError, ReplayDiverged) as error:
            self.park(error)
        except BaseException as error:
            self._leave(Leave(Lost(error)))

    def _undo_armed(self, path: StepPath, failure: Exception) -> None:
        """Undo a started activity that failed for good, before the flow hears of it and may take another way."""
        if path in self._stepper.standing.armed:
            unwind(self._stepper, failures.fault_of(failure), Status.RECOVERING, path=path)

    def _failure(self, entry: Entry) -> Exception:
        tools, owner = self._stepper.tools, self._stepper.owner
        fault = owner.read(lambda connection: faults.get(connection, tools.namespace, entry.fault_id or ""))
        if fault is None:
            raise AssertionError(f"fault {entry.fault_id} of step {entry.path} is gone")
        return failures.rebuild(fault)

    def _undo_scope(self, path: StepPath, scope: str, name: str, error: BaseException) -> None:
        """Unwind what was pushed under a savepoint, once; a mistake of the flow's code undoes nothing, and parks."""
        self.check_leaving()
        if must_park(error):
            self.park(error)
        replay = self._settler.replay
        if replay.peek(path, EntryKind.SAVEPOINT) is not None:
            return
        try:
            self._settler.settle_under(path)
            what = f"the code now leaves savepoint {name or path!r} with {type(error).__name__}"
            replay.check_spent(what, self._settler.pending)
            unwind(self._stepper, failures.fault_of(error), Status.RECOVERING, scope=path)
            self._stepper.record_undone(path, scope, name)
        except Leave as leave:
            self._leave(leave)
        except NewMail:
            self._leave(Leave(HasMail()))
        except ReplayDiverged as diverged:
            self.park(diverged)
        except BaseException as lost:
            self._leave(Leave(Lost(lost)))


def _result(main: asyncio.Task[Any]) -> Any:
    """What an async flow returned or raised; asyncio's own refusals are told in aft's words."""
    try:
        return main.result()
    except RuntimeError as error:
        text = str(error)
        if failures.fault_of(error) is None and ("got bad yield" in text or "attached to a different loop" in text):
            raise foreign_awaitable(text) from error
        raise


def _is_refusal(error: BaseException) -> bool:
    """Tell whether aft itself refused what the flow's code did."""
    return isinstance(error, CodecError | DefinitionError) and failures.fault_of(error) is None


def must_park(error: BaseException) -> bool:
    """Tell whether what left a flow's code is a mistake in that code: after the fix, retry replays."""
    if isinstance(error, BaseExceptionGroup):
        return any(must_park(one) for one in error.exceptions)
    return failures.is_bug(error) or _is_refusal(error)
