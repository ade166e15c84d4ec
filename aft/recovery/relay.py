"""The relay publishes outbox rows that their writer has not published itself (``recovery.sender``).

``send`` may be called by any number of threads and processes, each for rows that it holds. A crash before the broker's
confirm loses nothing: the row is still there, and free when its hold expires. A crash after the confirm publishes
twice, which consumers expect. If the broker has lost its queues (wiped, or a new node), they are declared again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from aft import names
from aft.brokers.base import Broker, Outgoing, Topology
from aft.clock import Clock
from aft.errors import AftError, BrokerError, StoreError, Unroutable
from aft.runs.records import quarantine
from aft.security.seal import Seal
from aft.store import Store, outbox
from aft.store.outbox import OutboxRow
from aft.telemetry import MessageQuarantined, OutboxRelayed, Telemetry, logger

#: Rows that one round of the relay takes.
BATCH = 500
#: Characters of the longest message: those of aft are short, and brokers end a connection over one that is too large.
MOST_BODY = 1_000_000
#: Seconds for which only the relay tries to publish, after a writer's own publish has failed.
AWAY = 5.0
#: Seconds between two looks at the outbox: at least, and at most.
LOOK, IDLE_LOOK = 0.05, 0.2
#: How much longer than the pause between two looks the outbox has been empty.
PATIENCE = 50


class Relay:
    """Publishes outbox rows. Thread-safe."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        namespace: str,
        topology: Callable[[], Topology],
        telemetry: Telemetry,
        clock: Clock,
        seal: Seal,
    ) -> None:
        self._seal = seal
        self._store = store
        self._broker = broker
        self._namespace = namespace
        self._topology = topology
        self._telemetry = telemetry
        self._clock = clock
        self._away_until = float("-inf")
        self._found_at = float("-inf")

    def send(self, rows: Sequence[OutboxRow]) -> None:
        """Publish rows that the caller holds, and delete them. Raises BrokerError or StoreError; then they stay."""
        if rows:
            self._publish(rows)
            self.confirm(rows)

    def confirm(self, rows: Sequence[OutboxRow]) -> None:
        """Delete rows that were published. Raises StoreError; then they are published once more, later."""
        self._store.write_now(outbox.CONFIRMS, [row.id for row in rows])

    def try_publish(self, rows: Sequence[OutboxRow]) -> bool:
        """Publish rows right after their commit; return False if that failed, and the rows are left to the relay.

        For AWAY seconds after a failure it does not try: its callers must not wait for a broker that is away.
        """
        if self._clock.ticks() >= self._away_until:
            try:
                self._publish(rows)
                return True
            except Exception as error:
                # Whatever it was: the state has committed, and the rows are in the outbox.
                logger.debug("published later, by the relay: %r", error)
                self._away_until = self._clock.ticks() + AWAY
        self._release(rows)
        return False

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        """Publish rows right after their commit, and delete them; what fails is left to the relay."""
        if rows and self.try_publish(rows):
            with suppress(StoreError):
                self.confirm(rows)

    def _publish(self, rows: Sequence[OutboxRow]) -> None:
        messages = [self._outgoing(row) for row in rows]
        try:
            self._broker.publish(messages)
        except Unroutable:
            self._broker.declare(self._topology())
            self._broker.publish(messages)

    def step(self) -> float:
        """Publish what is free; return the seconds until the next look: the more, the longer nothing was found.

        For one thread.
        """
        if self.run_once():
            self._found_at = self._clock.ticks()
            return 0.0
        return min(max((self._clock.ticks() - self._found_at) / PATIENCE, LOOK), IDLE_LOOK)

    def run_once(self) -> int:
        """Publish rows that no process holds; return how many were taken. Only reads if there are none."""
        if not outbox.any_free(self._store, self._namespace):
            return 0
        with self._store.write() as connection:
            rows = outbox.take(connection, self._namespace, BATCH)
        sent = self._send_each_queue(self._refuse_too_long(rows))
        if sent:
            self._telemetry.emit(OutboxRelayed(messages=sent))
        return len(rows)

    def _refuse_too_long(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Quarantine rows that a broker may not take, as they would hold up others for ever; return the rest."""
        rest: list[OutboxRow] = []
        for row in rows:
            if names.is_too_long(row.queue):
                self._quarantine(names.split(row.queue)[0], [row], "its queue's name or its key is too long")
            elif len(row.body) > MOST_BODY:
                self._quarantine(names.split(row.queue)[0], [row], f"it has {len(row.body):,} characters")
            else:
                rest.append(row)
        return rest

    def _send_each_queue(self, rows: Sequence[OutboxRow]) -> int:
        """Publish to each queue separately: one that fails does not hold up the others. Raises the first error.

        Messages with a key are separate, too: not every queue takes them, and those without one must not suffer for it.
        """
        by_queue: dict[tuple[str, bool], list[OutboxRow]] = {}
        for row in rows:
            queue, key = names.split(row.queue)
            by_queue.setdefault((queue, bool(key)), []).append(row)
        sent = 0
        errors: list[AftError] = []
        for (queue, _), group in by_queue.items():
            try:
                self.send(group)
                sent += len(group)
            except Unroutable as error:
                self._quarantine(queue, group, str(error))
            except (BrokerError, StoreError) as error:
                errors.append(error)
        if len(errors) == len(by_queue):
            self._release(rows)  # the broker is away: all of it as soon as it is back
        if errors:
            # Otherwise a queue is at fault, not the broker: what it does not take waits until its hold expires.
            raise errors[0]
        return sent

    def _quarantine(self, queue: str, rows: Sequence[OutboxRow], reason: str) -> None:
        """Quarantine rows that have no queue even now; their runs are swept, and they can be released later."""
        with self._store.write() as connection:
            quarantine.add(connection, self._namespace, [(queue, row.body.encode(), reason) for row in rows])
            outbox.confirm(connection, [row.id for row in rows])
        for _ in rows:
            self._telemetry.emit(MessageQuarantined(queue=queue, reason=reason))

    def _release(self, rows: Sequence[OutboxRow]) -> None:
        if not rows:
            return
        try:
            with self._store.write() as connection:
                outbox.release_rows(connection, [row.id for row in rows])
        except StoreError:
            return  # the hold runs out by itself

    def _outgoing(self, row: OutboxRow) -> Outgoing:
        queue, key = names.split(row.queue)
        return Outgoing(queue, self._seal.seal(row.body.encode()), key)
