"""Runs of flows that no live worker has: looked at with back-off, brought back by a worker that has them."""

from __future__ import annotations

import pytest

from aft.runs.ownership import claims
from aft.runs.run_rows import RunRow
from aft.runs.wakes import unserved_runs
from aft.store.db_time import later
from tests.storing import Stage

GRACE = 5.0


def due(stage: Stage, waited: float, **changes: object) -> RunRow:
    """A run that should have gone on so many seconds ago, and that the timer has looked at since."""
    run = stage.queued()
    stage.change(run.id, due_at=later(-waited), sweep_at=later(-3.0), **changes)
    return run


def postpone(stage: Stage) -> list[tuple[str, int]]:
    with stage.store.write() as connection:
        served = unserved_runs.served_flows(connection, stage.namespace)
        return unserved_runs.postpone(connection, stage.namespace, served, GRACE)


def seconds_left(stage: Stage) -> float:
    left = claims.read_due(stage.store, stage.namespace, [("order", 1)]).next
    assert left is not None
    return left


@pytest.mark.parametrize(("waited", "pause"), [(4.0, 5.0), (12.0, 15.0), (20.0, 30.0), (3600.0, 60.0)])
def test_a_run_that_nobody_has_the_flow_of_is_looked_at_later_and_later(
    stage: Stage, waited: float, pause: float
) -> None:
    run = due(stage, waited)
    assert postpone(stage) == [("order", 1)]
    assert pause - 4.0 < seconds_left(stage) <= pause
    assert (stage.row(run.id).epoch, stage.row(run.id).wake_id) == (run.epoch, run.wake_id)
    assert postpone(stage) == []


def test_a_run_that_a_live_worker_has_the_flow_of_is_not_put_off(stage: Stage) -> None:
    due(stage, 60.0)
    stage.lease(roles=["work"], flows=["order@1"])
    assert postpone(stage) == []
    assert seconds_left(stage) <= 0


def test_a_worker_that_has_gone_does_not_count(stage: Stage) -> None:
    due(stage, 60.0)
    lease = stage.lease(roles=["work"], flows=["order@1"])
    stage.expire(lease.worker)
    assert postpone(stage) == [("order", 1)]


@pytest.mark.parametrize("waited", [4.0, 600.0])
def test_a_worker_that_starts_brings_back_what_was_put_off_for_its_flows_only(stage: Stage, waited: float) -> None:
    run = due(stage, waited)
    stage.change(stage.queued().id, due_at=later(10.0), sweep_at=later(15.0))  # its time has not come: left alone
    postpone(stage)
    with stage.store.write() as connection:
        assert unserved_runs.bring_forward(connection, stage.namespace, [("other", 1)]) == 0
        assert unserved_runs.bring_forward(connection, stage.namespace, [("order", 1)]) == 1
    assert seconds_left(stage) <= 0
    assert stage.row(run.id).wake_id == run.wake_id
