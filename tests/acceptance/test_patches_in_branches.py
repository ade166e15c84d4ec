"""``aft.patched`` in async flows: new runs have a change, those that went past the place without it do not."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aft
from aft.flows.declare.registry import Registry
from aft.runs.states import Status
from tests.setups import Setup, eventually, run_to


@aft.activity(name="patched_do")
def do(what: str) -> str:
    return what


async def wait_for(name: str) -> Any:
    return await aft.wait_for(name)


async def in_two(way: Callable[[], Awaitable[bool]]) -> bool:
    """Take a way beside another one that has asked for a step already."""

    async def other() -> str:
        return await do.call("other")

    _, has = await asyncio.gather(other(), way())
    return has


async def ask() -> bool:
    has = aft.patched("change")
    await do.call("with" if has else "without")
    return has


@aft.flow(name="patched_waits")
async def after_a_wait() -> bool:
    await aft.wait_for("go")
    return await in_two(ask)


@aft.flow(name="patched_sleeps")
async def after_a_sleep() -> bool:
    await aft.sleep("50ms")
    return await in_two(ask)


@aft.flow(name="patched_races")
async def after_a_race() -> bool:
    go, never = asyncio.create_task(wait_for("go")), asyncio.create_task(wait_for("never"))
    _, pending = await asyncio.wait([go, never], return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return await ask()


@aft.flow(name="patched_anew")
async def after_a_new_beginning(first: bool = True) -> bool:
    if first:
        await aft.wait_for("go")
        aft.continue_as_new(False)
    return await in_two(ask)


@pytest.mark.parametrize(
    "flow", [after_a_wait, after_a_sleep, after_a_race, after_a_new_beginning], ids=lambda flow: flow.name
)
def test_a_run_that_has_waited_before_has_a_change(setup: Setup, flow: Any) -> None:
    with run_to(setup.app(), flow) as run:
        eventually(lambda: run.status in (Status.WAITING, Status.COMPLETED))
        if flow is not after_a_sleep:
            run.signal("go")
        assert run.result(60) is True


async def old() -> bool:
    await aft.wait_for("go")

    async def way() -> bool:
        await aft.wait_for("paid")
        return False

    return await in_two(way)


async def new() -> bool:
    await aft.wait_for("go")

    async def way() -> bool:
        has = aft.patched("change")
        await aft.wait_for("paid")
        return has

    return await in_two(way)


def make_app(setup: Setup, fn: Callable[[], Any], name: str) -> aft.Aft:
    """An app whose process has this code only."""
    made, known = setup.app(), Registry()
    known.add_flow(aft.Flow(fn, name=name, version=1))
    known.add_activity(do)
    made.registry = known
    return made


def test_a_run_that_waits_past_the_place_does_not_have_a_change(setup: Setup) -> None:
    name = f"patched_{secrets.token_hex(4)}"
    before, after = make_app(setup, old, name), make_app(setup, new, name)
    with before.dispatcher():
        run = before.submit(before.registry.flow(name))
        run.signal("go")
        eventually(lambda: run.status is Status.WAITING and [wait.name for wait in run.row.waits] == ["paid"])
    with after.dispatcher():
        run.signal("paid")
        assert run.result(60) is False
