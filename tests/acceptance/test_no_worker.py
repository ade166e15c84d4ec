"""Runs that no worker can execute wait untouched, and whoever waits for one is told."""

from __future__ import annotations

import pytest

import aft
from aft.flows.declare.registry import Registry
from tests.acceptance import shop
from tests.acceptance.shop import changing, parked
from tests.setups import Setup
from tests.world import Busy, trouble


def test_a_run_of_a_flow_that_this_worker_does_not_know_is_left_untouched(setup: Setup, order: str) -> None:
    app = setup.app()

    @aft.flow(name=f"elsewhere_{order}")
    def elsewhere(order: str) -> str:
        return shop.ship(order)

    run = app.submit(elsewhere, order)
    knows_not = setup.app()
    knows_not.registry = Registry()
    knows_not.registry.add_flow(shop.buy)
    with knows_not.dispatcher():
        assert knows_not.submit(shop.buy, order).result(60) == f"parcel-{order}"
        assert run.status == "running"
        assert run.row.epoch == 0
    with app.dispatcher():
        assert run.result(60) == f"parcel-{order}"


def test_somebody_who_waits_for_a_run_that_nobody_can_execute_is_told(setup: Setup, order: str) -> None:
    run = setup.app().submit(shop.buy, order)
    with pytest.warns(aft.NoWorkerWarning, match="aft dispatcher"), pytest.raises(TimeoutError, match="running"):
        run.result(2.0)  # not longer than it takes to be told


def heart_that_stops(app: aft.Aft, run: aft.Run) -> None:
    """Be a worker that knows the run's flow, and never send a heartbeat."""
    lease = app.make_lease()
    lease._stopping.set()
    lease.begin(roles=["work"], flows=[f"{run.row.flow}@{run.row.version}"])


def test_a_worker_that_is_late_with_its_heartbeat_is_not_taken_for_nobody(setup: Setup, order: str) -> None:
    """As after a machine stood still for longer than a lease: whoever waits there looks before the heart beats."""
    app = setup.app(lease="1900ms")
    run = app.submit(shop.buy, order)
    heart_that_stops(app, run)
    with pytest.raises(TimeoutError, match="running"):  # and no warning
        run.result(2.0)


def test_somebody_who_waits_when_the_last_worker_goes_is_told(setup: Setup, order: str) -> None:
    """Whoever could execute it was there before the first look, and is gone at the next."""
    app = setup.app(lease="1900ms")
    run = app.submit(shop.buy, order)
    heart_that_stops(app, run)
    with pytest.raises(aft.NoWorkerWarning, match="aft dispatcher"):  # warnings are errors here
        run.result(60)


def test_a_run_that_was_told_to_try_again_waits_for_a_worker_and_for_nobody_else(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]
    run = app.start(changing(f"told_{order}", lambda order: (shop.reserve(order), shop.ship(order))), order)
    changing(f"told_{order}", lambda order: (shop.label(order), shop.ship(order)))
    with app.dispatcher():
        parked(app, run)
    run.retry()
    with pytest.raises(aft.NoWorkerWarning):  # warnings are errors here
        run.result(60)
