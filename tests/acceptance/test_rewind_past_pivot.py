"""Past a pivot, a retry goes back before what the code did because of the failure, and before nothing else.

So it goes back before what knew of the failure, and before steps that tasks came to because another one had failed.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, run_to
from tests.world import Refused, fixed, ledger, retry_after_fix


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
    with run_to(setup.app(), flow, order, status=Status.PARKED) as run:
        done = list(ledger[order])
        retry_after_fix(run, order)
        run.result(60)
    return done


def take_back(order: str, item: int) -> None:
    ledger[order].append(f"back {item}")


@aft.compensate_with(take_back)
@aft.activity(name="limited_send", unrecoverable=(Refused,))
async def send(order: str, item: int) -> int:
    if item == 0 and order not in fixed:
        raise Refused(item)
    ledger[order].append(f"send {item}")
    return item


@aft.flow(name="limited_gather")
async def by_gather(order: str) -> None:
    aft.pivot()
    limit = asyncio.Semaphore(1)

    async def one(item: int) -> None:
        async with limit:
            await send(order, item)

    await asyncio.gather(*(one(item) for item in range(4)))


@aft.flow(name="limited_group")
async def by_group(order: str) -> None:
    aft.pivot()
    lock = asyncio.Lock()

    async def one(item: int) -> None:
        async with lock:
            await send(order, item)

    async with asyncio.TaskGroup() as group:
        for item in range(4):
            group.create_task(one(item))


@aft.flow(name="limited_event")
async def by_event(order: str) -> None:
    aft.pivot()
    over = asyncio.Event()

    async def first() -> None:
        try:
            await send(order, 0)
        finally:
            over.set()

    async def then() -> None:
        await over.wait()
        await send(order, 1)
        await send(order, 2)

    await asyncio.gather(first(), then())


@aft.flow(name="limited_queue")
async def by_queue(order: str) -> None:
    aft.pivot()
    queue: asyncio.Queue[int] = asyncio.Queue()
    for item in range(4):
        queue.put_nowait(item)

    async def work() -> None:
        while not queue.empty():
            item = queue.get_nowait()
            try:
                await send(order, item)
            except Refused:
                queue.put_nowait(9)
                raise

    for result in await asyncio.gather(work(), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


@pytest.mark.parametrize("flow", [by_gather, by_group, by_event, by_queue], ids=lambda flow: flow.name)
def test_a_retry_goes_back_before_steps_that_a_failure_has_led_to(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    fail_and_retry(setup, flow, order)
    stands: list[str] = []
    for what, item in (deed.split() for deed in ledger[order]):
        if what == "send":
            stands.append(item)
        else:
            stands.remove(item)
    assert sorted(stands) == (["0", "1", "2"] if flow is by_event else ["0", "1", "2", "3"])
