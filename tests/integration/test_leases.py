"""Claims about leases: who is a worker, until when, and what becomes of one that was not heard in time."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from aft.errors import StoreError
from aft.ids import WorkerId
from aft.store import leases
from aft.store.db_time import later, now
from aft.store.leases import PRUNE_AFTER, Lease
from aft.store.tables import workers
from aft.telemetry import LeaseLost
from tests.storing import Stage

LENGTH = 300.0


def row_of(stage: Stage, worker: WorkerId) -> Any:
    """The worker's row, and the seconds that its lease has left."""
    with stage.store.read() as connection:
        row = connection.execute(select(workers, now().label("here")).where(workers.c.id == worker)).one_or_none()
    return row


def seconds_left(stage: Stage, worker: WorkerId) -> float:
    row = row_of(stage, worker)
    return float((row.expires_at - row.here).total_seconds())


def test_a_worker_is_a_row_that_says_who_it_is_and_what_it_knows(stage: Stage) -> None:
    lease = stage.lease(LENGTH, roles=["work"], flows=["order@1"])
    row = row_of(stage, lease.worker)
    assert (row.namespace, row.pid, row.roles, row.flows) == (
        stage.namespace,
        os.getpid(),
        '["work"]',
        '["order@1"]',
    )
    assert row.stopped_at is None


def test_a_lease_lasts_as_long_as_it_is_said_by_the_database_s_clock(stage: Stage) -> None:
    lease = stage.lease(LENGTH)
    assert LENGTH - 60 < seconds_left(stage, lease.worker) <= LENGTH


def test_a_worker_holds_its_lease_until_it_is_over_by_its_own_clock(stage: Stage) -> None:
    lease = stage.lease(LENGTH)
    assert lease.is_valid(lease.worker)
    stage.clock.passed = LENGTH - 0.001
    assert lease.is_valid(lease.worker)
    stage.clock.passed = LENGTH
    assert not lease.is_valid(lease.worker)


def test_a_worker_that_has_not_begun_holds_nothing(stage: Stage) -> None:
    lease = Lease(stage.store, stage.namespace, timedelta(seconds=LENGTH), stage.clock, stage.telemetry)
    assert not lease.is_valid(lease.worker)


@pytest.mark.parametrize("other", [None, WorkerId("somebody else")])
def test_a_worker_holds_nothing_in_another_s_name(stage: Stage, other: WorkerId | None) -> None:
    assert not stage.lease(LENGTH).is_valid(other)


def test_a_heartbeat_prolongs_the_lease(stage: Stage) -> None:
    lease = stage.lease(LENGTH)
    with stage.store.write() as connection:
        connection.execute(update(workers).where(workers.c.id == lease.worker).values(expires_at=later(1)))
    worker = lease.worker
    stage.clock.passed = LENGTH - 1
    lease.renew()
    assert lease.worker == worker
    assert seconds_left(stage, worker) > LENGTH - 60
    stage.clock.passed = 2 * LENGTH - 1.001
    assert lease.is_valid(worker)


def test_the_lease_counts_from_before_the_heartbeat_was_sent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stage.lease(LENGTH)
    send = lease._extend

    def slowly() -> bool:
        stage.clock.passed += 20
        return send()

    monkeypatch.setattr(lease, "_extend", slowly)
    lease.renew()
    stage.clock.passed = LENGTH
    assert not lease.is_valid(lease.worker)


def test_a_worker_whose_heartbeat_comes_too_late_becomes_another(stage: Stage) -> None:
    lease = stage.lease(LENGTH)
    before = lease.worker
    stage.expire(before)
    stage.clock.passed = LENGTH
    lease.renew()
    assert lease.worker != before
    assert lease.is_valid(lease.worker)
    assert not lease.is_valid(before)
    assert seconds_left(stage, before) < 0
    assert seconds_left(stage, lease.worker) > LENGTH - 60
    assert stage.events == [LeaseLost(worker=before, why=f"no heartbeat was heard in time; now {lease.worker}")]


def test_a_worker_that_nobody_knows_any_more_becomes_another(stage: Stage) -> None:
    lease = stage.lease(LENGTH, flows=["order@1"])
    before = lease.worker
    with stage.store.write() as connection:
        connection.execute(delete(workers).where(workers.c.id == before))
    lease.renew()
    assert lease.worker != before
    assert row_of(stage, lease.worker).flows == '["order@1"]'
    assert row_of(stage, before) is None


def test_the_end_of_a_worker_is_the_end_of_its_lease(stage: Stage) -> None:
    lease = stage.lease(LENGTH)
    lease.end()
    row = row_of(stage, lease.worker)
    assert row.stopped_at is not None
    assert row.expires_at <= row.here
    assert not lease.is_valid(lease.worker)


def test_ending_twice_and_ending_what_never_began_do_no_harm(stage: Stage) -> None:
    lease = stage.lease(LENGTH)
    lease.end()
    lease.end()
    Lease(stage.store, stage.namespace, timedelta(seconds=LENGTH), stage.clock, stage.telemetry).end()


def test_the_heart_beats_by_itself(stage: Stage) -> None:
    heard, beats = threading.Semaphore(0), 3
    lease = stage.lease(0.1, on_beat=heard.release)
    worker = lease.worker
    assert all(heard.acquire(timeout=60) for _ in range(beats))
    assert lease.worker == worker


def test_a_heartbeat_that_is_not_heard_is_followed_by_the_next(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, failures = threading.Event(), [StoreError("away", transient=True)] * 2
    lease = Lease(stage.store, stage.namespace, timedelta(seconds=0.1), stage.clock, stage.telemetry)
    send = lease._extend

    def extend() -> bool:
        if failures:
            raise failures.pop()
        return send()

    monkeypatch.setattr(lease, "_extend", extend)
    lease.begin(on_beat=heard.set)
    stage.leases.append(lease)
    assert heard.wait(60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_heart_survives_whatever_is_done_after_a_beat(stage: Stage) -> None:
    beats: list[None] = []
    second = threading.Event()

    def on_beat() -> None:
        beats.append(None)
        if len(beats) > 1:
            second.set()
        raise ValueError("a defect")

    stage.lease(0.1, on_beat=on_beat)
    assert second.wait(60)


# --- pruning ---


def aged(stage: Stage, seconds: float) -> WorkerId:
    """A worker that expired so long ago."""
    worker = stage.lease(3600).worker
    with stage.store.write() as connection:
        connection.execute(update(workers).where(workers.c.id == worker).values(expires_at=later(-seconds)))
    return worker


def test_workers_that_are_long_gone_and_own_nothing_are_pruned(stage: Stage) -> None:
    gone, recent = aged(stage, PRUNE_AFTER * LENGTH + 10), aged(stage, PRUNE_AFTER * LENGTH - 10)
    assert leases.prune(stage.store, stage.namespace, timedelta(seconds=LENGTH)) == 1
    assert row_of(stage, gone) is None
    assert row_of(stage, recent) is not None


def test_a_worker_that_still_owns_a_run_is_not_pruned(stage: Stage) -> None:
    lease = stage.lease()
    stage.owned(lease)
    with stage.store.write() as connection:
        connection.execute(update(workers).where(workers.c.id == lease.worker).values(expires_at=later(-1e6)))
    assert leases.prune(stage.store, stage.namespace, timedelta(seconds=LENGTH)) == 0


def test_workers_of_another_namespace_are_left_alone(stage: Stage) -> None:
    gone = aged(stage, 1e6)
    assert leases.prune(stage.store, "elsewhere", timedelta(seconds=LENGTH)) == 0
    assert row_of(stage, gone) is not None
