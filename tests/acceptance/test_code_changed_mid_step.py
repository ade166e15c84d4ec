"""Code that changes while a step is under way: it must still ask for that step, or the run is parked before it acts."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, eventually, run_to
from tests.world import fixed, gates, ledger, reached, retry_after_fix

#: Orders whose process has the new code, and those whose service answers.
changed: set[str] = set()
answers: set[str] = set()


def refund(order: str, result: str | aft.Unknown) -> None:
    ledger[order].append("refund")


@aft.compensate_with(refund)
@aft.activity(name="begun_pay")
def pay(order: str) -> str:
    ledger[order].append("pay")
    return order


@aft.activity(name="begun_check")
def check(order: str) -> str:
    ledger[order].append("check")
    return order


@aft.compensate_with(refund, when="started")
@aft.activity(name="begun_started", levels=["100ms*100"])
def pay_started(order: str) -> str:
    return _try(order)


@aft.compensate_with(refund)
@aft.activity(name="begun_plain", levels=["100ms*100"])
def pay_plain(order: str) -> str:
    return _try(order)


def _try(order: str) -> str:
    if order not in answers:
        raise aft.Recoverable("no answer")
    ledger[order].append("pay")
    return order


@aft.flow(name="begun_payment")
def payment(order: str) -> str:
    aft.wait_for("bank")
    return pay(order)


@aft.flow(name="begun_child")
def before_a_child(order: str) -> str:
    if order in changed:
        check(order)
    return payment(order)


@aft.flow(name="begun_children")
def before_children(order: str) -> list[str]:
    if order in changed:
        check(order)
    return aft.map(payment, [order])


@aft.flow(name="begun_gone")
def without_a_child(order: str) -> str:
    return order if order in changed else payment(order)


@aft.flow(name="begun_beside")
async def beside_a_child(order: str) -> str:
    async def one() -> str:
        return await payment.call(order)

    async def two() -> str:
        return await (check.call(order) if order in changed else payment.call(order))

    if order in changed:
        return (await asyncio.gather(two(), one()))[1]
    return (await asyncio.gather(one(), check_later(order)))[0]


async def check_later(order: str) -> None:
    await aft.wait_for("later")


@aft.flow(name="begun_before_started")
def before_one_that_is_started(order: str) -> str:
    if order in changed:
        check(order)
    return pay_started(order)


@aft.flow(name="begun_before_plain")
def before_one_in_its_ladder(order: str) -> str:
    if order in changed:
        check(order)
    return pay_plain(order)


@aft.flow(name="begun_sleep")
def sleeps_instead(order: str) -> str:
    if order in changed:
        aft.sleep("10ms")
    return pay_plain(order)


def find_child(app: aft.Aft) -> aft.Run:
    eventually(lambda: app.runs(flow="begun_payment", status="waiting"))
    (child,) = app.runs(flow="begun_payment")
    return child


@pytest.mark.parametrize(
    "flow", [before_a_child, before_children, without_a_child, beside_a_child], ids=lambda flow: flow.name
)
def test_a_child_under_way_is_not_begun_again_by_other_code(setup: Setup, order: str, flow: Any) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(flow, order)
        child = find_child(app)
        eventually(lambda: run.status is Status.WAITING and run.row.worker_id is None)
        changed.add(order)
        child.signal("bank")
        eventually(lambda: run.status is Status.PARKED)
        assert "was begun as a child" in (run.row.reason or "")
        changed.discard(order)
        run.signal("later")
        run.retry()
        run.result(60)
        assert len(app.runs(flow="begun_payment")) == 1
    assert ledger[order] == ["pay"]


@pytest.mark.parametrize(
    "flow", [before_one_that_is_started, before_one_in_its_ladder, sleeps_instead], ids=lambda flow: flow.name
)
def test_a_step_in_its_ladder_is_not_taken_for_another(setup: Setup, order: str, flow: Any) -> None:
    with run_to(setup.app(), flow, order, status=Status.RECOVERING) as run:
        changed.add(order)
        eventually(lambda: run.status is Status.PARKED)
        assert "was begun as activity 'begun_" in (run.row.reason or "")
        changed.discard(order)
        answers.add(order)
        run.retry()
        run.result(60)
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[order] == ["pay", "refund"]


# A child that a retry went back before ---------------------------------------------------------------------------


@aft.flow(name="begun_telling")
def tell(order: str) -> str:
    """A child of which nothing is to be undone."""
    return check(order)


@aft.activity(name="begun_ship")
def ship(order: str) -> str:
    reached[order].set()
    assert gates[order].wait(60)
    return "shipped"


@aft.activity(name="begun_charge")
def charge(order: str) -> str:
    if order not in fixed:
        raise ValueError("refused")
    return order


@aft.flow(name="begun_bug_told")
def with_a_bug(order: str) -> str:
    try:
        assert order in fixed
    except AssertionError:
        tell(order)
        raise
    return ship(order)


@aft.flow(name="begun_pivot_told")
def past_its_pivot(order: str) -> str:
    aft.pivot()
    try:
        charge(order)
    except ValueError:
        tell(order)
        raise
    return ship(order)


@pytest.mark.parametrize("flow", [with_a_bug, past_its_pivot], ids=lambda flow: flow.name)
def test_a_child_that_a_retry_went_back_before_is_not_missed_when_a_worker_is_lost(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), flow, order) as run:
        retry_after_fix(run, order)
        assert reached[order].wait(60)
        run.release()  # as if its worker were lost
        gates[order].set()
        assert run.result(60) == "shipped"
    assert ledger[order] == ["check"]
