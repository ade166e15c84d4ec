"""Measures the CPU that one kind of work costs: of this process and its threads, PostgreSQL's sessions and RabbitMQ.

Uses the public interface only, so that it runs with the aft of any commit (``bench.against``). All of the work is done
in this process, with a dispatcher in it where one is needed.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

import aft
from bench import jobs
from bench.cpu import cpu_of, cpu_of_own_threads, cpu_of_thread, listening_at
from bench.ours import failing_flows, flows

NAMESPACE = "cost"
#: Activities of a flow on the happy path.
STEPS = 3
#: Threads that start flows side by side.
THREADS = 32
#: Runs that warm an application up.
WARM = 60
#: Seconds until a dispatcher has come to rest, and for which an idle one is watched.
REST, IDLE = 2.0, 4.0
#: Seconds that a backlog may take at the most.
PATIENCE = 90.0

BROKER_PORT = 5672
#: The parts of a dispatcher, each with the beginnings of its threads' names; all other threads have the rest.
HOPS = {
    "execute": ("aft-run", "aft-branch", "aft-held"),
    "receive": ("aft-receiver", "aft-consume", "aft-timer"),
    "decide": ("aft-intake", "aft-plans"),
    "publish": ("aft-publish", "aft-sender", "aft-confirm", "aft-relay"),
    "rest": (),
}

Work = Callable[[aft.Aft, int, "Watch"], None]

_LEFT = f"SELECT count(*) FROM aft_runs WHERE namespace = '{NAMESPACE}' AND ended_at IS NULL"
_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Watch:
    """Reads the CPU used so far, and how many runs have not ended, on a connection of its own."""

    def __init__(self, database: str) -> None:
        self._postgres = psycopg.connect(database, autocommit=True) if database.startswith("postgresql") else None
        self._file = None if self._postgres else sqlite3.connect(database.removeprefix("sqlite:///"))
        self._broker = None if self._postgres is None else listening_at(BROKER_PORT)
        #: The CPU seconds of the parts of the last dispatcher.
        self.hops: dict[str, float] = {}

    def read(self) -> tuple[float, float, float]:
        """Return the CPU seconds of this process, of its sessions at PostgreSQL, and of RabbitMQ."""
        if self._postgres is None:
            return time.process_time(), 0.0, 0.0
        sessions = self._postgres.execute(_SESSIONS).fetchall()
        broker = 0.0 if self._broker is None else cpu_of(self._broker)
        return time.process_time(), sum(cpu_of_thread(pid) for (pid,) in sessions), broker

    def note_hops(self) -> None:
        """Note what the threads of a dispatcher have used; they live no longer than it does."""
        self.hops = dict.fromkeys(HOPS, 0.0)
        for name, used in cpu_of_own_threads().items():
            self.hops[_hop_of(name)] += used

    def wait_until_ended(self) -> None:
        """Wait until all runs have ended; raises JobFailed after ``PATIENCE`` seconds."""
        until = time.monotonic() + PATIENCE
        while left := self._count():
            if time.monotonic() > until:
                raise jobs.JobFailed(f"{left} runs have not ended after {PATIENCE:.0f} s")
            time.sleep(0.05)

    def _count(self) -> int:
        if self._postgres is not None:
            (count,) = self._postgres.execute(_LEFT).fetchone() or (0,)
        else:
            assert self._file is not None
            (count,) = self._file.execute(_LEFT).fetchone()
        return int(count)


def start(app: aft.Aft, count: int, _: object = None) -> None:
    """Execute flows one after the other."""
    for _ in range(count):
        app.start(flows.happy, STEPS)


def start_side_by_side(app: aft.Aft, count: int, _: object = None) -> None:
    """Execute flows in many threads."""
    threads = [threading.Thread(target=start, args=(app, count // THREADS)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def drain(flow: aft.Flow[Any, Any], *arguments: int) -> Work:
    """Return the work of submitting runs, and of executing them by a dispatcher."""

    def work(app: aft.Aft, count: int, watch: Watch) -> None:
        for _ in range(count):
            app.submit(flow, *arguments)
        with app.dispatcher(concurrency=16):
            watch.wait_until_ended()
            watch.note_hops()

    return work


def _hop_of(thread: str) -> str:
    return next((hop for hop, names in HOPS.items() if thread.startswith(names)), "rest")


#: The kinds of work, and of how many runs each.
WORK: dict[str, tuple[Work, int]] = {
    "start": (start, 300),
    "threads": (start_side_by_side, 640),
    "submit": (drain(flows.happy, STEPS), 300),
    "faults": (drain(failing_flows.failing_1ms), 100),
    "saga": (drain(failing_flows.saga), 100),
}


def measure(app: aft.Aft, watch: Watch, work: str) -> dict[str, float]:
    """Return the µs of CPU for each run; of an idle dispatcher, for each second."""
    if work == "idle":
        with app.dispatcher():
            time.sleep(REST)
            before, units = watch.read(), IDLE
            time.sleep(IDLE)
            after = watch.read()
    else:
        do, count = WORK[work]
        do(app, WARM, watch)
        before, units = watch.read(), float(count)
        do(app, count, watch)
        after = watch.read()
    python, database, broker = ((b - a) / units * 1e6 for a, b in zip(before, after, strict=True))
    hops = {hop: used / units * 1e6 for hop, used in watch.hops.items() if hop != "rest"}
    return {"python": python, "database": database, "broker": broker, **hops, "rest": python - sum(hops.values())}


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    with aft.Aft(database=job["database"], broker=job["broker"], namespace=NAMESPACE) as app:
        jobs.answer(measure(app, Watch(job["database"]), job["work"]))
        jobs.leave()


if __name__ == "__main__":
    main()
