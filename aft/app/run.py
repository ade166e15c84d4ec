"""Run: a handle on one durable execution. It holds an id and reads the database each time."""

from __future__ import annotations

import dataclasses
import enum
import time
import warnings
from typing import Any, Generic, NoReturn

from sqlalchemy import select
from typing_extensions import TypeVar

from aft.app.actors import name_of
from aft.app.steered_run import SteeredRun
from aft.codec import ValueCodec, decode_untyped, value_codec
from aft.errors import (
    CodecError,
    DefinitionError,
    FlowCancelled,
    FlowCompensated,
    FlowFailed,
    OrderRefused,
    StoreError,
    UnknownFlow,
)
from aft.fault import Fault
from aft.flows.declare import options as checks
from aft.flows.declare.api import check_signal_name
from aft.flows.declare.flow import declared_signal
from aft.flows.declare.options import Duration
from aft.flows.exceptions import failures
from aft.runs import run_rows, signals
from aft.runs.records import faults, journal
from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes.wake import NewInboxItem
from aft.security.redaction import redact
from aft.store.db_time import later
from aft.store.leases import read_names
from aft.store.tables import workers
from aft.texts import check_storable

#: Seconds between two reads of a run that a caller waits for: at first, and at most.
FIRST_LOOK, LONGEST_POLL = 0.005, 0.2
#: Seconds for which a database may be away while a caller waits for a run.
AWAY = 30.0
#: Most activities that a message names.
MOST_NAMED = 3
#: Seconds between two checks for a worker that could execute a run that a caller waits for.
WARN_AFTER = 2.0


class NoWorkerWarning(UserWarning):
    """Issued when a caller waits for a run whose flow no live worker has."""


class ParkedWarning(UserWarning):
    """Issued when a caller waits for a run that is parked."""


#: What the run's flow returns; a run that was found by its id may return anything.
R_co = TypeVar("R_co", covariant=True, default=Any)


class Run(SteeredRun, Generic[R_co]):
    """One durable execution of a flow, which returns an R_co. Thread-safe."""

    @property
    def status(self) -> Status:
        """Its status now; a text: ``"completed"``, ``"recovering"``, …"""
        return self.row.status

    @property
    def fault(self) -> Fault | None:
        """The failure that ended it or is undoing it, if there is one."""
        with self._app.store.read() as connection:
            fault_id = run_rows.get_run(connection, self._app.namespace, self.id).fault_id
            return None if fault_id is None else faults.get_fault(connection, self._app.namespace, fault_id)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for its end and return the flow's result; a parked run is waited for, too, with a warning.

        Another warning is issued, once, if no live worker has had its flow for two seconds. Raises FlowCompensated,
        FlowFailed or FlowCancelled, each with ``.fault``; TimeoutError after ``timeout`` (``30``, ``"30s"``), which
        changes nothing about the run.
        """
        patience = checks.check_patience("timeout", timeout)
        began = looked = time.monotonic()
        pause, warned = FIRST_LOOK, False
        row = self.row
        while not row.status.ended:
            moment = time.monotonic()
            waited = moment - began
            if not warned and moment - looked >= WARN_AFTER:
                warned, looked = self._warn_if_stuck(row, moment - looked), moment
            if patience is not None and waited >= patience:
                raise TimeoutError(f"{_still(row, patience)}{self._explain_no_worker(row, waited, '; ')}")
            left = LONGEST_POLL if patience is None else patience - waited
            time.sleep(min(pause, max(left, 0.001)))
            pause = min(LONGEST_POLL, pause * 1.5)
            row = self._read_again(patience is None or left > AWAY)
        value: R_co = self._value(row)
        return value

    def _read_again(self, may_wait: bool) -> RunRow:
        """Read its row again; if the database is restarted or fails over meanwhile, try again for a while."""
        began = time.monotonic()
        while True:
            try:
                return self.row
            except StoreError as error:
                if not error.transient or not may_wait or time.monotonic() - began > AWAY:
                    raise
                time.sleep(LONGEST_POLL)

    # Signals ----------------------------------------------------------------------------------------------------

    def signal(self, name: str, value: Any = None, *, key: str | None = None, by: str | None = None) -> bool:
        """Send it a value that it waits for, or will; kept in order until the flow takes it.

        A second one with the same ``key`` is dropped: then this returns False. Raises OrderRefused if it has ended,
        DefinitionError or CodecError if its flow is known here and declares no such signal, or another type.
        """
        check_signal_name(name)
        check_storable("key", key, DefinitionError, most=signals.MOST_KEY - len(name))
        sender = name_of(by, DefinitionError)
        row = self.row
        encoded = _encode(self._codec_of(row, name, value), value)
        post = NewInboxItem(
            InboxVerb.SIGNAL,
            {"name": name, "value": encoded},
            sender,
            self._app.clock.now(),
            self._app.settings.grace,
            None if key is None else signals.format_key(name, key),
        )
        with self._app.store.write() as connection:
            return signals.send(connection, self._locked(connection), name, post)

    def _codec_of(self, row: RunRow, name: str, value: Any) -> ValueCodec:
        """Return the codec of a signal's value: as its flow declares it, if known here; else by its own type."""
        try:
            declared = self._app.registry.flow(row.flow, row.version).signals
        except UnknownFlow:
            declared = {}
        if declared:
            return declared_signal(row.flow, declared, name)
        built = dataclasses.is_dataclass(value) or hasattr(value, "model_dump") or isinstance(value, enum.Enum)
        return value_codec(type(value) if built else Any)

    # Its end ----------------------------------------------------------------------------------------------------

    def _value(self, row: RunRow) -> Any:
        if row.status is not Status.COMPLETED:
            self._raise_end(row)
        if row.erased_at is not None:
            raise OrderRefused(f"run {row.id} has completed, and was forgotten since: its result is gone")
        try:
            return self._app.registry.flow(row.flow, row.version).result.decode(row.result or "null")
        except UnknownFlow:
            return decode_untyped(row.result or "null")

    def _raise_end(self, row: RunRow) -> NoReturn:
        """Raise the error for an end without a result; its cause is the failure, rebuilt, if there was one."""
        fault = self.fault
        error, how = _end_of(row)
        left = self._name_not_undone(row) if error is FlowCompensated else ""
        why = f": {redact(str(fault))}" if fault else ""
        raise error(f"run {row.id} of flow {row.flow!r} {how}{left}{why}", fault) from (
            failures.rebuild(fault) if fault else None
        )

    def _name_not_undone(self, row: RunRow) -> str:
        """Name the activities that nothing undoes, as far as this process knows them."""
        with self._app.store.read() as connection:
            done = journal.names_of_completed(connection, row.id)
        known = [found for name in done if (found := self._app.registry.activity(name)) is not None]
        left = [repr(activity.name) for activity in known if activity.compensator is None]
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        return f", but for {', '.join(left[:MOST_NAMED])}{more} without a compensator" if left else ""

    def _warn_if_stuck(self, row: RunRow, seconds: float) -> bool:
        """Warn the caller if the run is parked, or has had no worker for ``seconds``; return whether it warned."""
        if _waits_for_a_person(row):
            why = f"run {row.id} is parked and waits for a person: {redact(str(row.reason))}"
            warnings.warn(why, ParkedWarning, stacklevel=3)
            return True
        if why := self._explain_no_worker(row, seconds, f"run {row.id} waits for a worker, and "):
            warnings.warn(why, NoWorkerWarning, stacklevel=3)
            return True
        return False

    def _explain_no_worker(self, row: RunRow, seconds: float, before: str) -> str:
        """Return a text, after ``before``, if no worker could execute it in the last seconds; else an empty one."""
        if row.worker_id is not None or _waits_for_a_person(row) or self._had_worker(row, seconds):
            return ""
        return f"{before}no live worker knows flow {row.flow}@{row.version}; start one with `aft dispatcher MODULE`"

    def _had_worker(self, row: RunRow, seconds: float) -> bool:
        """Return whether a worker that was alive at any time in the last seconds has the flow.

        Not only now: a machine that was suspended for longer than a lease has no live worker until the next heartbeat.
        """
        statement = select(workers.c.flows, workers.c.roles).where(
            workers.c.namespace == row.namespace, workers.c.expires_at > later(-seconds)
        )
        with self._app.store.read() as connection:
            lived = connection.execute(statement).all()
        return any(
            "work" in read_names(worker.roles) and f"{row.flow}@{row.version}" in read_names(worker.flows)
            for worker in lived
        )

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def _waits_for_a_person(row: RunRow) -> bool:
    return row.status is Status.PARKED and row.wake_id is None


def _end_of(row: RunRow) -> tuple[type[FlowCompensated | FlowFailed | FlowCancelled], str]:
    """Return the error for a run that ended without a result, and how it came to that end, in words."""
    if row.status is Status.CANCELLED:
        return FlowCancelled, "was cancelled"
    began = {"cancel": "was cancelled", "order": "had completed, and was undone by order"}.get(
        row.cause or "", "failed"
    )
    if row.status is Status.FAILED:
        return FlowFailed, f"{began}, and not all that it did was undone: `aft runs show {row.id}` tells what may stand"
    return FlowCompensated, began if row.cause == "order" else f"{began}, and everything it had done was undone"


def _encode(codec: ValueCodec, value: Any) -> str:
    """Encode a signal's value; a plain one is accepted for a declared type: ``"approve"`` for an enum."""
    try:
        return codec.encode(value, "value")
    except CodecError as refused:
        try:
            return codec.encode(codec.decode(value_codec(Any).encode(value, "value")), "value")
        except CodecError:
            raise refused from None


def _still(row: RunRow, timeout: float) -> str:
    why = f": {redact(row.reason)}" if row.reason else ""
    due = f", due at {row.due_at:%H:%M:%S} UTC" if row.due_at else ""
    return f"run {row.id} of flow {row.flow!r} has not ended within {timeout:g} s; it is {row.status.value}{due}{why}"
