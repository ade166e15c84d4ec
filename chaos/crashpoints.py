"""Crash points: kills a process before or after a durable step (a commit, a publish, an acknowledgement).

The points that a process passes are numbered from 1 on. One whose environment names a number kills itself there:
nothing could catch that, and no ``finally`` runs. Heartbeats have no number: they come by the clock, so the same number
would not be the same point next time. With its last breath it writes down where it was, so a death at a crash point can
be told from any other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event

import aft
from aft.brokers.base import Consumer, Delivery, Outgoing

#: The number at which a process dies; none: it lives.
NUMBER = "AFT_TEST_CRASH"
#: A file to which whoever dies at a point writes that it did.
RECORD = "AFT_TEST_CRASH_RECORD"
#: Where a step is done for others: of no interest is who does it, but who wanted it.
_SERVANTS = ("aft.store", "aft.brokers")


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a process at a crash point: which process, when, and where."""

    pid: int
    at: float
    point: str


class Points:
    """Numbers the crash points that this process passes, and kills it at one of them. Thread-safe."""

    def __init__(self, fatal: int, record: str) -> None:
        self._fatal = fatal
        self._record = record
        self._passed = 0
        self._lock = threading.Lock()

    def around(self, what: str, step: Callable[[], Any]) -> Any:
        """Execute a durable step, with a crash point before it and one after it."""
        self._pass(f"before {what}")
        done = step()
        self._pass(f"after {what}")
        return done

    def _pass(self, what: str) -> None:
        if threading.current_thread().name == "aft-heartbeat":
            return
        with self._lock:
            self._passed += 1
            if self._passed == self._fatal:
                self._die(f"{what} of {_wanted_by()}")

    def _die(self, point: str) -> None:
        line = json.dumps(asdict(Death(os.getpid(), time.monotonic(), point))).encode() + b"\n"
        os.write(os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), line)
        os.kill(os.getpid(), signal.SIGKILL)


def _wanted_by() -> str:
    """Return the name of the function of aft that requested the step, as ``recovery.sweeper.rescue``."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("aft.") and not module.startswith(_SERVANTS):
            return f"{module.removeprefix('aft.')}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return threading.current_thread().name.rstrip("0123456789_-")


def read_deaths(record: Path) -> list[Death]:
    """Read the deaths at crash points from their record."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [Death(**json.loads(line)) for line in lines]


def arm(app: aft.Aft) -> None:
    """Make this process die at the crash point that its environment names; without a number do nothing."""
    if number := os.environ.get(NUMBER):
        points = Points(int(number), os.environ[RECORD])
        _arm_commits(app, points)
        _arm_broker(app, points)


def _arm_commits(app: aft.Aft, points: Points) -> None:
    """Wrap the driver's commit; only the commit of a transaction that writes is a durable step."""
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
    real_write, real_execute = store.write_batch, store.execute
    store.write_batch = lambda *given: points.around("commit", lambda: real_write(*given))
    store.execute = lambda *given: points.around("commit", lambda: real_execute(*given))


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
