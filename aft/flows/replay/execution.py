"""One pass of a flow's code over its journal: recorded outcomes are returned, new steps are executed.

Only the flow's own thread is here. Steps are numbered as the code requests them: "1", "2", and "2.1" for the first step
under savepoint 2, in branch 2, or for the first call of parallel step 2; so a replay that takes the same way finds each
outcome under the same path.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from aft.codec import ValueCodec, value_codec
from aft.errors import DefinitionError, ReplayDiverged, is_a, is_interrupt
from aft.flows.course.flow_loop import FlowLoop, foreign_awaitable, running_on
from aft.flows.course.scopes import Scope, find_scope, in_scope, strayed
from aft.flows.declare import context
from aft.flows.declare.calls import Call
from aft.flows.declare.checks import MOST_NAME
from aft.flows.declare.flow import Flow, declared_signal
from aft.flows.exceptions import failures
from aft.flows.replay.async_driver import Driver
from aft.flows.replay.exits import PassExit
from aft.flows.replay.patches import Patches, was_begun
from aft.flows.replay.replay_random import ReplayRandom
from aft.flows.replay.step_calls import StepCalls
from aft.flows.runtime.generators import OpenGenerators
from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.session.blocks import CONTROL_FLOW, Blocked, ContinueAsNew
from aft.flows.steps.run_constraints import RunConstraints
from aft.flows.steps.run_session import RunSession
from aft.flows.steps.unwind import undo_late, unwind
from aft.ids import StepPath
from aft.rules.rule_types import RuleType
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status


class Execution:
    """A flow being executed for its run's owner; implements the engine calls of the flow's code.

    ``exit`` ends the pass early.
    """

    def __init__(self, session: RunSession, flow: Flow[Any, Any], entries: list[Entry]) -> None:
        self._session = session
        session.is_async = flow.is_async
        self._run = session.owner.run
        self._flow = flow
        self.exit = PassExit(session, flow.name)
        self._scheduler = StepScheduler(session, entries, self.exit.make_parking)
        self._calls = StepCalls(session, self._scheduler, self.exit)
        self._inside = session.owner.savepoints = {}  # the code enters them again
        self._whole = RunConstraints(
            session, self._scheduler.replay.rules, begins=not entries and not was_begun(session)
        )
        self._loop: FlowLoop | None = None
        self._unawaited: set[Call[Any]] = set()
        self._patches = Patches(session, self._scheduler)
        self._chance = ReplayRandom(session.key)

    # Running ----------------------------------------------------------------------------------------------------

    def play(self) -> Any:
        """Run the flow's code and return its result; raises Blocked, or the code's exception."""
        args, kwargs = self._flow.arguments.call_arguments(self._flow.arguments.decode(self._run.args))
        token, course = in_scope.set(Scope("")), self._session.course
        try:
            self._check_whole(RuleType.RUN_PRE)
            with (
                context.in_flow(self),
                self.exit.home,
                OpenGenerators(course.captured_exceptions, self.exit.leave_for_mistake) as left_open,
            ):
                made = self._flow.fn(*args, **kwargs)
                result = self._drive(made) if self._flow.is_async else made
                left_open.close()
                return self._checked(result)
        except ContinueAsNew:
            self.exit.check()  # what tidies up may have to wait
            self.check_spent("the flow now continues as new")
            raise
        finally:
            in_scope.reset(token)
            self.exit.add(self._scheduler.finish_all())  # branches that are still at work

    def check_end(self, result: str) -> None:
        """Raise Blocked, or a failure, if the rules object to the run's result."""
        self._check_whole(RuleType.RUN_POST, result)

    def _check_whole(self, on: RuleType, result: str | None = None) -> None:
        """Raise Blocked if the rules object to the whole run; raise the failure if an exlet decided so."""
        entry = self.exit.guard(lambda: self._whole.check(on, result))
        if entry is not None and entry.outcome is Outcome.FAILED:
            raise self.exit.guard(lambda: self._session.find_failure(entry))

    def _checked(self, value: Any) -> Any:
        self.exit.check_call()  # the flow's code may have swallowed it
        for call in self._unawaited:
            raise DefinitionError(f"{call} was called but never awaited; write `await {call.name}(…)`")
        self.check_spent("the flow returned")
        return value

    def check_spent(self, now: str) -> None:
        """Park if the journal has outcomes that the code did not request."""
        try:
            self._scheduler.replay.check_spent(now)
            self._session.step_states.begun.check_requested(now, self._session.course.was_requested)
        except ReplayDiverged as error:
            self.exit.park(error)

    # An async flow ------------------------------------------------------------------------------------------------

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = self._loop = self.exit.renewal.loop = FlowLoop(self._branch)  # type: ignore[abstract]  # abstract for type checkers only
        self._session.course.watch(loop)
        with running_on(loop), loop.closing_generators():
            main, on_deliver = loop.run_main(coroutine), self._session.course.hand_out
            driver = Driver(loop, main, self._scheduler, self._calls.read_outcome, on_deliver, self.exit)
            try:
                return driver.drive()
            except BaseException as error:
                self.exit.given = error if is_a(error, Blocked) else self.exit.given
                self.exit.leave_for_mistake(error)
                raise
            finally:
                driver.close(self.exit.given)

    def _branch(self, given: contextvars.Context | None) -> tuple[str, contextvars.Context]:
        """Return a new task's path and context, a copy of the given one: its steps are numbered under that path."""
        here, path = contextvars.copy_context() if given is None else given.copy(), find_scope().next()
        here.run(in_scope.set, Scope(path))
        self._session.course.note_request(path)
        self._session.branches.add(path)
        return path, here

    def _cancel_under(self, path: StepPath) -> None:
        """Cancel tasks that were begun under a savepoint: their effects are undone, now or in an earlier pass."""
        for task in self._loop.tasks if self._loop is not None else ():
            if task.branch.startswith(f"{path}.") and not task.in_generator_close:
                task.cancel()

    def awaited(self, call: Call[Any]) -> Generator[Any, Any, Any]:
        self.exit.check_call()
        self._unawaited.discard(call)
        step = self._calls.request(call)
        if not isinstance(loop := asyncio.get_running_loop(), FlowLoop):
            raise foreign_awaitable(f"{call} on another event loop")
        step.future = future = loop.create_step_future(step.needed)
        self._scheduler.pending[step.path] = step
        return (yield from future)

    # What the flow's code may call -------------------------------------------------------------------------------

    def current(self) -> context.Current:
        return context.Current(run_id=self._run.id, key=self._session.key("flow"), attempt=1, epoch=self._run.epoch)

    def now(self) -> datetime:
        self.exit.check_call()
        return self._calls.now

    def uuid(self) -> uuid.UUID:
        self.exit.check_call()
        return self._chance.uuid()

    def random(self) -> random.Random:
        self.exit.check_call()
        return self._chance.random()

    def signal_codec(self, name: str, annotation: Any) -> ValueCodec:
        """Return the codec of a signal's value: from the wait's annotation, or as the flow declares it."""
        if annotation is Any and (declared := self._flow.signals):
            return declared_signal(self._flow.name, declared, name)
        return value_codec(annotation)

    def call(self, call: Call[Any]) -> Any:
        self.exit.check_call()
        if self._flow.is_async and call.is_async:
            self._unawaited.add(call)
            return call
        return self._calls.complete([self._calls.request(call)])[0]

    def patched(self, change: str) -> bool:
        self.exit.check_call()
        return self.exit.guard(lambda: self._patches.has(change, self._calls.last_seq))

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        self.exit.check_call()
        self.exit.renewal.begin(self._flow.arguments.encode(self._flow.arguments.bind(args, kwargs)))

    def parallel(self, calls: Sequence[Call[Any]], most: int | None) -> Any:
        self.exit.check_call()
        inner = Scope(find_scope().next())
        self._session.widths[inner.path] = len(calls)
        if most is not None:
            self._session.limits[inner.path] = most
        return self._calls.complete([self._calls.request(call, inner) for call in calls], most)

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        self.exit.check_call()
        name = name[:MOST_NAME]
        outer = find_scope()
        inner = Scope(path := outer.next(), outer=outer)
        in_scope.set(inner)
        failure: BaseException | None = None
        # Left open when the run leaves: it is in it, and comes back to it.
        self._inside[path] = name
        self._session.owner.entered[path] = self._calls.last_seq
        try:
            yield
            self.exit.check_call()  # swallowed in the block: then the run is in it still
            del self._inside[path]
        except (*CONTROL_FLOW, GeneratorExit) as error:
            if self.exit.given is None and is_a(error, GeneratorExit):
                del self._inside[path]  # the generator that it is in was left
            raise
        except BaseException as error:
            if is_interrupt(error) or self.exit.renewal.is_all_of(error):
                raise
            failure = error if find_scope() is inner else strayed(name, path)
        finally:
            inner.was_left = True
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            self._undo_scope(path, outer.path, name, failure)
            del self._inside[path]
            raise failure

    def _undo_scope(self, path: StepPath, scope: str, name: str, error: BaseException) -> None:
        """Unwind the frames under a savepoint, once; a programming error of the flow undoes nothing, and parks."""
        self.exit.check_call()
        if failures.must_park(error):
            self.exit.park(error)
        self._session.course.leave(error, path)

        def undo() -> None:
            self._cancel_under(path)
            self._scheduler.complete_under(path)
            self._session.undone[path] = failures.fault_of(error)
            if self._scheduler.replay.peek(path, EntryKind.SAVEPOINT) is not None:
                return
            what = f"the code now leaves savepoint {name or path!r} with {type(error).__name__}"
            self._scheduler.journal_end.check_spent(what, path, self._scheduler.pending)
            self._scheduler.complete_doubted()
            undo_late(self._session, failures.fault_of(error))
            unwind(self._session, failures.fault_of(error), Status.RECOVERING, scope=path)
            self._session.record_undone(path, scope, name)

        self.exit.guard(undo)
