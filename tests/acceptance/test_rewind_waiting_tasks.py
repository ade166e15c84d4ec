"""Past a pivot, tasks that came to their steps because another one had failed: a retry goes back before those, too."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

import aft
from tests.setups import Setup, run_to
from tests.world import Refused, fixed, ledger, retry_after_fix


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
    with run_to(setup.app(), flow, order) as run:
        retry_after_fix(run, order)
        run.result(60)
    stands: list[str] = []
    for what, item in (deed.split() for deed in ledger[order]):
        if what == "send":
            stands.append(item)
        else:
            stands.remove(item)
    assert sorted(stands) == (["0", "1", "2"] if flow is by_event else ["0", "1", "2", "3"])
