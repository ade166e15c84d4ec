"""One pass of a flow's code over its journal: recorded outcomes are returned, the first new step is executed.

The flow's own thread is the only one here. Steps are numbered as the code asks for them: "1", "2", and "2.1" for the
first step under savepoint 2; so a replay that takes the same way finds each outcome under the same path.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from aft.errors import CodecError, DefinitionError, ReplayDiverged, StoreError
from aft.fault import FaultKind, FaultState
from aft.flows import context, failures, writing
from aft.flows.activity import Activity, Call
from aft.flows.context import Current
from aft.flows.declaring import MOST_NAME
from aft.flows.failures import Place
from aft.flows.flow import Flow
from aft.flows.leaving import Leave
from aft.flows.loop import FlowLoop, foreign_awaitable, running_on
from aft.flows.policy import Policy
from aft.flows.replay import Replay
from aft.flows.steps import Stepper
from aft.flows.unwind import unwind
from aft.ids import StepPath
from aft.runs import faults
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.owner import Fenced
from aft.runs.states import Status


@dataclass(slots=True)
class Scope:
    """A savepoint, or the flow itself: numbers the steps directly under it."""

    path: str
    count: int = 0

    def next(self) -> StepPath:
        self.count += 1
        return StepPath(f"{self.path}.{self.count}" if self.path else str(self.count))


class Execution:
    """A flow being executed for its run's owner; what the flow's code may ask of the engine is here."""

    def __init__(self, stepper: Stepper, flow: Flow[Any, Any], entries: list[Entry]) -> None:
        self._stepper = stepper
        self._run = stepper.owner.run
        self._flow = flow
        self._replay = Replay(entries)
        self._scopes = [Scope("")]
        self._leaving: Leave | None = None
        self._unawaited: set[Call[Any]] = set()
        self._now = self._run.started_at or self._run.created_at
        self._uuids = 0
        self._random: random.Random | None = None

    # Running ----------------------------------------------------------------------------------------------------

    def play(self) -> Any:
        """Run the flow's code and return its result; raises Leave, or what the code raised."""
        args, kwargs = self._flow.arguments.call_arguments(self._flow.arguments.decode(self._run.args))
        with context.in_flow(self):
            if self._flow.is_async:
                value = self._drive(self._flow.fn(*args, **kwargs))
            else:
                value = self._flow.fn(*args, **kwargs)
        self.check_leaving()  # the flow's code may have swallowed it
        for call in self._unawaited:
            raise DefinitionError(
                f"activity {call.activity.name!r} was called but never awaited; write `await {call.activity.name}(…)`"
            )
        self.check_spent("the flow returned")
        return value

    def check_spent(self, now: str) -> None:
        """Park if the journal holds what the code did not ask for."""
        try:
            self._replay.check_spent(now)
        except ReplayDiverged as error:
            self.park(error)

    def park(self, error: Exception) -> NoReturn:
        """Stop the run for a person, because its code cannot go on; always leaves."""
        owner, tools = self._stepper.owner, self._stepper.tools
        place = Place(owner.run_id, owner.epoch, None, FaultKind.FLOW, self._flow.name)
        fault = failures.describe(error, place, Policy(), tools.ladder, tools.clock.now(), state=FaultState.PARKED)
        reason = f"{fault.short_type}: {fault.message}" if fault.message else fault.short_type
        try:
            writing.park(tools, owner, reason, fault, replaces=self._stepper.live_faults())
        except (Fenced, StoreError) as lost:
            self._leave(Leave(str(lost), lost=lost))
        self._leave(Leave(reason))

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an async flow: it may await activities only, one at a time."""
        try:
            return self._send_outcomes(coroutine)
        finally:
            # Closed here, where its code still counts as the flow's: left to the garbage collector, an activity in
            # its `finally` would be called as a plain function.
            with suppress(Leave):
                coroutine.close()

    def _send_outcomes(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = FlowLoop()  # type: ignore[abstract]  # abstract for type checkers only
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                with running_on(loop):
                    asked = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            value, error = None, None
            try:
                if not isinstance(asked, Call):
                    raise foreign_awaitable("nothing" if asked is None else repr(asked))
                self._unawaited.discard(asked)
                value = self._step(asked.activity, asked.args, asked.kwargs)
            except (Exception, Leave) as raised:
                error = raised

    def _leave(self, leave: Leave) -> NoReturn:
        self._leaving = leave
        raise leave

    def check_leaving(self) -> None:
        """Leave, if the run is leaving, whatever the flow's code has made of that."""
        if self._leaving is not None:
            raise self._leaving

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

    def call(self, activity: Activity[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.check_leaving()
        if activity.is_async and self._flow.is_async:
            call: Call[Any] = Call(activity, args, kwargs)
            self._unawaited.add(call)
            return call
        return self._step(activity, args, kwargs)

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        self.check_leaving()
        name = name[:MOST_NAME]
        outer = self._scopes[-1]
        path = outer.next()
        self._scopes.append(Scope(path))
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        finally:
            self._scopes.pop()
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            self._undo_scope(path, outer.path, name, failure)
            raise failure

    # Steps ------------------------------------------------------------------------------------------------------

    def _step(self, activity: Activity[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a step's recorded outcome, or execute it; a final failure is raised, as its own class."""
        self.check_leaving()
        scope = self._scopes[-1]
        bound = activity.arguments.bind(args, kwargs)
        encoded = activity.arguments.encode(bound)
        path = scope.next()
        try:
            entry = self._replay.take(path, EntryKind.ACTIVITY, activity.name)
            if entry is None:
                entry = self._execute(activity, path, scope.path, encoded)
            self._now = entry.recorded_at
            if entry.outcome is Outcome.OK:
                return activity.result.decode(entry.value or "null")
            failure = self._failure(entry)
            self._undo_armed(path, failure)
        except Leave as leave:
            self._leave(leave)
        except (Fenced, StoreError) as error:
            self._leave(Leave(str(error), lost=error))
        except (ReplayDiverged, CodecError) as error:
            self.park(error)
        except BaseException as error:
            # Ctrl-C, or a defect of aft: the flow's code must not go on as if this were the activity's failure.
            self._leave(Leave(repr(error), lost=error))
        raise failure

    def _execute(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str) -> Entry:
        fault = self._stepper.final_fault(path)
        if fault is not None and fault.name != activity.name:
            raise ReplayDiverged(
                f"step {path} is activity {fault.name!r}, which failed for good, but the code now calls "
                f"{activity.name!r} there; bring back code that matches, then retry"
            )
        if fault is not None:
            return self._stepper.record_failure(activity, path, scope, args, fault)
        return self._stepper.execute(activity, path, scope, args)

    def _undo_armed(self, path: StepPath, failure: Exception) -> None:
        """Undo a started activity that failed for good, before the flow hears of it and may take another way."""
        if self._stepper.is_armed(path):
            unwind(self._stepper, failures.fault_of(failure), Status.RECOVERING, path=path)

    def _failure(self, entry: Entry) -> Exception:
        tools, owner = self._stepper.tools, self._stepper.owner
        fault = owner.read(lambda connection: faults.get(connection, tools.namespace, entry.fault_id or ""))
        if fault is None:
            raise AssertionError(f"fault {entry.fault_id} of step {entry.path} is gone")
        return failures.rebuild(fault)

    def _undo_scope(self, path: StepPath, scope: str, name: str, error: Exception) -> None:
        """Unwind what was pushed under a savepoint, once; a mistake of the flow's code undoes nothing, and parks."""
        self.check_leaving()
        if must_park(error):
            self.park(error)
        if self._replay.peek(path, EntryKind.SAVEPOINT) is not None:
            return
        self.check_spent(f"the code now leaves savepoint {name or path!r} with {type(error).__name__}")
        try:
            unwind(self._stepper, failures.fault_of(error), Status.RECOVERING, scope=path)
            self._stepper.record_undone(path, scope, name)
        except Leave as leave:
            self._leave(leave)
        except BaseException as lost:
            self._leave(Leave(repr(lost), lost=lost))


def _is_refusal(error: Exception) -> bool:
    """Tell whether aft itself refused what the flow's code did."""
    return isinstance(error, CodecError | DefinitionError) and failures.fault_of(error) is None


def must_park(error: Exception) -> bool:
    """Tell whether what left a flow's code is a mistake in that code: after the fix, retry replays."""
    return failures.is_bug(error) or _is_refusal(error)
