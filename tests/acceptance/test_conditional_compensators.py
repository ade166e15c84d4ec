"""A compensator that depends on the result: nothing is undone where nothing is owed, however its frame came to be."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from sqlalchemy import select

import aft
from aft.compensation.registry import make_compensator
from aft.flows.declare.registry import Registry
from aft.runs.states import Status
from aft.store.tables import frames, late_effects
from aft.telemetry import EffectLate, Event
from tests.acceptance.agency import book, do
from tests.setups import Setup, eventually
from tests.world import Refused, ledger, shut, trouble

#: What the bank knows of.
bank: dict[tuple[str, str], int] = {}


def refund(journey: str, what: str) -> None:
    ledger[journey].append(f"refund {what}")


async def refund_async(journey: str, what: str, result: object) -> None:
    ledger[journey].append(f"refund {what}: {result}")


def ask_bank(journey: str, what: str) -> int | None:
    return bank.get((journey, what))


@aft.compensate_with(refund, only_if=lambda result: result > 0)
@aft.activity(name="only_if_charge", probe=ask_bank, levels=[], unrecoverable=(Refused,))
def charge(journey: str, what: str, amount: int) -> int:
    """Charge; the answer may be lost."""
    ledger[journey].append(what)
    bank[journey, what] = amount
    do(journey, "answer")
    return amount


@aft.compensate_with(refund_async, only_if=lambda result: result > 0)
@aft.activity(name="only_if_charge_async", probe=ask_bank, levels=[], unrecoverable=(Refused,))
def charge_async(journey: str, what: str, amount: int) -> int:
    """The same, undone by a coroutine that asks for the result."""
    return charge.fn(journey, what, amount)


@aft.flow(name="only_if_order")
def order(journey: str, amount: int) -> None:
    charge(journey, "charge", amount)
    book(journey, "end")


@aft.flow(name="only_if_order_async")
def order_async(journey: str, amount: int) -> None:
    charge_async(journey, "charge", amount)
    book(journey, "end")


@aft.flow(name="only_if_monthly")
def monthly(journey: str, month: int = 1) -> str:
    charge(journey, f"charge {month}", 0)
    if month < 3:
        aft.continue_as_new(journey, month + 1)
    return "all months"


ORDERS = [
    *((order, 0, []), (order, 5, ["refund charge"])),
    *((order_async, 0, []), (order_async, 5, ["refund charge: 5"])),
]


@pytest.mark.parametrize(("flow", "amount", "undone"), ORDERS)
def test_what_charged_nothing_is_not_refunded_though_its_frame_was_armed(
    setup: Setup, journey: str, flow: aft.Flow[[str, int], None], amount: int, undone: list[str]
) -> None:
    app = setup.app()
    trouble[journey, "end"] = [Refused("no")]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(flow, journey, amount).result(60)
    assert ledger[journey] == ["charge", "answer", "end!", *undone]


@pytest.mark.parametrize(("flow", "amount", "undone"), ORDERS)
def test_nor_where_only_the_probe_knows_that_it_charged_nothing(
    setup: Setup, journey: str, flow: aft.Flow[[str, int], None], amount: int, undone: list[str]
) -> None:
    app = setup.app()
    trouble[journey, "answer"] = [Refused("no answer")]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(flow, journey, amount).result(60)
    assert ledger[journey] == ["charge", "answer!", *undone]


def test_a_frame_that_owes_nothing_is_gone_with_the_outcome(setup: Setup, journey: str) -> None:
    """Later generations have steps with the same path, and none of them is executed twice."""
    app = setup.app()
    with app.dispatcher():
        run = app.submit(monthly, journey)
        assert run.result(60) == "all months"
        with app.store.read() as connection:
            found = connection.execute(select(frames.c.seq).where(frames.c.run_id == run.id)).all()
    assert [what for what in ledger[journey] if what != "answer"] == ["charge 1", "charge 2", "charge 3"]
    assert not found


# Late -------------------------------------------------------------------------------------------------------------


@aft.compensate_with(refund, only_if=lambda result: result > 0)
@aft.activity(name="only_if_slow", timeout="300ms", levels=[])
def charge_slowly(journey: str, what: str, amount: int) -> int:
    do(journey, what)
    return amount


@aft.flow(name="only_if_late")
def late(journey: str, amount: int) -> None:
    charge_slowly(journey, "charge", amount)


@pytest.mark.parametrize(("amount", "undone"), [(0, []), (5, ["refund charge"])])
def test_a_late_effect_that_owes_nothing_is_not_undone(
    setup: Setup, journey: str, amount: int, undone: list[str]
) -> None:
    app, heard = setup.app(), list[Event]()
    app.telemetry.subscribe(heard.append)
    gate = shut(journey, "charge")
    with app.dispatcher():
        run = app.submit(late, journey, amount)
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        gate.set()
        eventually(lambda: any(isinstance(event, EffectLate) for event in heard))
        eventually(lambda: ledger[journey] == ["charge", *undone])
        with app.store.read() as connection:
            kept = connection.execute(select(late_effects.c.id).where(late_effects.c.run_id == run.id)).all()
    assert len(kept) == len(undone)


# Arguments that an activity got since --------------------------------------------------------------------------


def reserve(journey: str) -> None:
    do(journey, "reserve")


def reserve_in(journey: str, currency: str = "EUR") -> None:
    do(journey, "reserve")


def release(journey: str) -> None:
    ledger[journey].append("release")


def release_in(journey: str, currency: str) -> None:
    ledger[journey].append(f"release {currency}")


def _reserving(reserve: Any, release: Any) -> aft.Activity[Any, Any]:
    parameters = list(inspect.signature(reserve).parameters)
    undo = make_compensator("only_if_reserve", parameters, "only_if_release", release, "completed")
    return aft.Activity(reserve, name="only_if_reserve", compensator=undo)


def test_a_compensator_gets_the_default_of_an_argument_that_its_activity_got_since(setup: Setup, journey: str) -> None:
    before, after = setup.app(), setup.app()
    for app, activity in ((before, _reserving(reserve, release)), (after, _reserving(reserve_in, release_in))):
        app.registry = Registry()
        app.registry.add_activity(activity)
        app.registry.add_flow(aft.Flow(_waiting(activity), name="only_if_reserving"))
    with before.dispatcher():
        run = before.submit(before.registry.flow("only_if_reserving"), journey)
        eventually(lambda: run.status is Status.WAITING)
    with after.dispatcher():
        run.cancel()
        eventually(lambda: run.status.ended)
    assert (run.status, ledger[journey]) == (Status.COMPENSATED, ["reserve", "release EUR"])


def _waiting(activity: Any) -> Any:
    def reserving(journey: str) -> None:
        activity(journey)
        aft.wait_for("word")

    return reserving


def revoke(order: str, result: object) -> None:
    ledger[order].append(f"revoke {result!r}")


@aft.compensate_with(revoke, when="started")
@aft.activity(levels=[], unrecoverable=(Refused,))
def asks(order: str) -> None:
    ledger[order].append("asks")
    raise Refused(order)


@aft.flow
def catching(order: str) -> str:
    try:
        asks(order)
    except Refused:
        return "another way"
    return "asked"


def test_a_started_activity_that_failed_is_undone_even_if_the_flow_takes_another_way(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(catching, order).result(60) == "another way"
    assert ledger[order] == ["asks", "revoke aft.UNKNOWN"]
