"""A task that is cancelled ends with its step: it is not begun any more nor tried again, and its child is undone."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
from typing import Any

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, eventually, run_to
from tests.world import Refused, fixed, gates, ledger, retry_after_fix

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


def undo(order: str, what: str) -> None:
    ledger[order].append(f"un{what}")


@aft.compensate_with(undo)
@aft.activity(name="cancelled_do")
async def do(order: str, what: str) -> str:
    ledger[order].append(what)
    return what


@aft.compensate_with(undo)
@aft.activity(name="cancelled_book", levels=["1h*3"], unrecoverable=(Refused,))
def book(order: str, what: str) -> str:
    """``busy`` fails with what may pass, ``bad`` for good, ``slow`` works until its gate is opened."""
    if what == "busy":
        gates[order].set()
        raise ConnectionError(what)
    if what == "slow":
        ledger[order].append("began slow")
        assert gates[order].wait(60)
    elif not gates[order].wait(60):
        raise TimeoutError
    if what == "bad":
        raise Refused(what)
    ledger[order].append(what)
    return what


@aft.flow(name="cancelled_approval")
async def approval(order: str, who: str) -> None:
    await do(order, f"ask {who}")
    gates[order].set()
    await aft.wait_for("verdict")


async def booked(order: str, what: str) -> str:
    return await book.call(order, what)


async def approved(order: str, who: str) -> None:
    await approval.call(order, who)


@aft.flow(name="cancelled_first_wins")
async def first_wins(order: str) -> None:
    """The one that is cancelled is in its ladder: nothing of it is at work."""
    tasks = [asyncio.create_task(booked(order, what)) for what in ("busy", "fast")]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await do(order, f"confirm {done.pop().result()}")


@aft.flow(name="cancelled_and_returns")
async def cancels_and_returns(order: str) -> None:
    task = asyncio.create_task(booked(order, "busy"))
    await booked(order, "fast")
    task.cancel()


@aft.flow(name="cancelled_group")
async def group_fails(order: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(approved(order, "bob"))
        group.create_task(booked(order, "bad"))


@aft.flow(name="cancelled_fails")
async def flow_fails(order: str) -> None:
    """A task that nobody has cancelled is when the flow fails."""
    asyncio.create_task(approved(order, "bob"))  # noqa: RUF006
    await booked(order, "bad")


@aft.flow(name="cancelled_savepoint")
async def savepoint_fails(order: str) -> None:
    try:
        with aft.savepoint("both"):
            await asyncio.gather(approved(order, "bob"), booked(order, "bad"))
    except Refused:
        await do(order, "fallback")


@aft.flow(name="cancelled_approval_in_time")
async def in_time(order: str) -> None:
    task = asyncio.create_task(approved(order, "bob"))
    await booked(order, "other")
    task.cancel()
    await do(order, "escalate")


@pytest.mark.parametrize(
    ("flow", "status", "expected"),
    [
        (first_wins, Status.COMPLETED, ["fast", "confirm fast"]),
        (cancels_and_returns, Status.COMPLETED, ["fast"]),
        (group_fails, Status.COMPENSATED, ["ask bob", "unask bob"]),
        (flow_fails, Status.COMPENSATED, ["ask bob", "unask bob"]),
        (savepoint_fails, Status.COMPLETED, ["ask bob", "unask bob", "fallback"]),
        (in_time, Status.COMPLETED, ["ask bob", "other", "escalate", "unask bob"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_was_cancelled_ends(setup: Setup, flow: Any, status: Status, expected: list[str]) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), flow, order) as run:
        eventually(lambda: run.status.ended)
    assert run.status is status
    assert ledger[order] == expected


@aft.flow(name="cancelled_at_work")
async def at_work(order: str) -> None:
    slow = asyncio.create_task(booked(order, "slow"))
    await aft.wait_for("go on")
    slow.cancel()
    await do(order, "next")


def test_what_is_at_work_comes_to_its_end(setup: Setup) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), at_work, order) as run:
        eventually(lambda: "began slow" in ledger[order])
        run.signal("go on")
        eventually(lambda: "next" in ledger[order])
        gates[order].set()
        run.result(30)
    assert ledger[order] == ["began slow", "next", "slow"]


@aft.flow(name="cancelled_left_under_way")
async def left_under_way(order: str) -> None:
    """The flow returns, and leaves a step in its ladder that nobody has cancelled."""
    task = asyncio.create_task(brought(order))
    await booked(order, "fast")
    assert not task.done()


@aft.activity(name="cancelled_bring", levels=["200ms*3"])
def bring(order: str) -> None:
    if not gates[order].is_set():
        gates[order].set()
        raise ConnectionError
    ledger[order].append("brought")


async def brought(order: str) -> None:
    await bring.call(order)


def test_what_a_flow_that_returns_has_left_under_way_comes_to_its_end(setup: Setup) -> None:
    order = secrets.token_hex(4)
    app = setup.app()
    with app.dispatcher():
        app.submit(left_under_way, order).result(30)
    assert sorted(ledger[order]) == ["brought", "fast"]


@aft.flow(name="cancelled_tidies")
async def tidies(order: str) -> None:
    """A task does something in a savepoint because that is being undone."""

    async def hotel() -> None:
        await do(order, "room")
        gates[order].set()
        try:
            await aft.wait_for("guest")
        except asyncio.CancelledError:
            await do(order, "voucher")
            raise

    try:
        with aft.savepoint("trip"):
            await asyncio.gather(hotel(), booked(order, "bad"))
    except Refused:
        await aft.sleep("100ms")


def test_what_is_done_under_a_savepoint_that_was_undone_is_undone(setup: Setup) -> None:
    order = secrets.token_hex(4)
    app = setup.app()
    with app.dispatcher():
        app.submit(tidies, order).result(30)
    assert ledger[order] == ["room", "unroom", "voucher", "unvoucher"]


@aft.flow(name="cancelled_context")
async def in_context(order: str) -> list[str]:
    async def who() -> str:
        what: str = await do(order, tenant.get())
        return what

    context = contextvars.copy_context()
    context.run(tenant.set, "seven")
    return list(await asyncio.gather(*(asyncio.create_task(who(), context=context) for _ in range(2))))


def test_a_task_sees_the_context_that_it_is_given(setup: Setup) -> None:
    assert setup.app().start(in_context, secrets.token_hex(4)).result(30) == ["seven", "seven"]


@aft.flow(name="cancelled_tidy_after")
async def tidies_after(order: str) -> None:
    """What tidies up after an activity that was at work comes after it."""

    async def supplier() -> None:
        try:
            await booked(order, "slow")
        except asyncio.CancelledError:
            await do(order, "tidied")
            raise

    slow = asyncio.create_task(supplier())
    await aft.wait_for("go on")
    slow.cancel()
    await do(order, "next")
    await asyncio.wait([slow])
    await do(order, "last")


def test_what_tidies_up_does_not_overtake_the_step(setup: Setup) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), tidies_after, order) as run:
        eventually(lambda: "began slow" in ledger[order])
        run.signal("go on")
        eventually(lambda: "next" in ledger[order])
        gates[order].set()
        run.result(30)
    assert ledger[order] == ["began slow", "next", "slow", "tidied", "last"]


@aft.activity(name="cancelled_invoice", unrecoverable=(Refused,))
def invoice(order: str) -> None:
    assert gates[order].wait(60)
    if order not in fixed:
        raise Refused


@aft.activity(name="cancelled_courier", levels=["300ms*3"])
def courier(order: str) -> None:
    if not gates[order].is_set():
        gates[order].set()
        raise ConnectionError
    ledger[order].append("courier")


@aft.flow(name="cancelled_past_pivot")
async def past_pivot(order: str) -> None:
    """A step is in its ladder when the flow fails, and tidied up after."""
    aft.pivot()

    async def ship() -> None:
        try:
            await courier.call(order)
        finally:
            await do(order, "unlock")

    async def bill() -> None:
        await invoice.call(order)

    async with asyncio.TaskGroup() as group:
        group.create_task(ship())
        group.create_task(bill())


@aft.flow(name="cancelled_for_bug")
async def has_bug(order: str) -> None:
    """The same for a bug in the flow's code."""

    async def ship() -> None:
        try:
            await courier.call(order)
        finally:
            await do(order, "unlock")

    async def bill() -> None:
        await booked(order, "bill")
        if order not in fixed:
            raise AttributeError("bug")

    async with asyncio.TaskGroup() as group:
        group.create_task(ship())
        group.create_task(bill())


@pytest.mark.parametrize("flow", [past_pivot, has_bug], ids=lambda flow: flow.name)
def test_a_retry_tries_again_what_was_cancelled_for_the_failure(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), flow, order) as run:
        retry_after_fix(run, order)
        run.result(30)
    assert ledger[order].count("courier") == 1
    assert ledger[order][-1] == "unlock"
    assert ledger[order].count("unlock") - ledger[order].count("ununlock") == 1


@aft.flow(name="cancelled_two_fail")
async def two_fail(order: str) -> None:
    """Past a pivot two tasks fail, and the second one tidies up: the flow raises the first one's failure."""
    aft.pivot()

    async def ship() -> None:
        await aft.sleep("300ms")
        try:
            await invoice.call(order)
        finally:
            await do(order, "unlock")

    async def bill() -> None:
        await invoice.call(order)

    gates[order].set()
    for result in await asyncio.gather(bill(), ship(), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def test_a_retry_goes_back_before_what_followed_each_of_two_failures(setup: Setup) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), two_fail, order) as run:
        retry_after_fix(run, order)
        run.result(30)
    assert ledger[order] == ["unlock", "ununlock", "unlock"]


@aft.flow(name="cancelled_no_coroutine")
async def no_coroutine(order: str) -> None:
    asyncio.create_task(asyncio.shield(booked(order, "fast")))  # type: ignore[arg-type]  # noqa: RUF006


def test_what_is_no_coroutine_is_refused_as_asyncio_does(setup: Setup) -> None:
    run = setup.app().start(no_coroutine, secrets.token_hex(4))
    assert "TypeError: a coroutine was expected" in (run.row.reason or "")


@aft.activity(name="cancelled_confirm")
def confirm(order: str, number: int) -> None:
    ledger[order].append(f"confirm {number}")


@aft.flow(name="cancelled_bug_in_each")
async def bug_in_each(order: str) -> None:
    """Each of several tasks meets the same bug, and tidies up."""

    async def leg(number: int) -> None:
        await do(order, f"hold {number}")
        try:
            if order not in fixed:
                raise AttributeError("bug")
            await confirm.call(order, number)
        finally:
            await do(order, f"release {number}")

    await asyncio.gather(*map(leg, range(3)))


def test_a_bug_that_several_tasks_met_is_taken_back_in_each(setup: Setup) -> None:
    order = secrets.token_hex(4)
    with run_to(setup.app(), bug_in_each, order) as run:
        retry_after_fix(run, order)
        run.result(30)
    for number in range(3):
        assert ledger[order].count(f"hold {number}") == ledger[order].count(f"confirm {number}") == 1
        assert ledger[order].count(f"release {number}") - ledger[order].count(f"unrelease {number}") == 1


@aft.flow(name="cancelled_why")
async def says_why(order: str) -> str:
    async def waits() -> str:
        try:
            await booked(order, "slow")
        except asyncio.CancelledError as error:
            return str(error)
        return "no"

    task = asyncio.create_task(waits())
    await aft.sleep("10ms")
    task.cancel("too late")
    gates[order].set()
    return await task


def test_who_is_cancelled_hears_why(setup: Setup) -> None:
    assert setup.app().start(says_why, secrets.token_hex(4)).result(30) == "too late"


@aft.flow(name="cancelled_all_fail")
async def all_fail(order: str) -> None:
    """Past a pivot several tasks fail in one outage, and each tidies up."""
    aft.pivot()

    async def leg(number: int) -> None:
        try:
            await invoice.call(order)
        except Refused:
            await do(order, f"mail {number}")
            raise

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(leg(number))


def test_one_retry_tries_again_all_that_failed_at_once(setup: Setup) -> None:
    order = secrets.token_hex(4)
    gates[order].set()
    with run_to(setup.app(), all_fail, order) as run:
        retry_after_fix(run, order)
        run.result(30)
    mails = [deed for deed in ledger[order] if deed.startswith("mail")]
    assert sorted(ledger[order]) == sorted([*mails, *(f"un{mail}" for mail in mails)])


@aft.flow(name="cancelled_overcome")
async def overcomes(order: str) -> None:
    """One task has overcome its failure when another one's is raised past the pivot."""
    aft.pivot()

    async def copes() -> None:
        try:
            await booked(order, "bad")
        except Refused:
            await confirm.call(order, 1)

    await asyncio.create_task(copes())
    await invoice.call(order)


@aft.flow(name="cancelled_worker_overcomes")
async def worker_overcomes(order: str) -> None:
    """The same in a task that waits for more to do when the flow fails."""
    aft.pivot()
    queue: asyncio.Queue[int] = asyncio.Queue()
    rests = asyncio.Event()

    async def works() -> None:
        while True:
            try:
                await booked(order, "bad")
            except Refused:
                await confirm.call(order, 1)
            rests.set()
            await queue.get()

    worker = asyncio.create_task(works())
    await rests.wait()
    await invoice.call(order)
    worker.cancel()


@aft.flow(name="cancelled_plain_overcomes")
def plain_overcomes(order: str) -> None:
    """The same in a plain flow, whose own code fails."""
    aft.pivot()
    try:
        book(order, "bad")
    except Refused:
        confirm(order, 1)
    if order not in fixed:
        raise Refused("own")


@pytest.mark.parametrize("flow", [overcomes, worker_overcomes, plain_overcomes], ids=lambda flow: flow.name)
def test_what_was_overcome_is_not_tried_again(setup: Setup, flow: Any) -> None:
    order = secrets.token_hex(4)
    gates[order].set()
    with run_to(setup.app(), flow, order) as run:
        retry_after_fix(run, order)
        run.result(30)
    assert ledger[order] == ["confirm 1"]
