"""Admission: reads every message that comes in, and quarantines invalid ones with the reason.

Two checks. The first reads the message itself, before any query. The second is only for messages that woke nothing: a
repeated, late or reordered message is *stale*, which is ordinary, reported and dropped; one about a run or a fault that
does not exist, or about a fault of another run, is quarantined.

A flood of invalid messages must not delay valid ones: a quota of them is kept, the rest is counted. That loses nothing:
a message carries no work, only a wake-up for work that is in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from aft import envelope
from aft.brokers.base import Delivery
from aft.clock import Clock
from aft.envelope import Message, MessageKind, MessageRefused
from aft.runs.records import quarantine
from aft.security.seal import Seal
from aft.store import Store
from aft.store.tables import faults, runs
from aft.telemetry import MessageQuarantined, MessagesDropped, Telemetry, WakeIgnored

#: Refused messages that one admission quarantines: in a burst, and per second.
MOST_KEPT, KEPT_EACH_SECOND = 500, 10.0


@dataclass(frozen=True, slots=True)
class AdmittedMessage:
    """A message that could be read, and the delivery that brought it."""

    delivery: Delivery
    message: Message


class Quota:
    """A token bucket: allows ``most`` at once, and ``each_second`` more per second, up to ``most``. Thread-safe."""

    def __init__(self, clock: Clock, most: int, each_second: float) -> None:
        self._clock = clock
        self._most, self._each_second = most, each_second
        self._left, self._at = float(most), clock.ticks()
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Take as many as are wanted, or as are left; return how many."""
        with self._lock:
            here = self._clock.ticks()
            self._left = min(self._most, self._left + (here - self._at) * self._each_second)
            self._at = here
            taken = min(wanted, int(self._left))
            self._left -= taken
            return taken


class Admission:
    """Admits messages of one namespace and of some kinds. Thread-safe.

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
        self._report_quota = Quota(clock, 1, 1.0)
        self._dropped = 0
        self._seal = seal
        self._kinds = frozenset(kinds)
        self._store = store
        self._telemetry = telemetry

    def admit(self, deliveries: Sequence[Delivery]) -> list[AdmittedMessage]:
        """Return the deliveries that can be read; refused ones are quarantined first, so all may be acknowledged."""
        admitted: list[AdmittedMessage] = []
        refused: list[tuple[Delivery, str]] = []
        for delivery in deliveries:
            try:
                admitted.append(AdmittedMessage(delivery, self._read(delivery)))
            except MessageRefused as refusal:
                refused.append((delivery, str(refusal)))
        self.refuse(refused)
        return admitted

    def _read(self, delivery: Delivery) -> Message:
        if delivery.size is not None:
            raise envelope.oversized(delivery.size)
        message = envelope.decode(self._seal.unseal(delivery.body))
        if message.kind not in self._kinds:
            raise MessageRefused(
                f"a message of kind {message.kind.value!r} has no business in queue {delivery.queue!r}"
            )
        return message

    def refuse(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Quarantine messages, each with its reason; of a flood, as many as the quota allows."""
        if not refused:
            return
        kept = refused[: self._quota.take(len(refused))]
        if kept:
            with self._store.write() as connection:
                bodies = [(delivery.queue, delivery.body, reason) for delivery, reason in kept]
                sizes = [delivery.size or len(delivery.body) for delivery, _ in kept]
                quarantine.add(connection, self._namespace, bodies, sizes)
        for delivery, reason in kept:
            self._telemetry.emit(MessageQuarantined(queue=delivery.queue, reason=reason))
        self._drop(refused[len(kept) :])

    def _drop(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Count messages that are not quarantined, and report their number, at most once a second."""
        self._dropped += len(refused)
        if self._dropped and self._report_quota.take(1):
            dropped, self._dropped = self._dropped, 0
            self._telemetry.emit(MessagesDropped(count=dropped))

    def report_stale(self, ignored: Sequence[AdmittedMessage], explain: Callable[[Row[Any], Message], str]) -> bool:
        """Report messages that woke nothing as stale, for the reason that ``explain`` returns given their run's row.

        Those about a run or fault that does not exist are refused instead; return whether there was any.
        """
        known = self._find_known(ignored)
        for one, row in known:
            why = explain(row, one.message)
            self._telemetry.emit(WakeIgnored(run=one.message.run, wake=one.message.wake, why=why))
        return len(known) < len(ignored)

    def refuse_unknown(self, admitted: Sequence[AdmittedMessage]) -> list[AdmittedMessage]:
        """Refuse messages about a run or fault that does not exist; return the others."""
        return [one for one, _ in self._find_known(admitted)]

    def _find_known(self, admitted: Sequence[AdmittedMessage]) -> list[tuple[AdmittedMessage, Row[Any]]]:
        """Refuse messages about a run or fault that does not exist; return the others with their runs' rows."""
        if not admitted:
            return []
        with self._store.read() as connection:
            found = self._runs(connection, admitted)
            owners = self._owners(connection, admitted)
        known: list[tuple[AdmittedMessage, Row[Any]]] = []
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

    def _runs(self, connection: Connection, ignored: Sequence[AdmittedMessage]) -> dict[str, Row[Any]]:
        statement: Select[Any] = select(runs.c.id, runs.c.flow, runs.c.version, runs.c.wake_id, runs.c.deaths).where(
            runs.c.id.in_({one.message.run for one in ignored}), runs.c.namespace == self._namespace
        )
        return {row.id: row for row in connection.execute(statement)}

    def _owners(self, connection: Connection, ignored: Sequence[AdmittedMessage]) -> dict[str, str]:
        """Return the run of each fault that the messages name."""
        named = {one.message.fault for one in ignored if one.message.fault is not None}
        if not named:
            return {}
        statement = select(faults.c.id, faults.c.run_id).where(faults.c.id.in_(named))
        return {row.id: row.run_id for row in connection.execute(statement)}
