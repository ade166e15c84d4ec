"""Claims about what is due: the next moment, who is urgent, who must be alone; and about claims in one statement."""

from __future__ import annotations

from functools import partial

import pytest

from aft.ids import WorkerId
from aft.runs.ownership import claims as claiming
from aft.runs.ownership.claims import Due, claim_now, find_due, read_due
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.store.db_time import later
from tests.storing import KNOWN, Stage, at_once


def look(stage: Stage) -> Due:
    return read_due(stage.store, stage.namespace, KNOWN)


def test_where_nothing_waits_nothing_is_due(stage: Stage) -> None:
    assert look(stage) == Due(None, False, False)


def test_the_next_run_is_told_by_the_seconds_that_are_left(stage: Stage) -> None:
    for seconds in (500.0, 300.0, 400.0):
        stage.change(stage.queued().id, sweep_at=later(seconds))
    found = look(stage)
    assert found.next is not None
    assert 250 < found.next <= 300
    assert (found.urgent, found.alone) == (False, False)


def test_a_run_that_is_due_has_no_seconds_left(stage: Stage) -> None:
    stage.change(stage.queued().id, sweep_at=later(-5.0))
    found = look(stage)
    assert found.next is not None
    assert found.next < 0


@pytest.mark.parametrize("due", [True, False])
def test_one_with_a_priority_is_urgent_when_it_is_due(stage: Stage, due: bool) -> None:
    stage.change(stage.queued(priority=5).id, sweep_at=later(-5.0 if due else 500.0))
    assert look(stage).urgent is due


@pytest.mark.parametrize("due", [True, False])
def test_one_that_must_be_alone_is_told_apart_and_is_no_worker_s_next(stage: Stage, due: bool) -> None:
    stage.change(stage.queued().id, sweep_at=later(-5.0 if due else 500.0), deaths=MOST_SHARED_DEATHS)
    assert look(stage) == Due(None, False, due)


def test_runs_of_others_are_not_looked_at(stage: Stage) -> None:
    stage.change(stage.queued(flow="unknown").id, sweep_at=later(-5.0))
    stage.change(stage.queued(version=2).id, sweep_at=later(-5.0))
    stage.change(stage.queued().id, sweep_at=later(-5.0), worker_id="somebody")
    assert look(stage) == Due(None, False, False)
    assert read_due(stage.store, stage.namespace + "x", KNOWN) == Due(None, False, False)
    assert read_due(stage.store, stage.namespace, []) == Due(None, False, False)


def test_a_claim_in_one_statement_is_the_claim_of_a_transaction(stage: Stage) -> None:
    lease = stage.lease()
    rows = [stage.queued() for _ in range(5)]
    wakes = [(row.id, row.wake_id or "") for row in rows]
    wakes[1] = (wakes[1][0], "something else")
    claimed = claim_now(stage.store, stage.namespace, lease.worker, wakes, KNOWN)
    assert {row.id for row in claimed} == {row.id for row in rows} - {rows[1].id}
    assert sorted(claimed, key=lambda row: row.id) == sorted(
        (stage.row(row.id) for row in claimed), key=lambda row: row.id
    )


def test_a_run_that_several_claim_at_once_has_one_owner(stage: Stage) -> None:
    leases = [stage.lease() for _ in range(4)]
    wakes = [(row.id, row.wake_id or "") for row in (stage.queued() for _ in range(20))]
    claims = [partial(claim_now, stage.store, stage.namespace, lease.worker, wakes, KNOWN) for lease in leases]
    found = at_once(claims)
    assert sorted(row.id for rows in found for row in rows) == sorted(run for run, _ in wakes)


def test_nothing_is_claimed_for_a_worker_that_nobody_knows(stage: Stage) -> None:
    row = stage.queued()
    wakes = [(row.id, row.wake_id or "")]
    assert claim_now(stage.store, stage.namespace, WorkerId("nobody"), wakes, KNOWN) == []


def test_a_run_that_two_wakes_name_is_claimed_once(stage: Stage) -> None:
    row = stage.queued()
    wakes = [(row.id, row.wake_id or "")] * 2
    assert len(claim_now(stage.store, stage.namespace, stage.lease().worker, wakes, KNOWN)) == 1


def test_a_flow_with_a_sign_in_its_name_is_no_other_flow(stage: Stage) -> None:
    row = stage.queued(flow="order@1", version=1)
    lease = stage.lease()
    wakes = [(row.id, row.wake_id or "")]
    assert claiming.claim_now(stage.store, stage.namespace, lease.worker, wakes, [("order", 1)]) == []
    assert len(claiming.claim_now(stage.store, stage.namespace, lease.worker, wakes, [("order@1", 1)])) == 1


def test_by_age_who_has_waited_longest_is_first_whatever_its_priority(stage: Stage) -> None:
    ids = {priority: stage.queued(priority=priority).id for priority in (0, 5, -5)}
    for waited, priority in ((10.0, 5), (20.0, 0), (30.0, -5)):
        stage.change(ids[priority], sweep_at=later(-waited))

    def find(**how: bool) -> list[str]:
        with stage.store.write() as connection:
            return [run for run, _ in find_due(connection, stage.namespace, KNOWN, 3, **how)]

    assert find() == [ids[5], ids[0], ids[-5]]
    assert find(by_age=True) == [ids[-5], ids[0], ids[5]]
    assert find(urgent=True) == [ids[5]]
