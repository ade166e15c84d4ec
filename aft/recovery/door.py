"""The door: every message that comes in is read here, and what cannot be right goes to quarantine with its reason.

Two looks. The first reads the message itself, before anything is asked of the database. The second is only for those
that woke nothing: a repeated, late or reordered message is *stale*, which is ordinary, told and forgotten; one about a
run or a fault that does not exist, or about a fault of another run, is not, and is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from aft import envelope
from aft.brokers.base import Delivery
from aft.envelope import Kind, Message, Refused
from aft.runs import quarantine
from aft.sealing import Seal
from aft.store import Store
from aft.store.tables import faults, runs
from aft.telemetry import MessageQuarantined, Telemetry, WakeIgnored


@dataclass(frozen=True, slots=True)
class Admitted:
    """A message that could be read, and the delivery that brought it."""

    delivery: Delivery
    message: Message


class Door:
    """Lets messages of one namespace, and of some kinds, in. Thread-safe. Emits: MessageQuarantined, WakeIgnored."""

    def __init__(self, namespace: str, store: Store, telemetry: Telemetry, kinds: Collection[Kind], seal: Seal) -> None:
        self._namespace = namespace
        self._seal = seal
        self._kinds = frozenset(kinds)
        self._store = store
        self._telemetry = telemetry

    def admit(self, deliveries: Sequence[Delivery]) -> list[Admitted]:
        """Read deliveries; the refused ones are on record when this returns, so all may be acknowledged after."""
        admitted: list[Admitted] = []
        refused: list[tuple[Delivery, str]] = []
        for delivery in deliveries:
            try:
                admitted.append(Admitted(delivery, self._read(delivery)))
            except Refused as refusal:
                refused.append((delivery, str(refusal)))
        self.refuse(refused)
        return admitted

    def _read(self, delivery: Delivery) -> Message:
        message = envelope.decode(self._seal.take(delivery.body))
        if message.kind not in self._kinds:
            raise Refused(f"a message of kind {message.kind.value!r} has no business in queue {delivery.queue!r}")
        return message

    def refuse(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Put messages into quarantine, each with its reason."""
        if not refused:
            return
        with self._store.write() as connection:
            for delivery, reason in refused:
                quarantine.add(connection, self._namespace, delivery.queue, delivery.body, reason)
        for delivery, reason in refused:
            self._telemetry.emit(MessageQuarantined(queue=delivery.queue, reason=reason))

    def turn_away(self, ignored: Sequence[Admitted], explain: Callable[[Row[Any], Message], str]) -> None:
        """Deal with messages that woke nothing; ``explain`` says why, of one that may be right, given its run's row."""
        if not ignored:
            return
        with self._store.read() as connection:
            found = self._runs(connection, ignored)
            owners = self._owners(connection, ignored)
        refused: list[tuple[Delivery, str]] = []
        for one in ignored:
            message = one.message
            row = found.get(message.run)
            if row is None:
                refused.append((one.delivery, f"there is no run {message.run} in namespace {self._namespace!r}"))
            elif message.fault is not None and owners.get(message.fault) != message.run:
                refused.append((one.delivery, f"run {message.run} has no fault {message.fault}"))
            else:
                why = explain(row, message)
                self._telemetry.emit(WakeIgnored(run=message.run, wake=message.wake, why=why))
        self.refuse(refused)

    def _runs(self, connection: Connection, ignored: Sequence[Admitted]) -> dict[str, Row[Any]]:
        statement: Select[Any] = select(runs.c.id, runs.c.flow, runs.c.version, runs.c.wake_id, runs.c.deaths).where(
            runs.c.id.in_({one.message.run for one in ignored}), runs.c.namespace == self._namespace
        )
        return {row.id: row for row in connection.execute(statement)}

    def _owners(self, connection: Connection, ignored: Sequence[Admitted]) -> dict[str, str]:
        """Tell whose faults these are that the messages name."""
        named = {one.message.fault for one in ignored if one.message.fault is not None}
        if not named:
            return {}
        statement = select(faults.c.id, faults.c.run_id).where(faults.c.id.in_(named))
        return {row.id: row.run_id for row in connection.execute(statement)}
