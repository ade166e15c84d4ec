"""Claims about signs of life: a lock that ends with its process, and that says nothing where it could be wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select, text, update

from aft.clock import SystemClock
from aft.errors import StoreError
from aft.ids import RunId, WorkerId
from aft.recovery.takeover import LOCKS_TRUSTED_AFTER, Takeover
from aft.store import Store, leases
from aft.store.liveness import make_probe
from aft.store.liveness.sessions import KIND, SessionLivenessProbe, number_of
from aft.store.tables import workers
from aft.telemetry import RunRescued, WorkerDied
from tests.setups import eventually
from tests.storing import HandClock, Stage

ROOT = Path(__file__).parents[2]

#: A worker in a process of its own: it owns a run, says so, and waits; with "fork" a child of it outlives it.
SCRIPT = """
import os, sys, time
from datetime import timedelta
from aft.clock import SystemClock
from aft.ids import RunId, new_id
from aft.runs import submit
from aft.store import Store
from aft.store.leases import Lease
from aft.telemetry import Telemetry

url, namespace, how = sys.argv[1:]
store = Store(url)
lease = Lease(store, namespace, timedelta(hours=1), SystemClock(), Telemetry())
lease.begin()
with store.write() as connection:
    new = submit.NewRun(RunId(new_id()), namespace, "order", 1, "{}")
    row, _ = submit.begin(connection, new, lease.worker)
child = os.fork() if how == "fork" else 1
if child:
    print(lease.worker, row.id, child, flush=True)
time.sleep(600)
"""


@contextmanager
def worker_process(stage: Stage, how: str = "plain") -> Iterator[tuple[subprocess.Popen[str], WorkerId, RunId]]:
    url = stage.store._url.render_as_string(hide_password=False)
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, url, stage.namespace, how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker, run, child = process.stdout.readline().split()
        try:
            yield process, WorkerId(worker), RunId(run)
        finally:
            process.kill()
            if how == "fork":
                subprocess.run(["kill", "-9", child], check=True)


def free(stage: Stage) -> set[WorkerId]:
    """The workers whose lock is free, of those who say that they have one."""
    statement = select(workers.c.id, workers.c.liveness_lock).where(
        workers.c.namespace == stage.namespace, workers.c.liveness_lock.is_not(None)
    )
    with stage.store.read() as connection:
        signs = {WorkerId(row.id): row.liveness_lock for row in connection.execute(statement)}
    looked = make_probe(stage.store).check(stage.store.read, signs)
    return {worker for worker, held in looked.items() if not held}


def takeover(stage: Stage) -> Takeover:
    return Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)


def events(stage: Stage) -> list[type]:
    return [type(event) for event in stage.events if isinstance(event, WorkerDied | RunRescued)]


def test_a_living_worker_holds_its_lock(stage: Stage) -> None:
    stage.lease()
    assert free(stage) == set()


def test_a_killed_worker_s_lock_is_free_and_its_runs_are_taken_over(stage: Stage) -> None:
    with worker_process(stage) as (process, worker, run):
        taker = takeover(stage)
        for _ in range(3):
            taker.check_locks()
        assert stage.row(run).worker_id == worker
        process.kill()
        process.wait()
        eventually(lambda: free(stage) == {worker})
        for _ in range(2):
            taker.check_locks()
        assert stage.row(run).worker_id is None
        assert events(stage) == [WorkerDied, RunRescued]
        taker.check_locks()
        assert events(stage) == [WorkerDied, RunRescued]


def test_a_suspicion_is_enough_where_the_lock_is_free_and_not_where_it_is_held(stage: Stage) -> None:
    with worker_process(stage) as (process, worker, run):
        taker = Takeover(stage.namespace, stage.store, SystemClock(), stage.telemetry, lambda faults: None)
        taker.suspect([run])
        taker.follow_suspicions()
        assert stage.row(run).worker_id == worker
        process.kill()
        process.wait()
        eventually(lambda: free(stage) == {worker})
        taker.suspect([run])
        taker.follow_suspicions()
        assert stage.row(run).worker_id is None


def test_a_child_that_outlives_its_parent_does_not_keep_its_lock(stage: Stage) -> None:
    with worker_process(stage, "fork") as (process, worker, _):
        assert free(stage) == set()
        process.kill()
        process.wait()
        eventually(lambda: free(stage) == {worker})


def test_a_paused_worker_holds_its_lock(stage: Stage) -> None:
    with worker_process(stage) as (process, _, _run):
        process.send_signal(signal.SIGSTOP)
        assert free(stage) == set()


def test_a_worker_that_is_taken_for_dead_and_lives_goes_on_as_another_one(stage: Stage) -> None:
    lease = stage.lease()
    owner = stage.owned(lease)
    before = lease.worker
    with stage.store.write() as connection:
        assert leases.end_leases(connection, stage.namespace, [before]) == {before}
    takeover(stage).rescue()
    assert stage.row(owner.run_id).worker_id is None
    lease.renew()
    assert lease.worker != before
    assert free(stage) <= {before}


def test_the_end_of_a_lease_is_told_once(stage: Stage) -> None:
    lease = stage.lease()
    with stage.store.write() as connection:
        assert leases.end_leases(connection, stage.namespace, [lease.worker])
        assert not leases.end_leases(connection, stage.namespace, [lease.worker])


def test_another_namespace_s_workers_are_not_ours_to_bury(stage: Stage) -> None:
    with worker_process(stage) as (process, worker, run):
        process.kill()
        process.wait()
        eventually(lambda: free(stage) == {worker})
        stranger = Takeover("another", stage.store, stage.clock, stage.telemetry, lambda faults: None)
        for _ in range(3):
            stranger.check_locks()
        assert stage.row(run).worker_id == worker


@pytest.mark.parametrize(
    "lock",
    [
        "session:START:abc",
        "session:START:" + "9" * 5000,
        "session:START:²",
        "file:a\0b",
        "file:",
        "file:..",
        "file:/",
        "",
    ],
    ids=lambda lock: ascii(lock[:18]),
)
def test_a_lock_that_is_none_stops_no_rescue(stage: Stage, lock: str) -> None:
    if stage.store.file is None:
        lock = lock.replace("\0", "\1")  # PostgreSQL stores no NUL
    lease = stage.lease()
    owner = stage.owned(lease)
    with stage.store.write() as connection:
        if stage.store.file is None:
            started = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
            lock = lock.replace("START", connection.execute(text(started)).scalar_one())
        connection.execute(update(workers).where(workers.c.id == lease.worker).values(liveness_lock=lock))
    taker = Takeover(stage.namespace, stage.store, SystemClock(), stage.telemetry, lambda faults: None)
    taker.suspect([owner.run_id])
    taker.follow_suspicions()
    for _ in range(2):
        taker.check_locks()
    assert stage.row(owner.run_id).worker_id == lease.worker, "nobody knows whether it lives"
    stage.expire(lease.worker)
    assert (taker.rescue(), stage.row(owner.run_id).worker_id) == (1, None)


@contextmanager
def cut_off(stage: Stage, lease: leases.Lease) -> Iterator[None]:
    """Let a worker's session end, and no new one be made for a while: it lives, and its lock is free."""
    keeper = lease._liveness_lock._keeper  # type: ignore[attr-defined]
    nowhere = Store("postgresql://nobody@127.0.0.1:1/none")
    there, keeper._engine = keeper._engine, nowhere.engine
    with psycopg.connect(url_of(stage), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", (keeper._session.info.backend_pid,))
    eventually(lambda: free(stage) == {lease.worker})
    yield
    keeper._engine = there
    nowhere.close()


def lose_a_connection(stage: Stage) -> None:
    with pytest.raises(StoreError), stage.store.read() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def url_of(stage: Stage) -> str:
    return stage.store._url.set(drivername="postgresql").render_as_string(hide_password=False)


class TestSessions:
    """PostgreSQL."""

    def test_a_session_that_was_cut_is_made_again_and_nobody_is_buried(self, postgres_stage: Stage) -> None:
        stage = postgres_stage
        lease = stage.lease()
        owner = stage.owned(lease)
        taker = takeover(stage)
        taker.check_locks()
        with stage.store.write() as connection:
            cut = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = :low"
            low = number_of(lease.worker) & 0xFFFFFFFF
            assert connection.execute(text(cut), {"low": low}).scalar()
        eventually(lambda: free(stage) == set() and lease._liveness_lock.text)
        taker.check_locks()
        assert stage.row(owner.run_id).worker_id == lease.worker

    def test_for_some_seconds_after_a_connection_was_lost_no_lock_is_trusted(self, migrated_url: str) -> None:
        """As when the server starts all sessions anew because one has crashed: nobody holds a lock, everybody lives."""
        clock = HandClock()
        stage = Stage(Store(migrated_url, clock=clock), clock=clock)
        owner = stage.owned(lease := stage.lease())
        taker = takeover(stage)
        with cut_off(stage, lease):
            lose_a_connection(stage)
            for passed in (0.0, LOCKS_TRUSTED_AFTER - 0.01):
                clock.passed = passed
                for _ in range(3):
                    taker.check_locks()
                taker.suspect([owner.run_id])
                taker.follow_suspicions()
                assert stage.row(owner.run_id).worker_id == lease.worker
            clock.passed = LOCKS_TRUSTED_AFTER
            taker.check_locks()
            assert stage.row(owner.run_id).worker_id == lease.worker, "one look is enough for nobody's burial"
            taker.check_locks()
            assert stage.row(owner.run_id).worker_id is None, "the lock was free all the time"
        stage.close()

    def test_a_lock_of_another_start_of_the_server_says_nothing(self, postgres_stage: Stage) -> None:
        signs = {WorkerId("w"): f"{KIND}1234567890.123456:{number_of(WorkerId('w'))}"}
        assert SessionLivenessProbe().check(postgres_stage.store.read, signs) == {}

    def test_who_could_take_no_lock_is_judged_by_its_lease_alone(self, postgres_stage: Stage) -> None:
        stage = postgres_stage
        nowhere = Store("postgresql://nobody@127.0.0.1:1/none")
        lease = leases.Lease(stage.store, stage.namespace, timedelta(hours=1), stage.clock, stage.telemetry)
        lease._liveness_lock._engine = nowhere.engine  # type: ignore[attr-defined]
        lease.begin()
        stage.leases.append(lease)
        owner = stage.owned(lease)
        for _ in range(3):
            takeover(stage).check_locks()
        assert stage.row(owner.run_id).worker_id == lease.worker
        nowhere.close()

    def test_a_lock_that_is_only_shared_is_no_sign_of_life(self, postgres_stage: Stage) -> None:
        """Whoever may connect can take one, so that a dead worker seemed to live."""
        with worker_process(postgres_stage) as (process, worker, run), postgres_stage.store.read() as connection:
            process.kill()
            process.wait()
            eventually(lambda: free(postgres_stage) == {worker})
            connection.execute(text("SELECT pg_advisory_lock_shared(:number)"), {"number": number_of(worker)})
            taker = takeover(postgres_stage)
            for _ in range(2):
                taker.check_locks()
            assert postgres_stage.row(run).worker_id is None
            connection.execute(text("SELECT pg_advisory_unlock_all()"))


class TestFiles:
    """SQLite."""

    def test_nothing_is_left_of_a_worker_that_ended(self, sqlite_stage: Stage) -> None:
        lease = sqlite_stage.lease()
        folder = Path(f"{sqlite_stage.store.file}-workers")
        assert [path.name for path in folder.iterdir()] == [lease.worker]
        lease.end()
        assert list(folder.iterdir()) == []

    def test_nothing_is_left_of_one_that_was_buried(self, sqlite_stage: Stage) -> None:
        with worker_process(sqlite_stage) as (process, worker, _):
            process.kill()
            process.wait()
            takeover(sqlite_stage).check_locks()
        assert not (Path(f"{sqlite_stage.store.file}-workers") / worker).exists()
