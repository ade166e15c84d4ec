"""A deadline that passes while one branch of an async flow works and another rests reaches both, each at its step."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aft
from aft.store.db_time import now
from aft.store.tables import runs
from tests.setups import Setup, eventually
from tests.world import gates, ledger


def undo(order: str, what: str) -> None:
    ledger[order].append(f"un{what}")


@aft.compensate_with(undo)
@aft.activity(name="beside_step")
async def step(order: str, what: str) -> None:
    ledger[order].append(what)


@aft.compensate_with(undo)
@aft.activity(name="beside_render")
def render(order: str, what: str) -> None:
    ledger[order].append(what)
    assert gates[order].wait(60)


@aft.flow(name="beside_reminds")
async def reminds(order: str) -> None:
    """A task that nobody awaits rests while the flow works."""

    async def remind() -> None:
        while True:
            await aft.sleep("1h")
            await step(order, "remind")

    reminder = asyncio.create_task(remind())
    await render.call(order, "render")
    await step(order, "publish")
    await aft.wait_for("verdict")
    reminder.cancel()


@aft.flow(name="beside_collects")
async def collects(order: str) -> None:
    async def work() -> None:
        await render.call(order, "render")
        await aft.wait_for("verdict")

    async def rest() -> None:
        await aft.wait_for("other verdict")

    for result in await asyncio.gather(work(), rest(), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def feed(order: str) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await aft.sleep("1s")


@aft.flow(name="beside_leaves")
async def leaves(order: str) -> None:
    """A task that closes a generator rests while the flow works."""
    async for _ in feed(order):
        break
    await render.call(order, "render")
    await step(order, "publish")
    await aft.wait_for("verdict")


@aft.flow(name="beside_caught")
async def caught(order: str) -> str:
    """What the deadline is caught for goes on: it is told once in each branch."""

    async def rest() -> None:
        await aft.wait_for("other verdict")

    resting = asyncio.create_task(rest())
    await render.call(order, "render")
    try:
        await step(order, "publish")
    except aft.DeadlineExceeded:
        await step(order, "apology")
    try:
        await resting
    except aft.DeadlineExceeded:
        await step(order, "again")
    return "sorry"


@pytest.mark.parametrize("flow", [reminds, collects, leaves], ids=lambda flow: flow.name)
def test_a_deadline_is_heard_by_who_worked_when_it_passed(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    app = setup.app()
    with app.dispatcher():
        run = app.submit(flow.options(deadline="2s"), order)
        eventually(lambda: "render" in ledger[order])
        eventually(lambda: is_past(app, run))
        gates[order].set()
        with pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
            run.result(60)
    assert ledger[order] == ["render", "unrender"]


def test_a_deadline_is_told_once_in_each_branch(setup: Setup) -> None:
    order = secrets.token_hex(4)
    app = setup.app()
    with app.dispatcher():
        run = app.submit(caught.options(deadline="2s"), order)
        eventually(lambda: "render" in ledger[order])
        eventually(lambda: is_past(app, run))
        gates[order].set()
        assert run.result(60) == "sorry"
    assert ledger[order] == ["render", "apology", "again"]


def is_past(app: aft.Aft, run: aft.Run[Any]) -> bool:
    """Whether a run's deadline has passed, or the run has heard of it."""
    with app.store.read() as connection:
        statement = runs.select().where(runs.c.id == run.id, (runs.c.deadline_at > now()))
        return connection.execute(statement).first() is None
