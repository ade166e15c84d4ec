"""The door: every message that comes in is read here, and what cannot be right goes to quarantine with its reason.

Two looks. The first reads the message itself, before anything is asked of the database. The second is only for those
that woke nothing: a repeated, late or reordered message is *stale*, which is ordinary, told and forgotten; one about a
run or a fault that does not exist, or about a fault of another run, is not, and is kept.

A flood of what is refused must not keep honest work from being done: so much of it is kept, together, and the rest is
counted. That loses nothing: no work lies in a message, only a wake-up for work that is in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from aft import envelope
from aft.brokers.base import Delivery
from aft.clock import Clock
from aft.envelope import Message, MessageKind, MessageRefused
from aft.recovery.quota import Quota
from aft.runs import quarantine
from aft.sealing import Seal
from aft.store import Store
from aft.store.tables import faults, runs
from aft.telemetry import MessageQuarantined, MessagesDropped, Telemetry, WakeIgnored

#: Refused messages that one door keeps at once, and with each second.
MOST_KEPT, KEPT_EACH_SECOND = 500, 10.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A message that could be read, and the delivery that brought it."""

    delivery: Delivery
    message: Message


class Door:
    """Lets messages of one namespace, and of some kinds, in. Thread-safe.

    Emits: MessageQuarantined, MessagesDropped, WakeIgnored.
    """

    def __init__(
        self,
        namespace: str,
        store: Store,
        telemetry: Telemetry,
        kinds: Collection[MessageKind],
        seal: Seal,
        clock: Clock,
    ) -> None:
        self._namespace = namespace
        self._quota = Quota(clock, MOST_KEPT, KEPT_EACH_SECOND)
        self._telling = Quota(clock, 1, 1.0)
        self._dropped = 0
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
            except MessageRefused as refusal:
                refused.append((delivery, str(refusal)))
        self.refuse(refused)
        return admitted

    def _read(self, delivery: Delivery) -> Message:
        message = envelope.decode(self._seal.take(delivery.body))
        if message.kind not in self._kinds:
            raise MessageRefused(
                f"a message of kind {message.kind.value!r} has no business in queue {delivery.queue!r}"
            )
        return message

    def refuse(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Put messages into quarantine, each with its reason; of a flood, as many as the quota lets through."""
        if not refused:
            return
        kept = refused[: self._quota.take(len(refused))]
        if kept:
            with self._store.write() as connection:
                bodies = [(delivery.queue, delivery.body, reason) for delivery, reason in kept]
                quarantine.add(connection, self._namespace, bodies)
        for delivery, reason in kept:
            self._telemetry.emit(MessageQuarantined(queue=delivery.queue, reason=reason))
        self._drop(refused[len(kept) :])

    def _drop(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Count messages that are not kept, and tell how many were not: once a second at the most."""
        self._dropped += len(refused)
        if self._dropped and self._telling.take(1):
            dropped, self._dropped = self._dropped, 0
            self._telemetry.emit(MessagesDropped(count=dropped))

    def turn_away(self, ignored: Sequence[Admitted], explain: Callable[[Row[Any], Message], str]) -> bool:
        """Deal with messages that woke nothing; ``explain`` says why, of one that may be right, given its run's row.

        Tells whether any was about nothing that exists.
        """
        known = self._refuse_unknown(ignored)
        for one, row in known:
            why = explain(row, one.message)
            self._telemetry.emit(WakeIgnored(run=one.message.run, wake=one.message.wake, why=why))
        return len(known) < len(ignored)

    def sort_out(self, admitted: Sequence[Admitted]) -> list[Admitted]:
        """Refuse what is about nothing that exists, before more is made of it; returns the others."""
        return [one for one, _ in self._refuse_unknown(admitted)]

    def _refuse_unknown(self, admitted: Sequence[Admitted]) -> list[tuple[Admitted, Row[Any]]]:
        """Refuse what is about nothing that exists; returns the others with their runs' rows."""
        if not admitted:
            return []
        with self._store.read() as connection:
            found = self._runs(connection, admitted)
            owners = self._owners(connection, admitted)
        known: list[tuple[Admitted, Row[Any]]] = []
        refused: list[tuple[Delivery, str]] = []
        for one in admitted:
            message = one.message
            row = found.get(message.run)
            if row is None:
                refused.append((one.delivery, f"there is no run {message.run} in namespace {self._namespace!r}"))
            elif message.fault is not None and owners.get(message.fault) != message.run:
                refused.append((one.delivery, f"run {message.run} has no fault {message.fault}"))
            else:
                known.append((one, row))
        self.refuse(refused)
        return known

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
