"""A flow that begins anew tidies up as one does that returns: in ``finally`` blocks, and in its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

import aft
from aft.runs.states import Status
from tests.acceptance.agency import book, book_async
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, ledger, trouble


def count_of(journey: str, what: str, times: int) -> bool:
    return ledger[journey].count(what) == times


@contextmanager
def locked(journey: str) -> Iterator[None]:
    book(journey, "lock")
    try:
        yield
    finally:
        book(journey, "unlock")


@aft.flow(name="tidying_monthly")
def monthly(journey: str, month: int = 1) -> str:
    """Hold a lock in each month."""
    with locked(journey):
        book(journey, f"month {month}")
        if month < 3:
            aft.continue_as_new(journey, month + 1)
    return "all months"


def test_a_lock_is_freed_before_the_flow_begins_anew(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "unlock"] = [Busy("for a moment")]
    with app.dispatcher():
        assert app.submit(monthly, journey).result(60) == "all months"
    done = [f"{what}" for month in (1, 2, 3) for what in ("lock", f"month {month}", "unlock")]
    assert [each for each in ledger[journey] if each != "unlock!"] == done


def test_a_flow_that_fails_while_it_tidies_up_does_not_begin_anew(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "unlock"] = [Refused("no")]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="Refused"):
        app.submit(monthly, journey).result(60)
    assert ledger[journey] == ["lock", "month 1", "unlock!", "unmonth 1", "unlock"]


@aft.flow(name="tidying_forgiving")
def forgiving(journey: str, month: int = 1) -> str:
    """Tidy up as well as possible."""
    try:
        if month < 2:
            aft.continue_as_new(journey, month + 1)
    finally:
        try:
            book(journey, "close")
        except Refused:
            book(journey, "tell")
    return "all months"


def test_a_failure_that_is_handled_while_the_flow_tidies_up_keeps_nothing_back(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "close"] = [Refused("no")]
    with app.dispatcher():
        assert app.submit(forgiving, journey).result(60) == "all months"
    assert ledger[journey] == ["close!", "tell", "close"]


@aft.flow(name="tidying_tasks")
async def tasks(journey: str, again: bool) -> str:
    """End, in one way or another, while tasks are under way: they wait before they tidy up."""

    async def stay() -> None:
        try:
            with aft.savepoint():
                await book_async(journey, "hotel")
                await aft.wait_for("never")
        finally:
            await aft.sleep("100ms")
            await book_async(journey, "bill")

    async def meter() -> None:
        try:
            await aft.sleep("1h")
        finally:
            assert await aft.wait_for("read", int) == 7
            book(journey, "meter")

    begun = [asyncio.create_task(stay()), asyncio.create_task(meter())]
    try:
        await aft.wait_for("end")
        if again:
            aft.continue_as_new(journey, again=False)
    finally:
        await book_async(journey, f"end of {len(begun)}")
    return "ended"


def test_tasks_tidy_up_when_their_flow_has_come_to_its_end(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), tasks, journey, again=True) as run:
        for times in (1, 2):
            eventually(lambda: ledger[journey][-1:] == ["hotel"] and run.status is Status.WAITING)
            run.signal("end")
            eventually(partial(count_of, journey, "bill", times))
            run.signal("read", 7)
        assert run.result(60) == "ended"
    once = ["hotel", "end of 2", "unhotel", "bill", "meter"]
    assert ledger[journey] == once * 2


@aft.flow(name="tidying_group")
async def group(journey: str, again: bool) -> str:
    """A task of a group asks for a new beginning."""

    async def stay() -> None:
        with aft.savepoint():
            await book_async(journey, "hotel")
            await aft.wait_for("never" if again else "leave")

    async def end() -> None:
        await aft.wait_for("end")
        if again:
            aft.continue_as_new(journey, again=False)

    async with asyncio.TaskGroup() as both:
        both.create_task(stay())
        both.create_task(end())
    return "ended"


def test_a_task_of_a_group_asks_for_a_new_beginning_and_the_others_tidy_up(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), group, journey, again=True) as run:
        eventually(lambda: ledger[journey] == ["hotel"] and run.status is Status.WAITING)
        run.signal("end")
        eventually(lambda: ledger[journey] == ["hotel", "unhotel", "hotel"])
        run.signal("end")
        run.signal("leave")
        assert run.result(60) == "ended"
    assert ledger[journey] == ["hotel", "unhotel", "hotel"]


@aft.flow(name="tidying_savepoint_group")
async def in_savepoint(journey: str, month: int = 1) -> str:
    """Begin anew inside a task group, inside a savepoint."""

    async def watch() -> None:
        await aft.sleep("1h")

    if month == 3:
        return "three months"
    with aft.savepoint():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            await book_async(journey, f"month {month}")
            aft.continue_as_new(journey, month + 1)
    raise AssertionError


def test_a_savepoint_stands_in_which_a_task_group_was_left_to_begin_anew(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(in_savepoint, journey).result(60) == "three months"
    assert ledger[journey] == ["month 1", "month 2"]


@aft.flow(name="tidying_raises")
def raises(journey: str, month: int = 1) -> str:
    """Fail, by its own code, while it is about to begin anew."""
    book(journey, f"month {month}")
    try:
        if month < 2:
            aft.continue_as_new(journey, month + 1)
    finally:
        if trouble[journey, "tidy"]:
            raise trouble[journey, "tidy"].pop()
    return "all months"


def test_what_the_code_raises_while_it_tidies_up_undoes_the_run(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "tidy"] = [RuntimeError("cannot tidy up")]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="cannot tidy up"):
        app.submit(raises, journey).result(60)
    assert ledger[journey] == ["month 1", "unmonth 1"]


def test_a_bug_while_it_tidies_up_parks_the_run_which_begins_anew_after_the_fix(setup: Setup, journey: str) -> None:
    trouble[journey, "tidy"] = [NameError("a bug")]
    with run_to(setup.app(), raises, journey, status=Status.PARKED) as run:
        run.retry()
        assert run.result(60) == "all months"
    assert ledger[journey] == ["month 1", "month 2"]


# What tidies up has to wait ------------------------------------------------------------------------------------------


def unrent(journey: str, what: str) -> None:
    if (waiting := trouble.get((journey, f"un{what}"))) and waiting:
        raise waiting.pop(0)
    ledger[journey].append(f"un{what}")


@aft.compensate_with(unrent)
@aft.activity(name="tidying_rent", levels=["50ms*9"])
def rent(journey: str, what: str) -> str:
    ledger[journey].append(what)
    return what


@aft.flow(name="tidying_child")
def child(journey: str) -> None:
    aft.sleep("500ms")
    rent(journey, "room")


async def rents(journey: str) -> None:
    with aft.savepoint():
        await rent.call(journey, "car")
        await aft.wait_for("never")


async def has_a_child(journey: str) -> None:
    with aft.savepoint():
        await rent.call(journey, "car")
        await child.call(journey)


async def calls_plainly(journey: str) -> None:
    try:
        await rent.call(journey, "car")
        await aft.wait_for("never")
    finally:
        book(journey, "bill")


ways = {"rents": rents, "has_a_child": has_a_child, "calls_plainly": calls_plainly}


@aft.flow(name="tidying_waits")
async def waits(journey: str, way: str, again: bool) -> str:
    task = asyncio.create_task(ways[way](journey))
    await aft.wait_for("end")
    if again:
        aft.continue_as_new(journey, way, again=False)
    task.cancel()
    return "ended"


@pytest.mark.parametrize(
    ("way", "done"),
    [
        ("rents", ["car", "uncar"]),
        ("has_a_child", ["car", "room", "unroom", "uncar"]),
        ("calls_plainly", ["car", "bill!", "bill"]),
    ],
)
def test_a_flow_begins_anew_once_its_tasks_have_tidied_up_however_long_that_takes(
    setup: Setup, journey: str, way: str, done: list[str]
) -> None:
    trouble[journey, "uncar"] = [aft.Recoverable("for a moment"), aft.Recoverable("for another")]
    trouble[journey, "bill"] = [Busy("for a moment")]
    with run_to(setup.app(), waits, journey, way, again=True) as run:
        eventually(lambda: ledger[journey][:1] == ["car"] and run.status is Status.WAITING)
        run.signal("end")
        eventually(lambda: run.row.key_generation == 1)
        assert ledger[journey][: len(done)] == done
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATED)
