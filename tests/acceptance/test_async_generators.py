"""Async generators that a flow's code leaves are closed as in asyncio: every step of their ``finally`` is executed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, run_to
from tests.world import fixed, ledger


def undo(family: str, what: str) -> None:
    ledger[family].append(f"un{what}")


@aft.compensate_with(undo)
@aft.activity(name="agen_step", levels=["50ms*3"])
async def step(family: str, what: str) -> str:
    ledger[family].append(what)
    if what == "flaky" and ledger[family].count(what) == 1:
        raise aft.Recoverable("once")
    return what


async def pages(family: str) -> AsyncIterator[str]:
    await step(family, "lock")
    try:
        for number in range(3):
            yield await step(family, f"page{number}")
    finally:
        await step(family, "unlock")
        await aft.sleep("50ms")  # the run leaves, and takes the same way again
        await step(family, "flaky")
        await step(family, "tell")


CLOSED = ["unlock", "flaky", "flaky", "tell"]


@aft.flow(name="agen_break")
async def by_break(family: str) -> str:
    async for _ in pages(family):
        break
    await aft.sleep("10ms")
    await step(family, "after")
    return "after"


@aft.flow(name="agen_caught")
async def by_exception(family: str) -> str:
    try:
        async for _ in pages(family):
            raise KeyError(family)
    except KeyError:
        await step(family, "after")
    return "after"
    return "never"


@aft.flow(name="agen_return")
async def by_return(family: str) -> str:
    async for page in pages(family):
        return page
    return "never"


@aft.flow(name="agen_task")
async def in_task(family: str) -> str:
    async def first() -> str:
        async for page in pages(family):
            return page
        return "never"

    return await asyncio.create_task(first())


@aft.flow(name="agen_held")
async def held(family: str) -> str:
    """Keep it in a frame that is left by an exception."""

    async def look() -> None:
        found = pages(family)
        async for _ in found:
            raise KeyError(family)

    try:
        await look()
    except KeyError:
        await step(family, "after")
    return "after"
    return "never"


@aft.flow(name="agen_exhausted")
async def exhausted(family: str) -> str:
    return ", ".join([page async for page in pages(family)])


@aft.flow(name="agen_failing")
async def failing(family: str) -> None:
    async for _ in pages(family):
        raise OSError(family)


@aft.flow(name="agen_savepoint")
async def under_savepoint(family: str) -> str:
    try:
        with aft.savepoint("pages"):
            async for _ in pages(family):
                raise KeyError(family)
    except KeyError:
        return "left"
    return "never"


@aft.flow(name="agen_anew")
async def anew(family: str, first: bool) -> str:
    async for page in pages(family):
        if first:
            aft.continue_as_new(family, False)
        return page
    return "never"


@pytest.fixture
def family() -> Iterator[str]:
    yield secrets.token_hex(4)
    gc.collect()  # what a test leaves open is told in that test, not in a later one


@pytest.mark.parametrize("flow", [by_break, by_exception, by_return, in_task, held], ids=lambda flow: flow.name)
def test_every_step_that_closes_a_left_generator_is_executed(setup: Setup, family: str, flow: Any) -> None:
    app = setup.app()
    with app.dispatcher():
        app.submit(flow, family).result(60)
    assert [deed for deed in ledger[family] if deed != "after"] == ["lock", "page0", *CLOSED]


def test_a_generator_at_its_end_is_closed_once(setup: Setup, family: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(exhausted, family).result(60) == "page0, page1, page2"
    assert ledger[family] == ["lock", "page0", "page1", "page2", *CLOSED]


def test_a_run_that_fails_closes_its_generators_before_it_is_undone(setup: Setup, family: str) -> None:
    with run_to(setup.app(), failing, family) as run, pytest.raises(aft.FlowCompensated):
        run.result(60)
    undone = ["untell", "unflaky", "ununlock", "unpage0", "unlock"]
    assert ledger[family] == ["lock", "page0", *CLOSED, *undone]


def test_a_generator_left_under_a_savepoint_is_closed_after_that_was_undone(setup: Setup, family: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(under_savepoint, family).result(60) == "left"
    # What closes it is under the savepoint, too, and undone as soon as it was done.
    closed = ["unlock", "ununlock", "flaky", "flaky", "unflaky", "tell", "untell"]
    assert ledger[family] == ["lock", "page0", "unpage0", "unlock", *closed]


def test_a_run_that_begins_anew_closes_its_generators_before(setup: Setup, family: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(anew, family, True).result(60) == "page0"
    assert ledger[family] == [
        "lock",
        "page0",
        "unlock",
        "flaky",
        "flaky",
        "tell",
        "lock",
        "page0",
        "unlock",
        "flaky",
        "tell",
    ]


@aft.activity(name="agen_refuse", levels=["50ms"])
async def refuse(family: str) -> None:
    raise aft.Unrecoverable(family)


async def batch(family: str) -> AsyncGenerator[int, None]:
    with aft.savepoint("batch"):
        await step(family, "reserve")
        try:
            yield 1
            yield 2
        finally:
            await refuse(family)


@aft.flow(name="agen_strays")
async def strays(family: str) -> None:
    async for _ in batch(family):
        break
    await step(family, "after")


@aft.flow(name="agen_aclosing")
async def closes_itself(family: str) -> None:
    with contextlib.suppress(aft.Unrecoverable):
        async with contextlib.aclosing(batch(family)) as found:
            async for _ in found:
                break
    await step(family, "after")


def test_a_failure_that_leaves_a_savepoint_in_another_task_parks_the_run(setup: Setup, family: str) -> None:
    with run_to(setup.app(), strays, family, status=Status.PARKED) as run:
        assert "aclosing" in str(run.row.reason)
    assert ledger[family] == ["reserve", "after"]


def test_a_failure_that_leaves_a_savepoint_where_it_was_entered_undoes_it(setup: Setup, family: str) -> None:
    app = setup.app()
    with app.dispatcher():
        app.submit(closes_itself, family).result(60)
    assert ledger[family] == ["reserve", "unreserve", "after"]


# Past a pivot -----------------------------------------------------------------------------------------------------


@aft.activity(name="agen_send", levels=["300ms*3"])
async def send(family: str, what: str) -> None:
    if what == "slow" and aft.current().attempt == 1:
        raise aft.Recoverable("later")
    if what == "bad" and family not in fixed:
        raise aft.Unrecoverable("not yet")


@aft.flow(name="agen_pivot")
async def past_its_pivot(family: str) -> None:
    aft.pivot()
    found = pages(family)
    await anext(found)
    await asyncio.gather(send(family, "slow"), send(family, "bad"))


def test_a_retry_goes_back_before_what_closed_generators_at_the_end(setup: Setup, family: str) -> None:
    with run_to(setup.app(), past_its_pivot, family, status=Status.PARKED) as run:
        fixed.add(family)
        run.retry()
        run.result(60)
    assert ledger[family][-1] == "tell"


# Reference cycles that the code does not see -----------------------------------------------------------------------


@aft.flow(name="agen_cancels")
async def cancels(family: str) -> None:
    """Cancel a task and await it, with a generator in a variable."""

    async def work() -> None:
        found = pages(family)
        await anext(found)

        async def watch() -> None:
            await aft.wait_for("stop", timeout="1h")

        task = asyncio.create_task(watch())
        await step(family, "use")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    await work()
    gc.collect()
    await step(family, "after")
    gc.collect()


@aft.flow(name="agen_groups")
async def groups(family: str) -> None:
    """Catch a group of exceptions, which Python itself makes part of a cycle."""

    async def work() -> None:
        found = pages(family)
        await anext(found)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail(family))
        except* aft.Unrecoverable:
            pass

    await work()
    gc.collect()
    await step(family, "after")
    gc.collect()


async def fail(family: str) -> None:
    await refuse(family)


@pytest.mark.parametrize("flow", [cancels, groups], ids=lambda flow: flow.name)
def test_a_generator_in_a_variable_is_closed_whenever_the_collector_comes(setup: Setup, family: str, flow: Any) -> None:
    app = setup.app()
    with app.dispatcher():
        app.submit(flow, family).result(60)
    assert sorted(deed for deed in ledger[family] if deed != "use") == sorted(["lock", "page0", "after", *CLOSED])


# What closing raises ------------------------------------------------------------------------------------------------


async def refusing(family: str) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await refuse(family)


async def mistaken(family: str) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await step(family, "close")
        raise TypeError(family)


@aft.flow(name="agen_unheard")
async def unheard(family: str, bug: bool) -> None:
    async for _ in mistaken(family) if bug else refusing(family):
        break
    await step(family, "after")


def test_a_failure_that_nobody_could_await_is_raised_at_the_end(setup: Setup, family: str) -> None:
    with run_to(setup.app(), unheard, family, False) as run, pytest.raises(aft.FlowCompensated, match="Unrecoverable"):
        run.result(60)
    assert ledger[family] == ["after", "unafter"]


def test_a_mistake_that_nobody_could_await_parks_the_run(setup: Setup, family: str) -> None:
    with run_to(setup.app(), unheard, family, True, status=Status.PARKED) as run:
        assert "TypeError" in str(run.row.reason)
    assert sorted(ledger[family]) == ["after", "close"]
