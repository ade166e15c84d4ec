"""Mistakes in a flow's code: each has a clear answer, and none loses or undoes anything by accident."""

from __future__ import annotations

import asyncio

import pytest

import aft
from tests.acceptance import shop
from tests.acceptance.shop import changing, parked
from tests.setups import Setup
from tests.world import Busy, ledger, trouble


def test_code_that_no_longer_matches_its_journal_parks_and_names_the_step(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]

    def before(order: str) -> str:
        shop.reserve(order)
        return shop.ship(order)

    def after(order: str) -> str:
        shop.label(order)
        return shop.ship(order)

    run = app.start(changing(f"deploy_{order}", before), order)
    changing(f"deploy_{order}", after)
    with app.dispatcher():
        reason = parked(app, run)
        assert "ReplayDiverged" in reason
        assert "step 1 is activity 'reserve'" in reason
        assert "'label'" in reason
        assert ledger[order] == ["reserve", "ship!"]  # nothing undone
        changing(f"deploy_{order}", before)
        run.retry(note="rolled back")
        assert run.result(60) == f"parcel-{order}"


def test_code_that_ends_before_its_journal_parks(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]

    def before(order: str) -> str:
        shop.reserve(order)
        return shop.ship(order)

    run = app.start(changing(f"short_{order}", before), order)
    changing(f"short_{order}", lambda order: None)
    with app.dispatcher():
        assert "the flow returned, but the journal goes on with step 1, activity 'reserve'" in parked(app, run)


def test_code_that_now_raises_before_its_journal_ends_is_not_undone_by_accident(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]

    def before(order: str) -> str:
        shop.reserve(order)
        return shop.ship(order)

    def after(order: str) -> str:
        raise RuntimeError("changed my mind")

    run = app.start(changing(f"raise_{order}", before), order)
    changing(f"raise_{order}", after)
    with app.dispatcher():
        assert "the flow now raises RuntimeError" in parked(app, run)
    assert ledger[order] == ["reserve", "ship!"]


def test_a_bug_in_the_flows_own_code_parks_and_goes_on_after_the_fix(setup: Setup, order: str) -> None:
    app = setup.app()

    def buggy(order: str) -> str:
        shop.reserve(order)
        return undefined_name  # type: ignore[name-defined, no-any-return]  # noqa: F821

    def fixed(order: str) -> str:
        shop.reserve(order)
        return "fine"

    run = app.start(changing(f"bug_{order}", buggy), order)
    assert "NameError" in parked(app, run)
    (fault,) = app.faults()
    assert "undefined_name" in fault.traceback
    changing(f"bug_{order}", fixed)
    with app.dispatcher():
        run.retry()
        assert run.result(60) == "fine"
    assert ledger[order] == ["reserve"]


def test_any_other_exception_of_flow_code_undoes_everything(setup: Setup, order: str) -> None:
    def refusing(order: str) -> str:
        shop.reserve(order)
        raise ValueError("changed my mind")

    run = setup.app().start(changing(f"own_{order}", refusing), order)
    with pytest.raises(aft.FlowCompensated, match="changed my mind"):
        run.result(0)
    assert ledger[order] == ["reserve", "release"]


@pytest.mark.parametrize("what", ["sleep", "future", "thread"])
def test_awaiting_anything_but_an_activity_is_refused_and_undoes_nothing(setup: Setup, order: str, what: str) -> None:
    async def body(order: str) -> None:
        shop.reserve(order)
        if what == "thread":
            await asyncio.to_thread(print)
        if what == "future":
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(1.0)

    @aft.flow(name=f"foreign_{order}")
    async def foreign(order: str) -> None:
        await body(order)

    run = setup.app().start(foreign, order)
    assert "may await activities only" in (run.row.reason or "")
    assert run.status == "parked"
    assert ledger[order] == ["reserve"]


def test_an_activity_that_is_called_but_not_awaited_parks(setup: Setup, order: str) -> None:
    @aft.flow(name=f"forgot_{order}")
    async def forgot(order: str) -> None:
        shop.pay(order, 1)  # type: ignore[call-overload]

    assert "never awaited" in (setup.app().start(forgot, order).row.reason or "")


def test_a_result_that_cannot_be_stored_parks_because_its_effect_has_happened(setup: Setup, order: str) -> None:
    @aft.activity(name=f"returns_{order}")
    def returns(order: str) -> int:
        return order  # type: ignore[return-value]

    run = setup.app().start(changing(f"result_{order}", lambda order: returns(order)), order)
    assert run.status == "parked"
    assert "cannot be stored" in (run.row.reason or "")
