"""One owner at a time: a worker that stops beating loses its runs, and what it does afterwards is fenced or undone."""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import update

import aft
from aft.store.leases import end_leases
from aft.store.tables import runs
from aft.telemetry import ServiceFailed
from tests.acceptance import shop
from tests.acceptance.observe import late_effects
from tests.setups import Setup, eventually
from tests.world import Busy, gates, ledger, paused_owner, reached, trouble


def undo_hold(order: str, result: str) -> None:
    ledger[order].append(f"undo {result}")


@aft.compensate_with(undo_hold)
@aft.activity(levels=[])
def hold(order: str) -> str:
    """Blocks for its first caller; fails for the second if told so."""
    epoch = aft.current().epoch
    ledger[order].append(f"hold {epoch}")
    if epoch == 1:
        assert gates[order].wait(60)
    elif order.startswith("fail"):
        raise shop.OutOfStock(order, 0)
    return f"held by {epoch}"


@aft.activity(levels=[])
def touch(order: str) -> str:
    epoch = aft.current().epoch
    ledger[order].append(f"touch {epoch}")
    if epoch == 1:
        assert gates[order].wait(60)
    else:
        raise shop.OutOfStock(order, 0)
    return "touched"


@aft.flow
def holding(order: str) -> str:
    return hold(order)


@aft.flow
def touching(order: str) -> str:
    return touch(order)


def test_a_run_whose_owner_stopped_beating_is_rescued_as_an_abort_and_completes(setup: Setup) -> None:
    order = secrets.token_hex(4)
    with paused_owner(setup, holding, order) as run, setup.app(grace="300ms").dispatcher():
        assert run.result(60) == "held by 3"
        (fault,) = setup.apps[0].faults()
        assert (fault.kind, fault.state) == ("abort", "resolved")
        gates[order].set()
        # The stale owner was refused; its effect is the recorded step's, under the same key.
        eventually(lambda: late_effects(setup.apps[0]) == ["drop"])
        assert run.result(0) == "held by 3"
    assert ledger[order] == ["hold 1", "hold 3"]


def test_a_late_effect_of_a_step_that_failed_is_undone_by_its_compensator(setup: Setup) -> None:
    order = f"fail{secrets.token_hex(4)}"
    with paused_owner(setup, holding, order) as run, setup.app(grace="300ms").dispatcher():
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        gates[order].set()
        eventually(lambda: "undo held by 1" in ledger[order])
        eventually(lambda: late_effects(setup.apps[0]) == ["undo"] and run.row.worker_id is None)
        assert run.status == "compensated"
    assert ledger[order] == ["hold 1", "hold 3", "undo held by 1"]


def test_a_late_effect_that_nothing_can_undo_parks_the_run_where_a_person_sees_it(setup: Setup) -> None:
    order = f"fail{secrets.token_hex(4)}"
    with paused_owner(setup, touching, order) as run, setup.app(grace="300ms").dispatcher():
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        gates[order].set()
        eventually(lambda: run.status == "parked")
        assert "late effect" in (run.row.reason or "")
        run.retry(note="undone by hand")
        eventually(lambda: run.status == "compensated")


def test_a_run_that_is_owned_but_executed_by_nobody_is_found_by_its_owner(setup: Setup, quick_beats: float) -> None:
    """As after a claim whose COMMIT happened and whose answer was lost."""
    order = secrets.token_hex(4)
    app = setup.app(lease=quick_beats, grace="5m")
    run = app.submit(shop.buy, order)
    dispatcher = app.dispatcher()
    with app.store.write() as connection:  # before the dispatcher's own services could take it
        owned = (
            update(runs).where(runs.c.id == run.id).values(worker_id=dispatcher._lease.worker, wake_id=None, epoch=1)
        )
        assert connection.execute(owned).rowcount == 1
    with dispatcher:
        assert run.result(60) == f"parcel-{order}"
    assert [fault.kind for fault in app.faults()] == ["abort"]


def test_a_worker_whose_lease_ran_out_becomes_another_and_its_runs_are_rescued(setup: Setup) -> None:
    """As after a pause that nobody else noticed: beating on under the old name would keep its runs for ever."""
    order = secrets.token_hex(4)
    app = setup.app(lease="2s", grace="300ms")
    with app.dispatcher() as dispatcher:
        run = app.submit(shop.with_slow, order)
        assert reached[order].wait(60)
        before = dispatcher._lease.worker

        def became_another() -> bool:
            if dispatcher._lease.worker != before:
                return True
            dispatcher._lease._deadline = float("-inf")  # again, if a heartbeat was just under way
            return False

        eventually(became_another)
        eventually(lambda: [fault.kind for fault in app.faults()] == ["abort"])
        gates[order].set()
        assert run.result(60) == f"parcel-{order}"
    assert ledger[order].count("reserve") == 1


@pytest.mark.filterwarnings("ignore::aft.NoWorkerWarning")  # until the dispatcher has another lease, there is none
def test_a_lease_that_a_person_ended_is_no_failure_of_whoever_receives(setup: Setup) -> None:
    order = secrets.token_hex(4)
    app = setup.app(grace="300ms")
    failures: list[str] = []
    app.telemetry.subscribe(lambda event: failures.append(event.why) if isinstance(event, ServiceFailed) else None)
    with app.dispatcher() as dispatcher:
        before = dispatcher._lease.worker
        with app.store.write() as connection:
            assert end_leases(connection, app.namespace, [before])
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
        assert dispatcher._lease.worker != before
    assert [why for why in failures if "lease" in why] == []  # a slow dial may be told, on a busy machine


def test_no_message_at_all_costs_delay_and_no_run(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is published is lost on the way; the sweeper and the timer keep every run going."""
    app = setup.app(grace="300ms")
    monkeypatch.setattr(app.broker, "publish", lambda messages: None)
    orders = [secrets.token_hex(4) for _ in range(5)]
    for order in orders:
        trouble[order, "reserve"] = [Busy()]
        trouble[order, "ship"] = [shop.OutOfStock("book", 0)]
    with app.dispatcher():
        for run in [app.submit(shop.buy, order) for order in orders]:
            with pytest.raises(aft.FlowCompensated):
                run.result(60)
    for order in orders:
        assert ledger[order] == ["reserve!", "reserve", "pay", "ship!", "refund", "release"]


def test_many_dispatchers_execute_each_step_once(setup: Setup) -> None:
    orders = [secrets.token_hex(4) for _ in range(20)]
    for order in orders:
        trouble[order, "pay"] = [Busy()]
    first, second = setup.app(), setup.app()
    with first.dispatcher(concurrency=4), second.dispatcher(concurrency=4):
        runs = [first.submit(shop.buy, order) for order in orders]
        for run, order in zip(runs, orders, strict=True):
            assert run.result(60) == f"parcel-{order}"
    for order in orders:
        assert ledger[order] == ["reserve", "pay!", "pay", "ship"]
