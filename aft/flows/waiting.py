"""What a flow may wait for without holding anything: a signal, a moment, the end of a child."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from aft.codec import ValueCodec
from aft.errors import CodecError, WaitTimeout
from aft.flows.asks import Ask, Landed, Raises, Returns
from aft.flows.calls import Call
from aft.flows.children import Children
from aft.flows.flow import Flow
from aft.flows.leaving import Awaits, Leave
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.runs import inbox, waits
from aft.runs.inbox import Letter
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.waits import Wait, WaitKind
from aft.telemetry import SignalRefused

#: The default of a wait that has none: it raises.
RAISE = object()


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal to wait for."""

    name: str
    codec: ValueCodec
    timeout: timedelta | None = None
    default: Any = RAISE
    is_async: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # refused where it is made, outside a run

    def __repr__(self) -> str:
        return f"aft.wait_for({self.name!r})"


@dataclass(frozen=True, slots=True)
class Sleep:
    """A moment to wait for."""

    timeout: timedelta
    name: str = "sleep"
    is_async: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "aft.sleep(…)"


class Waiting:
    """Makes the steps of one pass that wait."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self.children = Children(stepper)

    def ask(self, call: Call[Any], path: StepPath, scope: str) -> Ask:
        """Make the step of a call that is not one of an activity."""
        target = call.target
        if isinstance(target, Signal):
            return self._signal(target, path, scope)
        if isinstance(target, Sleep):
            return self._sleep(target, path, scope)
        assert isinstance(target, Flow)
        return self.children.ask(target, call, path, scope)

    # Signals ------------------------------------------------------------------------------------------------------

    def _signal(self, signal: Signal, path: StepPath, scope: str) -> Ask:
        def perform(landed: Landed | None) -> Entry:
            self._stepper.check_may_go_on()
            while (letter := self._stepper.mailbox.take(signal.name)) is not None:
                try:
                    value = signal.codec.encode(signal.codec.decode(letter.payload["value"]), f"signal {signal.name!r}")
                except CodecError as error:
                    self._refuse(signal, letter, str(error))
                    continue
                taken = replace(letter, payload={**letter.payload, "value": value})
                return self._record(path, scope, EntryKind.SIGNAL, signal.name, taken, landed, self._known(path))
            wait = self._wait(path, WaitKind.SIGNAL, signal.name, signal.timeout)
            if self._is_over(wait):
                return self._record(path, scope, EntryKind.SIGNAL, signal.name, None, landed, wait)
            raise Leave(Awaits(wait))

        def read(entry: Entry) -> Returns | Raises:
            if entry.outcome is Outcome.OK:
                return Returns(signal.codec.decode(entry.value or "null"))
            if signal.default is not RAISE:
                return Returns(signal.default)
            return Raises(WaitTimeout(f"signal {signal.name!r} did not come in time (step {path})"))

        return Ask(path, EntryKind.SIGNAL, signal.name, perform, read, quick=True, needed=False)

    def _refuse(self, signal: Signal, letter: Letter, why: str) -> None:
        """Leave a value that cannot be read for people to see; the wait goes on."""
        owner = self._stepper.owner
        owner.write(
            lambda connection, seq: inbox.mark_read(connection, owner.run_id, owner.epoch, [letter], f"refused: {why}")
        )
        self._stepper.tools.telemetry.emit(SignalRefused(run=owner.run_id, name=signal.name, why=why))

    # Moments ------------------------------------------------------------------------------------------------------

    def _sleep(self, sleep: Sleep, path: StepPath, scope: str) -> Ask:
        def perform(landed: Landed | None) -> Entry:
            self._stepper.check_may_go_on()
            wait = self._wait(path, WaitKind.SLEEP, sleep.name, sleep.timeout)
            if not self._is_over(wait):
                raise Leave(Awaits(wait))
            return self._record(path, scope, EntryKind.SLEEP, sleep.name, None, landed, wait)

        return Ask(path, EntryKind.SLEEP, sleep.name, perform, lambda _: Returns(None), quick=True, needed=False)

    # All ------------------------------------------------------------------------------------------------------------

    def _wait(self, path: StepPath, kind: WaitKind, name: str, timeout: timedelta | None) -> Wait:
        """The wait of a step: as an earlier owner began it, or from now on."""
        known = self._known(path)
        if known is not None and (known.kind, known.name) == (kind, name):
            return known
        since = self._stepper.mailbox.ask_now()
        until = None if timeout is None else since + timeout
        return self._stepper.owner.begin_wait(Wait(path, kind, name, since, until))

    def _known(self, path: StepPath) -> Wait | None:
        return next((wait for wait in self._stepper.owner.run.waits if wait.path == path), None)

    def _is_over(self, wait: Wait) -> bool:
        return wait.until is not None and wait.until <= self._stepper.mailbox.now

    def _record(
        self,
        path: StepPath,
        scope: str,
        kind: EntryKind,
        name: str,
        letter: Letter | None,
        landed: Landed | None,
        wait: Wait | None,
    ) -> Entry:
        """Journal what came of a wait; since when it had lasted is kept for people, nothing reads it."""
        owner = self._stepper.owner
        entry = Entry(
            path=path,
            scope=scope,
            kind=kind,
            name=name,
            outcome=Outcome.TIMED_OUT if letter is None and kind is EntryKind.SIGNAL else Outcome.OK,
            recorded_at=self._stepper.tools.clock.now(),
            args=None if wait is None else waits.encode([wait]),
            value=None if letter is None else letter.payload["value"],
            key_generation=owner.run.key_generation,
        )

        def then(connection: Connection, seq: int) -> None:
            if letter is not None:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [letter])
                # As the flow declares it: what it takes as a secret is shown to nobody, however it was sent.
                inbox.keep(connection, owner.run_id, letter)

        return self._stepper.record(entry, then, landed)
