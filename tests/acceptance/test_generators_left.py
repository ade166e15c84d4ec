"""Generators that a flow's code leaves open: the steps of their ``finally`` blocks belong to its run, or to none."""

from __future__ import annotations

import asyncio
import gc
import secrets
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from traceback import walk_tb
from typing import Any

import pytest

import aft
from aft.flows.runtime import generators
from aft.runs.states import Status
from tests.setups import Setup, dispatching, eventually, run_to
from tests.world import gates

#: What was executed for each family, and in which run.
deeds: defaultdict[str, list[tuple[str, str | None]]] = defaultdict(list)


def undo(family: str, what: str) -> None:
    deeds[family].append((f"un{what}", None))


@aft.compensate_with(undo)
@aft.activity(name="left_step")
def step(family: str, what: str) -> str:
    deeds[family].append((what, aft.current().run_id))
    return what


def pages(family: str, count: int = 2) -> Generator[str, None, None]:
    try:
        for number in range(count):
            yield step(family, f"page{number}")
    finally:
        step(family, "close")


async def pages_async(family: str) -> AsyncIterator[str]:
    try:
        for number in range(2):
            yield await step.call(family, f"page{number}")
    finally:
        await step.call(family, "close")


@aft.flow(name="left_held")
def held(family: str) -> None:
    found = pages(family)
    for _ in found:
        aft.sleep("50ms")


@aft.flow(name="left_inline")
def inline(family: str) -> None:
    for _ in pages(family):
        aft.sleep("50ms")


@aft.flow(name="left_closed")
def closed(family: str) -> None:
    with closing(pages(family)) as found:
        for _ in found:
            aft.sleep("50ms")


@aft.flow(name="left_async")
async def in_async(family: str) -> None:
    found = pages_async(family)
    async for _ in found:
        await aft.sleep("50ms")


@aft.flow(name="left_handling")
def handling(family: str) -> None:
    """Wait while an exception is handled whose frames hold a generator, too."""

    def fail() -> None:
        found = pages(family)
        next(found)
        next(found)
        raise KeyError(str(found))

    try:
        fail()
    except KeyError:
        aft.sleep("50ms")


@aft.flow(name="left_anew")
def anew(family: str, first: bool) -> None:
    found = pages(family)
    for _ in found:
        if first:
            aft.continue_as_new(family, False)


@aft.flow(name="left_failing")
def failing(family: str) -> None:
    found = pages(family)
    for _ in found:
        raise OSError("no")


@aft.flow(name="left_exiting")
async def exiting(family: str) -> None:
    """End by sys.exit in a task, while the flow itself has something to tidy up."""

    async def exits() -> None:
        await step.call(family, "task")
        if deeds[family][0][0] == "first":
            sys.exit(3)

    try:
        try:
            await asyncio.gather(exits())
        finally:
            await step.call(family, "b")
    finally:
        step(family, "c")


class Cycle:
    """Something that only the garbage collector ends."""

    def __init__(self, held: Iterator[str]) -> None:
        self.held = held
        self.me = self


@aft.flow(name="left_in_a_cycle")
def in_a_cycle(family: str) -> None:
    cycle = Cycle(pages(family))
    next(cycle.held)


@aft.flow(name="left_other")
def other(family: str) -> None:
    step(family, "other")
    gc.collect()
    step(family, "another")


@pytest.fixture
def family() -> Iterator[str]:
    yield secrets.token_hex(4)
    gc.collect()  # what a test leaves open is told in that test, not in a later one


@pytest.mark.parametrize("flow", [held, inline, closed, in_async, handling], ids=lambda flow: flow.name)
def test_a_step_that_closes_a_generator_is_executed_once_in_its_run(setup: Setup, family: str, flow: Any) -> None:
    with run_to(setup.app(), flow, family) as run:
        run.result(60)
        gc.collect()
    assert deeds[family] == [("page0", run.id), ("page1", run.id), ("close", run.id)]


def test_a_run_that_begins_anew_closes_its_generators_before(setup: Setup, family: str) -> None:
    with run_to(setup.app(), anew, family, True) as run:
        run.result(60)
    assert deeds[family] == [(what, run.id) for what in ("page0", "close", "page0", "page1", "close")]


def test_a_run_that_fails_closes_its_generators_before_it_is_undone(setup: Setup, family: str) -> None:
    with run_to(setup.app(), failing, family) as run:
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        gc.collect()
    assert deeds[family] == [("page0", run.id), ("close", run.id), ("unclose", None), ("unpage0", None)]


def test_what_an_exit_in_a_task_leaves_open_executes_nothing_in_other_runs(setup: Setup, family: str) -> None:
    app = setup.app()
    deeds[family].append(("first", None))
    with run_to(app, exiting, family, status=Status.PARKED) as run:
        app.submit(other, f"{family}-other").result(60)
        gc.collect()
        assert deeds[family][1:] == [("task", run.id)]
        deeds[family][:1] = []
        run.retry()
        run.result(60)
    assert deeds[family] == [(what, run.id) for what in ("task", "b", "c")]


def test_what_the_garbage_collector_closes_executes_no_step(
    setup: Setup, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    app = setup.app()
    with app.dispatcher():
        run = app.submit(in_a_cycle, family)
        run.result(60)
        another = app.submit(other, f"{family}-other")
        another.result(60)
        gc.collect()
    assert deeds[family] == [("page0", run.id)]
    assert deeds[f"{family}-other"] == [("other", another.id), ("another", another.id)]
    (refused,) = (one for one in told if isinstance(one.exc_value, aft.DefinitionError))
    assert "contextlib.closing" in str(refused.exc_value)


def locals_of_last(error: BaseException) -> list[str]:
    """The names of what the innermost frame holds; looking at other frames would make cycles of them."""
    ((frame, _),) = deque(walk_tb(error.__traceback__), maxlen=1)
    return list(frame.f_locals)


def test_what_was_being_handled_when_a_run_was_started_keeps_what_its_frames_hold(setup: Setup, family: str) -> None:
    app = setup.app()

    def fail() -> None:
        kept = pages(family, 1)
        assert next(kept) == "page0"
        raise ValueError(family)

    kept: list[str] = []
    try:
        fail()
    except ValueError as error:
        app.start(held, f"{family}-flow")
        kept += locals_of_last(error)
    assert "kept" in kept


# An exception that several runs raise --------------------------------------------------------------------------------

SHARED = KeyError("the same each time")


@aft.activity(name="left_wait")
def wait(family: str) -> None:
    assert gates[family].wait(60)


def lookups(family: str) -> Iterator[int]:
    for number in range(3):
        try:
            raise SHARED
        except KeyError:
            step(family, f"missing{number}")
        yield number


@aft.flow(name="left_sharing")
def sharing(family: str, waits: str) -> int:
    seen = 0
    for _ in lookups(family):
        wait(waits)
        seen += 1
    return seen


@aft.flow(name="left_sharing_async")
async def sharing_async(family: str, waits: str) -> int:
    async def look_up() -> None:
        try:
            raise SHARED
        except KeyError:
            await step.call(family, "missing")
        await wait.call(waits)

    await look_up()
    await asyncio.create_task(look_up())
    return 3


@aft.flow(name="left_caught_before")
async def caught_before(family: str, waits: str) -> int:
    """Catch it, and call no step meanwhile."""
    try:
        raise SHARED
    except KeyError:
        pass
    await step.call(family, "first")
    await wait.call(waits)
    await step.call(family, "last")
    return 3


@pytest.mark.parametrize("other", [sharing, sharing_async, caught_before], ids=lambda flow: flow.name)
@pytest.mark.parametrize("flow", [sharing, sharing_async, caught_before], ids=lambda flow: flow.name)
def test_the_end_of_a_run_closes_nothing_of_another_that_raises_the_same_exception(
    setup: Setup, family: str, flow: Any, other: Any
) -> None:
    app = setup.app()
    gates[f"{family}-open"].set()
    with app.dispatcher():
        slow = app.submit(flow, f"{family}-slow", f"{family}-slow")
        eventually(lambda: deeds[f"{family}-slow"])
        assert app.submit(other, family, f"{family}-open").result(60) == 3
        gates[f"{family}-slow"].set()
        assert slow.result(60) == 3


@aft.flow(name="left_savepoint")
def in_savepoint(family: str) -> None:
    def items() -> Iterator[int]:
        with aft.savepoint("items"):
            step(family, "item")
            yield 1

    for _ in items():
        break
    aft.wait_for("go")


def test_a_run_is_not_in_a_savepoint_whose_generator_it_has_left(setup: Setup, family: str) -> None:
    with run_to(setup.app(), in_savepoint, family, status=Status.WAITING) as run:
        with pytest.raises(aft.OrderRefused, match=r"is not in savepoint 'items'|in no savepoint"):
            run.compensate(to="items")
        run.signal("go")
        run.result(60)


def test_an_interrupt_at_the_end_of_a_collection_refuses_no_later_call(embedded: Setup, family: str) -> None:
    app = embedded.app()
    generators._collector.is_at_work = True  # as if the callback had been interrupted
    with dispatching(app):
        assert app.start(other, family).result(60) is None
