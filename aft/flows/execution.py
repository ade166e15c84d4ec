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
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from aft.codec import ValueCodec, value_codec
from aft.errors import CodecError, DefinitionError, ReplayDiverged, is_a, is_interrupt
from aft.fault import FaultKind, FaultState
from aft.flows import context, failures, marks, ruled
from aft.flows.absent import FAILED, REMOVED
from aft.flows.activity import Activity
from aft.flows.asks import Ask, Landed, Raises, Returns
from aft.flows.calls import Call
from aft.flows.chance import Chance
from aft.flows.closing import LeftOpen, is_closing
from aft.flows.context import Current
from aft.flows.declaring import MOST_NAME
from aft.flows.driving import Driver
from aft.flows.failures import FaultSite
from aft.flows.flow import Flow, declared_signal
from aft.flows.flow_loop import FlowLoop, foreign_awaitable, running_on
from aft.flows.forks import Home
from aft.flows.forward import NOT_EXECUTED, Forward
from aft.flows.leaving import CONTROL_FLOW, Anew, BranchRemoved, HasMail, Leave, NewMail, Parks, WriteFailed
from aft.flows.marks import Pivot
from aft.flows.patches import Patches, was_begun
from aft.flows.policy import Policy
from aft.flows.renewal import Renewal
from aft.flows.scopes import Scope, find_scope, in_scope, strayed
from aft.flows.settling import Settler
from aft.flows.steps import Stepper
from aft.flows.unwind import undo_failed, undo_late, undo_strayed, unwind
from aft.flows.waiting import Waiting
from aft.flows.whole import Whole
from aft.ids import StepPath
from aft.rules.kinds import On
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status

T = TypeVar("T")


class Execution:
    """A flow being executed for its run's owner; what the flow's code may ask of the engine is here."""

    def __init__(self, stepper: Stepper, flow: Flow[Any, Any], entries: list[Entry]) -> None:
        self._home = Home()
        self._stepper = stepper
        self._run = stepper.owner.run
        self._flow = flow
        self._settler = Settler(stepper, entries, self._parking)
        self._inside = stepper.owner.savepoints = {}  # the code enters them again
        self._forward = Forward(stepper)
        self._whole = Whole(stepper, self._settler.replay.rules, begins=not entries and not was_begun(stepper))
        self._waiting = Waiting(stepper)
        self._leaving: Leave | None = None
        self._renewal = Renewal()
        self._loop: FlowLoop | None = None
        self._unawaited: set[Call[Any]] = set()
        self._now, self._heard = self._run.started_at or self._run.created_at, 0
        self._patches = Patches(stepper, self._settler)
        self._chance = Chance(stepper.key)

    # Running ----------------------------------------------------------------------------------------------------

    def play(self) -> Any:
        """Run the flow's code and return its result; raises Leave, or what the code raised."""
        args, kwargs = self._flow.arguments.call_arguments(self._flow.arguments.decode(self._run.args))
        token, course = in_scope.set(Scope("")), self._stepper.course
        try:
            self._check_whole(On.RUN_PRE)
            with context.in_flow(self), self._home, LeftOpen(course.tell_met, self._leave_for_mistake) as left_open:
                made = self._flow.fn(*args, **kwargs)
                result = self._drive(made) if self._flow.is_async else made
                left_open.close()
                return self._checked(result)
        except Anew:
            self.check_leaving()  # what tidies up may have to wait
            self.check_spent("the flow now begins anew")
            raise
        finally:
            in_scope.reset(token)
            self._land()

    def _leave_for_mistake(self, error: BaseException) -> None:
        """Let the run leave if its code ends by a mistake: what is closed after that executes no step."""
        if self._leaving is None and failures.must_park(error):
            self._leaving = Leave(self._parking(failures.explain_exit(error)))

    def check_end(self, result: str) -> None:
        """Leave, or raise, if the rules object to how the run is about to end."""
        self._check_whole(On.RUN_POST, result)

    def _check_whole(self, on: On, result: str | None = None) -> None:
        """Leave if the rules object to the run as a whole; raises what an exlet has it fail with."""
        entry = self._guarded(lambda: self._whole.check(on, result))
        if entry is not None and entry.outcome is Outcome.FAILED:
            raise self._guarded(lambda: self._stepper.find_failure(entry))

    def _checked(self, value: Any) -> Any:
        self._check_call()  # the flow's code may have swallowed it
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

    def check_anew(self, error: BaseException) -> None:
        """Begin anew, if that is all that the flow's code has raised."""
        self._renewal.check_raised(error)

    def check_spent(self, now: str) -> None:
        """Park if the journal holds what the code did not ask for."""
        try:
            self._settler.replay.check_spent(now)
            self._stepper.standing.begun.check_asked(now, self._stepper.course.was_asked)
        except ReplayDiverged as error:
            self.park(error)

    def park(self, error: BaseException) -> NoReturn:
        """Stop the run for a person, because its code cannot go on."""
        self._leaving = Leave(self._parking(error))
        raise self._leaving

    def _parking(self, error: BaseException) -> Parks:
        owner, tools = self._stepper.owner, self._stepper.tools
        place = FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, self._flow.name)
        fault = failures.describe(error, place, Policy(), tools.ladder, tools.clock.now(), state=FaultState.PARKED)
        reason = f"{fault.short_type}: {fault.message}" if fault.message else fault.short_type
        return Parks(reason, fault, mistake=error)

    def _leave(self, leave: Leave) -> NoReturn:
        """Leave, from where the flow's code called."""
        self._leaving = leave
        if is_closing():
            leave.__context__ = None
            raise GeneratorExit
        raise leave

    def check_leaving(self) -> None:
        """Leave, if the run is leaving, whatever the flow's code has made of that."""
        self._home.check()
        if self._leaving is not None:
            raise self._leaving

    def _check_call(self) -> None:
        """Let no step begin where the code has swallowed the run's leave, or its new beginning."""
        self._home.check()
        if self._leaving is not None:
            self._leave(self._leaving)
        self._renewal.check_swallowed()

    # An async flow ------------------------------------------------------------------------------------------------

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = self._loop = self._renewal.loop = FlowLoop(self._branch)  # type: ignore[abstract]  # abstract for type checkers only
        self._stepper.course.watch(loop)
        with running_on(loop), loop.closing_generators():
            driver = Driver(loop, loop.run_main(coroutine), self._settler, self._outcome, self._stepper.course.hand_out)
            try:
                return driver.drive(self.check_leaving, self.park)
            except BaseException as error:
                self._leaving = error if is_a(error, Leave) else self._leaving
                self._leave_for_mistake(error)
                raise
            finally:
                driver.close(self._leaving)

    def _branch(self, given: contextvars.Context | None) -> tuple[str, contextvars.Context]:
        """The number of a new task, and its context, a copy of what is given: it takes its numbers under that one."""
        here, path = contextvars.copy_context() if given is None else given.copy(), find_scope().next()
        here.run(in_scope.set, Scope(path))
        self._stepper.course.ask(path)
        self._stepper.branches.add(path)
        return path, here

    def _cancel_under(self, path: StepPath) -> None:
        """Cancel tasks that were begun under a savepoint: what they had done is undone, now or in an earlier pass."""
        for task in self._loop.tasks if self._loop is not None else ():
            if task.branch.startswith(f"{path}.") and not task.closes:
                task.cancel()

    def awaited(self, call: Call[Any]) -> Generator[Any, Any, Any]:
        self._check_call()
        self._unawaited.discard(call)
        ask = self._ask(call)
        if not isinstance(loop := asyncio.get_running_loop(), FlowLoop):
            raise foreign_awaitable(f"{call} on another event loop")
        ask.future = future = loop.create_step_future(ask.needed)
        self._settler.pending[ask.path] = ask
        return (yield from future)

    # What the flow's code may ask --------------------------------------------------------------------------------

    def current(self) -> Current:
        return Current(run_id=self._run.id, key=self._stepper.key("flow"), attempt=1, epoch=self._run.epoch)

    def now(self) -> datetime:
        self._check_call()
        return self._now

    def uuid(self) -> uuid.UUID:
        self._check_call()
        return self._chance.uuid()

    def random(self) -> random.Random:
        self._check_call()
        return self._chance.random()

    def signal_codec(self, name: str, annotation: Any) -> ValueCodec:
        """How a signal's value is read: as the wait says, or as the flow declares it."""
        if annotation is Any and (declared := self._flow.signals):
            return declared_signal(self._flow.name, declared, name)
        return value_codec(annotation)

    def call(self, call: Call[Any]) -> Any:
        self._check_call()
        if self._flow.is_async and call.is_async:
            self._unawaited.add(call)
            return call
        return self._settle([self._ask(call)])[0]

    def patched(self, change: str) -> bool:
        self._check_call()
        return self._guarded(lambda: self._patches.has(change, self._heard))

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        self._check_call()
        self._renewal.begin(self._flow.arguments.encode(self._flow.arguments.bind(args, kwargs)))

    def parallel(self, calls: Sequence[Call[Any]], most: int | None) -> Any:
        self._check_call()
        inner = Scope(find_scope().next())
        self._stepper.widths[inner.path] = len(calls)
        if most is not None:
            self._stepper.limits[inner.path] = most
        return self._settle([self._ask(call, inner) for call in calls], most)

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        self._check_call()
        name = name[:MOST_NAME]
        outer = find_scope()
        inner = Scope(path := outer.next(), outer=outer)
        in_scope.set(inner)
        failure: BaseException | None = None
        # Left open when the run leaves: it is in it, and comes back to it.
        self._inside[path] = name
        self._stepper.owner.entered[path] = self._heard
        try:
            yield
            self._check_call()  # swallowed in the block: then the run is in it still
            del self._inside[path]
        except (*CONTROL_FLOW, GeneratorExit) as error:
            if self._leaving is None and is_a(error, GeneratorExit):
                del self._inside[path]  # the generator that it is in was left
            raise
        except BaseException as error:
            if is_interrupt(error) or self._renewal.is_all_of(error):
                raise
            failure = error if find_scope() is inner else strayed(name, path)
        finally:
            inner.was_left = True
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            self._undo_scope(path, outer.path, name, failure)
            del self._inside[path]
            raise failure

    # Steps ------------------------------------------------------------------------------------------------------

    def _ask(self, call: Call[Any], scope: Scope | None = None) -> Ask:
        """Number a step; raises CodecError for arguments that cannot be stored, before anything has happened."""
        scope, target = scope or find_scope(), call.target
        if isinstance(target, Activity):
            args, given = target.arguments.encode_call(call.args, call.kwargs)
            made = self._activity(target, scope.next(), scope.path, args, given)
        elif isinstance(target, Pivot):
            made = marks.pivot(self._stepper, scope.next(), scope.path)
        else:
            made = self._waiting.ask(call, scope.next(), scope.path)
        self._settler.interrupts.meet(made, *self._stepper.course.ask(made.path))
        self._renewal.note(made)
        return made

    def _activity(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str, given: str) -> Ask:
        def perform(landed: Landed | None) -> Entry:
            return ruled.perform(self._forward, activity, path, scope, args, given, landed)

        def read(entry: Entry) -> Returns:
            return Returns(activity.result.decode(entry.value or "null"))

        ask = Ask(path, EntryKind.ACTIVITY, activity.name, perform, read)
        ask.args, ask.given, ask.arguments = args, given, activity.arguments
        ask.undoable, ask.is_traced = activity.compensator is not None, activity.is_traced
        ask.was_begun = lambda: self._stepper.standing.was_begun(path)
        return ask

    def _settle(self, asks: Sequence[Ask], most: int | None = None) -> list[Any]:
        """Return what each step has come to; the first failure is raised, as its own class, when all have ended."""
        try:
            self._settler.settle(asks, most)
        except Leave as leave:
            self._leave(leave)
        self._guarded(lambda: self._end_interrupted(asks))
        ended = [(ask.entry.seq, place) for place, ask in enumerate(asks) if ask.entry is not None]
        outcomes = {asks[place].path: self._outcome(asks[place]) for _, place in sorted(ended)}
        if failed := [outcome for outcome in outcomes.values() if isinstance(outcome, Raises)]:
            raise failed[0].error
        return [outcome.value for ask in asks if isinstance(outcome := outcomes[ask.path], Returns)]

    def _outcome(self, ask: Ask) -> Returns | Raises:
        """What an outcome is for the flow's code."""
        entry = ask.entry
        assert entry is not None
        self._now, self._heard = entry.recorded_at, entry.seq
        outcome = self._guarded(lambda: self._read(ask, entry))
        if ask.is_dropped:
            self._stepper.course.drop(ask.path)
        elif isinstance(outcome, Raises):
            self._renewal.fail(ask)
            self._stepper.course.hear(outcome.error, ask.path)
        return outcome

    def _read(self, ask: Ask, entry: Entry) -> Returns | Raises:
        if entry.fault_id is None:
            if entry.key_generation == NOT_EXECUTED:
                undo_late(self._stepper, None)  # a rule has given its result
            undo_strayed(self._stepper, ask.path)
            return ask.read(entry)
        failure = self._stepper.find_failure(entry)
        undo_failed(self._stepper, ask.path, failures.fault_of(failure))
        if entry.interrupt is not None and ask.kind is EntryKind.CHILD:
            self._end_interrupted([ask])
            unwind(self._stepper, failures.fault_of(failure), Status.RECOVERING, path=ask.path)
        if entry.outcome is Outcome.PROCEED:
            return Returns(FAILED)
        if entry.outcome is Outcome.REMOVED:
            return Raises(BranchRemoved()) if ask.future is not None else Returns(REMOVED)
        return Raises(failure)

    def _guarded(self, engine: Callable[[], T]) -> T:
        """Do something of the engine's own: whatever keeps it from being done makes the run leave."""
        try:
            return engine()
        except Leave as leave:
            self._leave(leave)
        except NewMail:
            self._leave(Leave(HasMail()))
        except (CodecError, ReplayDiverged) as error:
            self._leave(Leave(self._parking(error)))
        except BaseException as error:
            # Ctrl-C, or a defect of aft: the flow's code must not go on as if this were its own failure.
            self._leave(Leave(WriteFailed(error)))

    def _end_interrupted(self, asks: Iterable[Ask]) -> None:
        """Stop children of steps that were interrupted; leaves until they have ended."""
        found = [(ask.path, ask.entry) for ask in asks if ask.kind is EntryKind.CHILD]
        self._waiting.children.end_interrupted([path for path, entry in found if entry and entry.interrupt is not None])

    def _undo_scope(self, path: StepPath, scope: str, name: str, error: BaseException) -> None:
        """Unwind what was pushed under a savepoint, once; a mistake of the flow's code undoes nothing, and parks."""
        self._check_call()
        if failures.must_park(error):
            self.park(error)
        self._stepper.course.leave(error, path)

        def undo() -> None:
            self._cancel_under(path)
            self._settler.settle_under(path)
            self._stepper.undone[path] = failures.fault_of(error)
            if self._settler.replay.peek(path, EntryKind.SAVEPOINT) is not None:
                return
            what = f"the code now leaves savepoint {name or path!r} with {type(error).__name__}"
            self._settler.check_spent(what, path, self._settler.pending)
            self._settler.see_pending()
            undo_late(self._stepper, failures.fault_of(error))
            unwind(self._stepper, failures.fault_of(error), Status.RECOVERING, scope=path)
            self._stepper.record_undone(path, scope, name)

        self._guarded(undo)
