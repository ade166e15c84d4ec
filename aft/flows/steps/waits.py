"""Steps that wait while the run is released: for a signal, a time, or the end of a child."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from aft.errors import CodecError, WaitTimeout
from aft.flows.declare.calls import RAISE, Call, Signal, Sleep
from aft.flows.declare.flow import Flow
from aft.flows.session.blocks import Blocked, WaitPending
from aft.flows.steps.children import Children
from aft.flows.steps.request import OnRecorded, Raises, Returns, StepRequest
from aft.flows.steps.run_session import RunSession
from aft.ids import StepPath
from aft.runs import waits
from aft.runs.records import inbox
from aft.runs.records.inbox import InboxItem
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.waits import Wait, WaitKind
from aft.telemetry import SignalRefused


class WaitSteps:
    """Makes the waiting steps of one pass."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self.children = Children(session)

    def make_step(self, call: Call[Any], path: StepPath, scope: str) -> StepRequest:
        """Make the step of a call that is not an activity's: a signal, a sleep, or a child flow."""
        target = call.target
        if isinstance(target, Signal):
            return self._signal(target, path, scope)
        if isinstance(target, Sleep):
            return self._sleep(target, path, scope)
        assert isinstance(target, Flow)
        return self.children.make_step(target, call, path, scope)

    # Signals ------------------------------------------------------------------------------------------------------

    def _signal(self, signal: Signal, path: StepPath, scope: str) -> StepRequest:
        def perform(on_recorded: OnRecorded | None) -> Entry:
            self._session.release_or_read_inbox()
            while (item := self._session.run_inbox.take(signal.name)) is not None:
                try:
                    where = f"signal {signal.name!r}"
                    value = signal.codec.encode(signal.codec.decode(item.payload["value"], where), where)
                except CodecError as error:
                    self._refuse(signal, item, str(error))
                    continue
                taken = replace(item, payload={**item.payload, "value": value})
                return self._record(path, scope, EntryKind.SIGNAL, signal.name, taken, on_recorded, self._known(path))
            wait = self._wait(path, WaitKind.SIGNAL, signal.name, signal.timeout)
            if self._is_over(wait):
                return self._record(path, scope, EntryKind.SIGNAL, signal.name, None, on_recorded, wait)
            raise Blocked(WaitPending(wait))

        def read(entry: Entry) -> Returns | Raises:
            if entry.outcome is Outcome.OK:
                return Returns(signal.codec.decode(entry.value or "null"))
            if signal.default is not RAISE:
                return Returns(signal.default)
            return Raises(WaitTimeout(f"signal {signal.name!r} did not come in time (step {path})"))

        return StepRequest(path, EntryKind.SIGNAL, signal.name, perform, read, quick=True, needed=False)

    def _refuse(self, signal: Signal, item: InboxItem, why: str) -> None:
        """Mark a signal whose value cannot be decoded as refused; the wait continues. Emits: SignalRefused."""
        owner = self._session.owner
        kept = replace(item, payload={**item.payload, "value": signal.codec.hide(item.payload["value"])})

        def refuse(connection: Connection, seq: int) -> None:
            inbox.mark_read(connection, owner.run_id, owner.epoch, [item], f"refused: {why}")
            inbox.store_payload(connection, owner.run_id, kept)

        owner.write(refuse)
        self._session.deps.telemetry.emit(SignalRefused(run=owner.run_id, signal=signal.name, why=why))

    # Sleeps -------------------------------------------------------------------------------------------------------

    def _sleep(self, sleep: Sleep, path: StepPath, scope: str) -> StepRequest:
        def perform(on_recorded: OnRecorded | None) -> Entry:
            self._session.release_or_read_inbox()
            wait = self._wait(path, WaitKind.SLEEP, sleep.name, sleep.timeout)
            if not self._is_over(wait):
                raise Blocked(WaitPending(wait))
            return self._record(path, scope, EntryKind.SLEEP, sleep.name, None, on_recorded, wait)

        return StepRequest(
            path, EntryKind.SLEEP, sleep.name, perform, lambda _: Returns(None), quick=True, needed=False
        )

    # All ------------------------------------------------------------------------------------------------------------

    def _wait(self, path: StepPath, kind: WaitKind, name: str, timeout: timedelta | None) -> Wait:
        """Return the wait of a step: the one that an earlier owner began, or a new one from now on."""
        known = self._known(path)
        if known is not None and (known.kind, known.name) == (kind, name):
            return known
        since = self._session.run_inbox.query_now()
        until = None if timeout is None else since + timeout
        return self._session.owner.begin_wait(Wait(path, kind, name, since, until))

    def _known(self, path: StepPath) -> Wait | None:
        return next((wait for wait in self._session.owner.run.waits if wait.path == path), None)

    def _is_over(self, wait: Wait) -> bool:
        return wait.until is not None and wait.until <= self._session.run_inbox.now

    def _record(
        self,
        path: StepPath,
        scope: str,
        kind: EntryKind,
        name: str,
        item: InboxItem | None,
        on_recorded: OnRecorded | None,
        wait: Wait | None,
    ) -> Entry:
        """Journal the outcome of a wait; the wait's own data is kept for people only."""
        owner = self._session.owner
        entry = Entry(
            path=path,
            scope=scope,
            kind=kind,
            name=name,
            outcome=Outcome.TIMED_OUT if item is None and kind is EntryKind.SIGNAL else Outcome.OK,
            recorded_at=self._session.deps.clock.now(),
            args=None if wait is None else waits.encode([wait]),
            value=None if item is None else item.payload["value"],
            key_generation=owner.run.key_generation,
        )

        def then(connection: Connection, seq: int) -> None:
            if item is not None:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [item])
                # Encoded as the flow declares it: what it takes as a secret is never shown, however it was sent.
                inbox.store_payload(connection, owner.run_id, item)

        return self._session.record(entry, then, on_recorded)
