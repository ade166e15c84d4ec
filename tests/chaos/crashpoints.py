"""Where may a process die? Before and after every durable step: a commit, a publish, an acknowledgement.

The points that a process passes are numbered from 1 on. One whose environment names a number kills itself there:
nothing could catch that, and no ``finally`` runs. Heartbeats have no number: they come by the clock, so the same number
would not be the same point next time.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, event

import aft
from aft.brokers.base import Consumer, Delivery, Outgoing

#: The number at which a process dies; none: it lives.
NUMBER = "AFT_TEST_CRASH"
#: A file that a process writes the points to that it passed, one line each.
TRACE = "AFT_TEST_CRASH_TRACE"


class Points:
    """Counts the points that this process passes, and ends it at one of them. Thread-safe."""

    def __init__(self, fatal: int, trace: str | None = None) -> None:
        self._fatal = fatal
        self._trace = None if trace is None else os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._passed = 0
        self._lock = threading.Lock()

    def around(self, what: str, step: Callable[[], Any]) -> Any:
        """Do a durable step; both sides of it are points."""
        self._pass(f"before {what}")
        done = step()
        self._pass(f"after {what}")
        return done

    def _pass(self, what: str) -> None:
        thread = threading.current_thread().name
        if thread == "aft-heartbeat":
            return
        with self._lock:
            self._passed += 1
            if self._trace is not None:
                os.write(self._trace, f"{self._passed} {what} ({thread})\n".encode())
            if self._passed == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)


def arm(app: aft.Aft) -> None:
    """Let this process die where its environment says; without a number nothing is changed."""
    if number := os.environ.get(NUMBER):
        points = Points(int(number), os.environ.get(TRACE))
        _arm_commits(app, points)
        _arm_broker(app, points)


def _arm_commits(app: aft.Aft, points: Points) -> None:
    """Wrap the driver's commit; only where something was to be written is it a durable step."""
    writing = threading.local()
    dialect: Any = app.store.engine.dialect
    real = dialect.do_commit

    @event.listens_for(app.store.engine, "commit")
    def remember(connection: Connection) -> None:
        writing.now = connection.get_execution_options().get("aft_writes", False)

    def do_commit(dbapi_connection: Any) -> None:
        if getattr(writing, "now", False):
            writing.now = False
            points.around("commit", lambda: real(dbapi_connection))
        else:
            real(dbapi_connection)

    dialect.do_commit = do_commit
    store: Any = app.store
    real_write_deeds, real_tell = store.write_deeds, store.tell
    store.write_deeds = lambda *given: points.around("commit", lambda: real_write_deeds(*given))
    store.tell = lambda *given: points.around("commit", lambda: real_tell(*given))


def _arm_broker(app: aft.Aft, points: Points) -> None:
    broker: Any = app.broker
    real_publish, real_consumer = broker.publish, broker.consumer

    def publish(messages: Sequence[Outgoing]) -> None:
        points.around("publish", lambda: real_publish(messages))

    def consumer(queues: Sequence[str], prefetch: int) -> Consumer:
        made: Any = real_consumer(queues, prefetch)
        real_ack = made.ack

        def ack(deliveries: Iterable[Delivery]) -> None:
            given = list(deliveries)
            points.around("ack", lambda: real_ack(given)) if given else None

        made.ack = ack
        checked: Consumer = made
        return checked

    broker.publish, broker.consumer = publish, consumer
