"""Past a pivot, a retry goes back before what the code did because it knew of the failure, and before nothing else."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, eventually
from tests.world import Refused, fixed, ledger


@aft.activity(name="knowing_tell", unrecoverable=(Refused,))
async def tell(order: str) -> None:
    if order not in fixed:
        raise Refused
    ledger[order].append("told")


@aft.activity(name="knowing_charge")
async def charge(order: str, what: str) -> None:
    """Cannot be undone, so executing it twice is charging twice."""
    ledger[order].append(what)


async def beside(order: str) -> None:
    await tell(order)


async def bill(order: str, what: str) -> None:
    await charge(order, what)


@aft.flow(name="knowing_flow")
async def goes_on(order: str) -> None:
    """The flow itself goes on while its task fails, and looks at the task in the end."""
    aft.pivot()
    told = asyncio.create_task(beside(order))
    await aft.sleep("200ms")
    await charge(order, "rest")
    await told


@aft.flow(name="knowing_group")
async def begins_tasks(order: str) -> None:
    aft.pivot()
    told = asyncio.create_task(beside(order))
    await aft.sleep("200ms")
    await charge(order, "rest")
    async with asyncio.TaskGroup() as group:
        group.create_task(bill(order, "a"))
        group.create_task(bill(order, "b"))
    await charge(order, "last")
    await told


@aft.flow(name="knowing_gather")
async def gathers_others(order: str) -> None:
    aft.pivot()
    told = asyncio.create_task(beside(order))
    await asyncio.gather(bill(order, "a"), bill(order, "b"))
    await charge(order, "rest")
    await asyncio.wait([told])
    told.result()


@aft.flow(name="knowing_stopped")
async def stops_another(order: str) -> None:
    """A task that is cancelled for another reason tidies up."""
    aft.pivot()

    async def reminds() -> None:
        try:
            await aft.sleep("1h")
        finally:
            await charge(order, "tidied")

    told, reminder = asyncio.create_task(beside(order)), asyncio.create_task(reminds())
    await aft.sleep("200ms")
    reminder.cancel()
    await charge(order, "rest")
    await told


@pytest.mark.parametrize("flow", [goes_on, begins_tasks, gathers_others, stops_another], ids=lambda flow: flow.name)
def test_what_did_not_know_of_the_failure_is_not_executed_again(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    done = fail_and_retry(setup, flow, order)
    assert sorted(ledger[order]) == sorted([*done, "told"])


@aft.flow(name="knowing_caught")
async def catches(order: str) -> None:
    """The flow looks at the task that failed, takes another way, and raises what it had caught."""
    aft.pivot()
    told, caught = asyncio.create_task(beside(order)), None
    await aft.sleep("200ms")
    try:
        await told
    except Refused as error:
        caught = error
    if caught is not None:
        await charge(order, "instead")
        raise caught


@aft.flow(name="knowing_returned")
async def returns_failures(order: str) -> None:
    """What ``gather`` returned is raised after another step; the last task to end was another one."""
    aft.pivot()

    async def rests() -> None:
        await aft.sleep("200ms")

    results = await asyncio.gather(beside(order), rests(), return_exceptions=True)
    if errors := [result for result in results if isinstance(result, BaseException)]:
        await charge(order, "instead")
        raise errors[0]


@aft.flow(name="knowing_above")
async def hears_from_another(order: str) -> None:
    """Who looks at a task that knew, knows."""
    aft.pivot()
    told = asyncio.create_task(beside(order))

    async def watches() -> bool:
        await asyncio.wait([told])
        return told.exception() is None

    if not await asyncio.create_task(watches()):
        await charge(order, "instead")
    await told


@aft.flow(name="knowing_cancelled")
async def tidies_up(order: str) -> None:
    """A task group cancels the flow itself because its task has failed."""
    aft.pivot()
    async with asyncio.TaskGroup() as group:
        group.create_task(beside(order))
        try:
            await aft.sleep("5s")
        except asyncio.CancelledError:
            await charge(order, "instead")
            raise


@pytest.mark.parametrize("flow", [catches, returns_failures, hears_from_another, tidies_up], ids=lambda flow: flow.name)
def test_what_knew_of_the_failure_is_not_asked_for_by_the_retry(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    assert fail_and_retry(setup, flow, order) == ["instead"]
    assert ledger[order] == ["instead", "told"]


def fail_and_retry(setup: Setup, flow: Any, order: str) -> list[str]:
    """Return what was done until the flow failed past its pivot; after the retry it is completed."""
    app = setup.app()
    with app.dispatcher():
        run = app.submit(flow, order)
        eventually(lambda: run.status is Status.PARKED)
        done = list(ledger[order])
        fixed.add(order)
        run.retry()
        run.result(30)
    return done
