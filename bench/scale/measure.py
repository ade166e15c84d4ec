"""Measures the costs of aft on this machine in under a minute, and writes them to ``costs.json``.

``python -m bench.scale.measure [--database URL] [--broker URL] [--runs N] [--out FILE]``: a database of its own is
made on that server and dropped at the end, and so are its queues. Each phase is the same work in two sizes: their
difference is the cost of one. CPU is counted, not time, so that others on the machine spoil it little; ``watching``
tells what is counted.

Submitting, executing and idling are done in this process, with a dispatcher in it; the last phase starts dispatchers
as processes of their own and only looks how many runs a second they end.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import psycopg

import aft
from aft.store import schema
from aft.telemetry import Event, RunEnded
from bench.cpu import busy, cpu_of
from bench.scale import costs, probe
from bench.scale.costs import Costs, Op, Seen, Stored
from bench.scale.counters import Watch
from bench.scale.workload import plain, troubled

NAMESPACE = "scale"
#: Activities of the shorter and of the longer flow; their difference is what activities cost.
SHORT, LONG = 1, 9
#: Faults of one run.
FAULTS = 5
#: Seconds for which a dispatcher is watched that has nothing to do.
IDLE = 3.0


@contextmanager
def database_on(server: str) -> Iterator[str]:
    """Create an empty database, which is dropped at the end."""
    name = f"aft_scale_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield server.rpartition("/")[0] + f"/{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class Bench:
    """One application, and a watch over the resources that it uses."""

    def __init__(self, database: str, broker: str) -> None:
        self.database, self.broker = database, broker
        self.app = aft.Aft(database=database, broker=broker, namespace=NAMESPACE)
        schema.upgrade(self.app.store)
        self.watch = Watch(database, self.app.store)

    def submit(self, runs: int, activities: int, faults: int = 0) -> Op:
        """Submit runs; returns their cost together."""
        before = self.watch.read()
        for _ in range(runs):
            if faults:
                self.app.submit(troubled, activities, faults)
            else:
                self.app.submit(plain, activities)
        return self.watch.since(before)

    def drain(self, runs: int, idle: Op) -> Op:
        """Execute the submitted runs; returns their cost without that of idling."""
        ended = _Countdown(runs)
        forget = self.app.telemetry.subscribe(ended.hear)
        before = self.watch.read()
        began = time.perf_counter()
        with self.app.dispatcher():
            if not ended.over.wait(120):
                raise TimeoutError(f"{ended.left} runs have not ended in two minutes")
            seconds = time.perf_counter() - began
            taken = self.watch.since(before)
        forget()
        return taken + idle.times(-seconds)

    def idle(self, only: list[str] | None = None) -> tuple[Op, float]:
        """Return the cost of an idle dispatcher per second, and how many connections it keeps."""
        with self.app.dispatcher(only=only):
            time.sleep(1.0)
            before, began = self.watch.read(), time.perf_counter()
            time.sleep(IDLE)
            seconds = time.perf_counter() - began
            return self.watch.since(before).times(1 / seconds), float(len(before.backends))

    def size(self) -> tuple[float, float]:
        """Return the bytes of all tables with their indices, and of the indices alone, after a VACUUM FULL."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute("VACUUM FULL")
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(oid)), sum(pg_indexes_size(oid)) FROM pg_class "
                "WHERE relkind = 'r' AND relname LIKE 'aft\\_%'"
            ).fetchone()
        assert row is not None
        return float(row[0]), float(row[1])

    def close(self) -> None:
        """Close the watch and the application."""
        self.watch.close()
        self.app.close()


class _Countdown:
    """Waits for a number of runs to end."""

    def __init__(self, runs: int) -> None:
        self.left = runs
        self.over = threading.Event()
        self._lock = threading.Lock()

    def hear(self, event: Event) -> None:
        """Count a run that has ended. Subscribe this."""
        if isinstance(event, RunEnded):
            with self._lock:
                self.left -= 1
                if self.left <= 0:
                    self.over.set()


def measure(database: str, broker: str, runs: int) -> Costs:
    """Run all phases one after the other, and return the costs."""
    bench = Bench(database, broker)
    try:
        bench.submit(50, SHORT)  # connections, prepared statements, imports
        bench.drain(50, Op(0, 0, 0))
        idle, connections = bench.idle()
        idle_work, _ = bench.idle(["work"])
        sizes = [bench.size()]
        submit = bench.submit(runs, SHORT).times(1 / runs)
        short = bench.drain(runs, idle).times(1 / runs)
        sizes.append(bench.size())
        bench.submit(runs, LONG)
        long = bench.drain(runs, idle).times(1 / runs)
        sizes.append(bench.size())
        troubles = max(runs // 2, 1)
        bench.submit(troubles, SHORT, FAULTS)
        troubled_run = bench.drain(troubles, idle).times(1 / troubles)
        sizes.append(bench.size())
        activity = (long + short.times(-1)).times(1 / (LONG - SHORT))
        look, sweep = probe.looks(bench.app)
        return Costs(
            origin=_origin(bench),
            submit=submit,
            run=short + activity.times(-SHORT),
            activity=activity,
            fault=(troubled_run + short.times(-1)).times(1 / FAULTS),
            idle=idle,
            idle_work=idle_work,
            look_us=look,
            sweep_us=sweep,
            broker=probe.broker(broker, NAMESPACE),
            stored=_stored(sizes, runs, troubles),
            database_connections=connections,
            broker_connections=4.0,  # publishing, the worker's queues, the queue of faults, live events
            seen=[look_on(bench, processes, 3, runs) for processes in (1, 2)],
        )
    finally:
        probe.remove_queues(bench.app)
        bench.close()


def _stored(sizes: list[tuple[float, float]], runs: int, troubles: int) -> Stored:
    grown = [after[0] - before[0] for before, after in pairwise(sizes)]
    short, long = grown[0] / runs, grown[1] / runs
    activity = (long - short) / (LONG - SHORT)
    fault = (grown[2] / troubles - short) / FAULTS
    total, indices = (after - before for before, after in zip(sizes[0], sizes[-1], strict=True))
    return Stored(run=short - SHORT * activity, activity=activity, fault=fault, indices=indices / total)


def look_on(bench: Bench, processes: int, activities: int, runs: int) -> Seen:
    """Let dispatcher processes execute runs, and return their throughput."""
    runs *= processes
    bench.submit(runs, activities)
    command = [sys.executable, "-m", "aft", "dispatcher", "bench.scale.workload", "--log-level", "error"]
    given = {"AFT_DATABASE_URL": bench.database, "AFT_BROKER_URL": bench.broker, "AFT_NAMESPACE": NAMESPACE}
    started = [
        subprocess.Popen(command, env={**os.environ, **given}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(processes)
    ]
    try:
        return _look_on(bench, [one.pid for one in started], activities, runs)
    finally:
        for one in started:
            one.terminate()
        for one in started:
            one.wait(60)


def _look_on(bench: Bench, pids: list[int], activities: int, runs: int) -> Seen:
    """Measure from the end of a fifth of the runs to the end of four fifths."""

    def wait_for(share: float) -> tuple[float, int, float, float]:
        while (done := runs - _left(bench)) < share * runs:
            time.sleep(0.05)
        ours = sum(map(cpu_of, pids)) + sum(bench.watch.backends().values())
        return time.perf_counter(), done, busy(), ours

    since, before, busy_before, ours_before = wait_for(0.2)
    until, after, busy_after, ours_after = wait_for(0.8)
    seconds = until - since
    others = max(0.0, (busy_after - busy_before) - (ours_after - ours_before)) / seconds
    cores = max(0.1, (os.cpu_count() or 1) - others)
    return Seen(len(pids), activities, (after - before) / seconds, cores)


def _left(bench: Bench) -> int:
    with psycopg.connect(bench.database) as connection:
        row = connection.execute("SELECT count(*) FROM aft_runs WHERE ended_at IS NULL").fetchone()
    return 0 if row is None else int(row[0])


def _origin(bench: Bench) -> dict[str, str]:
    with psycopg.connect(bench.database) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    load = os.getloadavg()[0]
    return {
        "made_by": "python -m bench.scale.measure",
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}; load {load:.1f} while it was measured",
        "python": platform.python_version(),
        "postgresql": str(row[0]) if row else "?",
        "broker": bench.app.broker.version() if hasattr(bench.app.broker, "version") else "?",
        "aft": _revision(),
    }


def _revision() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or aft.__version__


def main() -> None:
    """Measure, and write the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default="postgresql://postgres@127.0.0.1:5432/postgres", help="its server")
    parser.add_argument("--broker", default="amqp://guest:guest@127.0.0.1:5672/")
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--out", type=Path, default=costs.FILE)
    given = parser.parse_args()
    began = time.perf_counter()
    with database_on(given.database) as database:
        found = measure(database, given.broker, given.runs)
    costs.save(found, given.out)
    print(f"{given.out}: measured in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
