"""Claims about parking runs that nobody owns: no order is lost by it, and one that was put off wakes nobody again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from aft.dispatcher.sweep.late_effects import LateEffectSweep
from aft.ids import RunId, StepPath, new_id
from aft.runs import park as parking
from aft.runs.orders import steer
from aft.runs.records import inbox, late_effects
from aft.runs.records.inbox import InboxVerb
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.records.late_effects import LateEffect
from aft.runs.states import Status
from aft.runs.wakes import wake
from aft.runs.wakes.wake import NewInboxItem
from tests.storing import GRACE, Stage, actor, journal_in


def cancel(stage: Stage, run_id: RunId) -> None:
    with stage.store.write() as connection:
        run = wake.lock(connection, stage.namespace, run_id)
        assert run is not None
        steer.cancel(connection, run, actor("ann"))


def park(stage: Stage, run_id: RunId) -> bool:
    with stage.store.write() as connection:
        wake.lock(connection, stage.namespace, run_id)
        return parking.park(connection, run_id, "look")


def items(stage: Stage, run_id: RunId) -> list[inbox.InboxItem]:
    with stage.store.read() as connection:
        return inbox.unread(connection, run_id)


@pytest.fixture
def left(stage: Stage) -> RunId:
    """A run that an owner has let go, and that awaits a decision."""
    owner = stage.owned(stage.lease())
    stage.change(owner.run_id, status="recovering", worker_id=None)
    return owner.run_id


def test_a_run_without_orders_is_parked_and_nothing_wakes_it(stage: Stage, left: RunId) -> None:
    stage.change(left, wake_id="somebody", due_at=datetime.now(UTC), sweep_at=datetime.now(UTC))
    assert park(stage, left)
    row = stage.row(left)
    assert (row.status, row.reason, row.wake_id, row.due_at) == (Status.PARKED, "look", None, None)


def test_an_order_that_its_sender_woke_the_run_for_wakes_it_still(stage: Stage, left: RunId) -> None:
    cancel(stage, left)
    assert park(stage, left)
    row, (item,) = stage.row(left), items(stage, left)
    assert (row.status, row.wake_id) == (Status.PARKED, item.id)
    assert row.due_at is not None


def test_an_order_that_a_lost_owner_had_not_read_wakes_the_run(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    cancel(stage, owner.run_id)  # its owner is told, and nobody else
    stage.change(owner.run_id, status="recovering", worker_id=None)
    assert stage.row(owner.run_id).wake_id is None
    assert park(stage, owner.run_id)
    (item,) = items(stage, owner.run_id)
    assert stage.row(owner.run_id).wake_id == item.id


def test_an_order_that_an_owner_has_put_off_does_not_wake_the_run_again(stage: Stage, left: RunId) -> None:
    cancel(stage, left)
    with stage.store.write() as connection:
        inbox.put_off(connection, left, items(stage, left)[0].seq)
    assert park(stage, left)
    assert stage.row(left).wake_id is None


def test_a_signal_does_not_wake_a_run_that_is_parked(stage: Stage, left: RunId) -> None:
    with stage.store.write() as connection:
        run = wake.lock(connection, stage.namespace, left)
        assert run is not None
        post = NewInboxItem(InboxVerb.SIGNAL, {"name": "go"}, "ann", datetime.now(UTC), GRACE)
        wake.send(connection, run, post, lambda row: True)
    assert park(stage, left)
    assert stage.row(left).wake_id is None


def test_a_run_that_somebody_has_is_not_parked_by_others(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    assert not park(stage, owner.run_id)
    assert stage.row(owner.run_id).status is Status.RUNNING


def test_a_run_is_parked_for_a_late_effect_only_when_its_orders_are_carried_out(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    given = {"path": StepPath("1"), "scope": "", "activity": "charge", "key": "k", "key_generation": 0}
    effect = LateEffect(
        run_id=owner.run_id,
        namespace=stage.namespace,
        compensator=None,
        epoch=owner.epoch,
        args="{}",
        value="42",
        **cast(Any, given),
    )
    failed = Entry(StepPath("1"), "", EntryKind.ACTIVITY, "charge", Outcome.FAILED, datetime.now(UTC))
    with stage.store.write() as connection:
        late_effects.write(connection, new_id(), effect)
        journal_in(connection, owner, 99, failed)
    stage.change(owner.run_id, status="waiting", worker_id=None)
    cancel(stage, owner.run_id)
    woken = stage.row(owner.run_id).wake_id
    sweeper = LateEffectSweep(stage.dispatcher_deps(), 100)
    assert sweeper.sweep() == 0
    row = stage.row(owner.run_id)
    assert (row.status, row.wake_id) == (Status.WAITING, woken)
    with stage.store.write() as connection:
        inbox.mark_read(connection, owner.run_id, owner.epoch, inbox.unread(connection, owner.run_id))
    assert sweeper.sweep() == 1
    row = stage.row(owner.run_id)
    assert (row.status, row.wake_id) == (Status.PARKED, None)
