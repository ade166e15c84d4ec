"""A retry goes back before what tasks did because they were cancelled for the failure, and not for another reason."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, eventually
from tests.world import Refused, fixed, ledger, reached


def undo(order: str, what: str, result: None) -> None:
    ledger[order].append(f"un{what}")


@aft.compensate_with(undo)
@aft.activity(name="cancelled_for_do", unrecoverable=(Refused,))
def do(order: str, what: str) -> None:
    if what == "refused" and order not in fixed:
        reached[order, "failure"].set()
        raise Refused
    ledger[order].append(what)


@aft.activity(name="cancelled_for_charge")
def charge(order: str, what: str) -> None:
    """Cannot be undone, so executing it twice is charging twice."""
    ledger[order].append(what)


@aft.activity(name="cancelled_for_wait")
def do_after(order: str, what: str, signal: str) -> None:
    """Is executed when ``signal`` has come about."""
    assert reached[order, signal].wait(30)
    ledger[order].append(what)


@aft.activity(name="cancelled_for_say")
def say(order: str, signal: str) -> None:
    reached[order, signal].set()


@aft.activity(name="cancelled_for_flaky", levels=["50ms*600"])
def flaky(order: str, what: str) -> None:
    if order not in fixed:
        raise ConnectionError
    ledger[order].append(what)


def mistake(order: str) -> None:
    if order not in fixed:
        raise NameError("a bug")


async def steps(order: str, *whats: str) -> None:
    for what in whats:
        mistake(order) if what == "!" else await do.call(order, what)


async def reject(order: str) -> None:
    await do.call(order, "asked")
    raise Refused("sold out")


async def group_that_fails(order: str) -> None:
    """Fails as a group, which the code overcomes."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(reject(order))
            group.create_task(steps(order, "beside"))
    except* Refused:
        pass


@aft.flow(name="cancelled_for_other_group")
async def overcomes_another_group(order: str) -> None:
    """A task meets a bug; the flow overcomes the failure of a task group that has nothing to do with that."""
    background = asyncio.create_task(steps(order, "b", "!"))
    await do.call(order, "first")
    await group_that_fails(order)
    await charge.call(order, "money")
    await background


@aft.flow(name="cancelled_for_other_group_past_a_pivot")
async def overcomes_another_group_past_a_pivot(order: str) -> None:
    aft.pivot()
    background = asyncio.create_task(steps(order, "refused"))
    await aft.sleep("1200ms")  # longer than tasks hold back for a failure beside them
    await group_that_fails(order)
    await charge.call(order, "money")
    await background


async def meter(order: str) -> None:
    try:
        await aft.wait_for("never")
    finally:
        await charge.call(order, "final bill")


@aft.flow(name="cancelled_for_stopped_before")
async def stops_a_helper_before(order: str) -> None:
    """A helper is cancelled, and settles up, before a task meets a bug."""
    helper = asyncio.create_task(meter(order))
    await do.call(order, "use")
    helper.cancel()
    async with asyncio.TaskGroup() as group:
        group.create_task(steps(order, "b", "!", "c"))
        group.create_task(steps(order, "d"))


@aft.flow(name="cancelled_for_stopped_and_awaited_before")
async def stops_a_helper_and_awaits_it(order: str) -> None:
    helper = asyncio.create_task(meter(order))
    await do.call(order, "use")
    helper.cancel()
    await asyncio.wait([helper])
    await do.call(order, "ship")
    async with asyncio.TaskGroup() as group:
        group.create_task(steps(order, "b", "!", "c"))
        group.create_task(steps(order, "d"))


@pytest.mark.parametrize(
    ("flow", "charged"),
    [
        (overcomes_another_group, "money"),
        (overcomes_another_group_past_a_pivot, "money"),
        (stops_a_helper_before, "final bill"),
        (stops_a_helper_and_awaits_it, "final bill"),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_what_a_task_did_that_was_cancelled_for_another_reason_stays(setup: Setup, flow: Any, charged: str) -> None:
    order = secrets.token_hex(4)
    end_after_fix(setup, flow, order)
    assert ledger[order].count(charged) == 1
    assert not [deed for deed in ledger[order] if deed.startswith("un")]


@aft.flow(name="cancelled_for_gathering")
async def gathers_in_a_group(order: str) -> None:
    """A task that gathers steps is cancelled for the bug of another one: both steps end for nobody."""

    async def gathers() -> None:
        await asyncio.gather(flaky.call(order, "p"), flaky.call(order, "q"))

    async with asyncio.TaskGroup() as group:
        group.create_task(steps(order, "x", "!"))
        group.create_task(gathers())


def test_all_that_a_cancelled_task_gathered_is_executed_after_the_fix(setup: Setup) -> None:
    order = secrets.token_hex(4)
    end_after_fix(setup, gathers_in_a_group, order)
    assert sorted(ledger[order]) == ["p", "q", "x"]


async def tidies_up(order: str) -> None:
    """Has overcome being cancelled once; then it is cancelled for the failure of another task, at work."""
    await group_that_fails(order)
    await works_and_tidies_up(order)


async def works_and_tidies_up(order: str) -> None:
    try:
        await say.call(order, "at work")
        await do_after.call(order, "work", "failure")
        await do.call(order, "more")
    finally:
        await do.call(order, "tidy")


async def went_on(order: str) -> None:
    """Was told to stop by itself, and went on."""
    task = asyncio.current_task()
    assert task is not None
    try:
        task.cancel()
        await do.call(order, "never")
    except asyncio.CancelledError:
        task.uncancel()
    await works_and_tidies_up(order)


async def fails_meanwhile(order: str, *whats: str) -> None:
    await do_after.call(order, "meanwhile", "at work")
    try:
        await steps(order, *whats)
    finally:
        reached[order, "failure"].set()


@aft.flow(name="cancelled_for_twice")
async def is_cancelled_twice(order: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(tidies_up(order))
        group.create_task(fails_meanwhile(order, "!"))


@aft.flow(name="cancelled_for_after_going_on")
async def is_cancelled_after_it_went_on(order: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(went_on(order))
        group.create_task(fails_meanwhile(order, "!"))


@aft.flow(name="cancelled_for_twice_past_a_pivot")
async def is_cancelled_twice_past_a_pivot(order: str) -> None:
    aft.pivot()
    async with asyncio.TaskGroup() as group:
        group.create_task(tidies_up(order))
        group.create_task(fails_meanwhile(order, "refused"))


@pytest.mark.parametrize(
    "flow",
    [is_cancelled_twice, is_cancelled_after_it_went_on, is_cancelled_twice_past_a_pivot],
    ids=lambda flow: flow.name,
)
def test_a_task_that_had_been_cancelled_before_goes_back_before_what_it_did_for_the_failure(
    setup: Setup, flow: Any
) -> None:
    order = secrets.token_hex(4)
    end_after_fix(setup, flow, order)
    done = ledger[order]
    assert {what: done.count(what) - done.count(f"un{what}") for what in ("work", "more", "tidy")} == {
        "work": 1,
        "more": 1,
        "tidy": 1,
    }


def end_after_fix(setup: Setup, flow: Any, order: str) -> None:
    """Execute a flow until it parks, mend what was wrong, and let it be tried again to its end."""
    app = setup.app()
    with app.dispatcher(concurrency=4):
        run = app.submit(flow, order)
        eventually(lambda: run.status is Status.PARKED)
        fixed.add(order)
        run.retry(by="ann", note="mended")
        run.result(30)
