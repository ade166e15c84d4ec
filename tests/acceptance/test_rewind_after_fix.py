"""A bug in a flow's code, then the fix, then a retry: what the code did while the bug's exception travelled is gone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

import pytest

import aft
from aft.runs.states import Status
from tests.acceptance.agency import book, book_async
from tests.setups import Setup, eventually, run_to
from tests.world import broken, ledger, shut


@pytest.fixture
def journey() -> str:
    name = secrets.token_hex(4)
    broken.add(name)
    return name


#: What is raised, if no TypeError is.
raised: dict[str, BaseException] = {}


def check(journey: str) -> None:
    if journey in broken:
        raise raised.get(journey, TypeError("a bug"))


@aft.activity(name="taken_back_tell")
def tell(journey: str, what: str) -> None:
    """What nothing undoes."""
    ledger[journey].append(what)


@contextmanager
def locked(journey: str) -> Iterator[None]:
    tell(journey, "lock")
    try:
        yield
    finally:
        tell(journey, "unlock")


@aft.flow(name="taken_back_finally")
def frees(journey: str) -> str:
    """Free a lock, whatever happens."""
    book(journey, "flight")
    with locked(journey):
        check(journey)
        book(journey, "hotel")
    return book(journey, "car")


@aft.flow(name="taken_back_except")
def tells(journey: str) -> str:
    """Tell of a failure, and pass it on."""
    try:
        book(journey, "flight")
        check(journey)
        book(journey, "hotel")
    except Exception as error:
        tell(journey, "lock")
        with aft.savepoint():
            aft.parallel(tell.call(journey, "unlock"))
        raise TypeError("told") from error
    return book(journey, "car")


@pytest.mark.parametrize(
    ("flow", "after"),
    [(frees, ["hotel", "unlock", "car"]), (tells, ["hotel", "car"])],
)
def test_after_the_fix_the_flow_goes_on_from_where_the_bug_was(
    setup: Setup, journey: str, flow: aft.Flow[[str], str], after: list[str]
) -> None:
    app = setup.app()
    run = app.start(flow, journey)
    assert run.status is Status.PARKED
    assert ledger[journey] == ["flight", "lock", "unlock"]
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey][3:] == after


def test_a_flow_that_would_end_its_process_goes_on_from_there_too(setup: Setup, journey: str) -> None:
    app = setup.app()
    raised[journey] = SystemExit(3)
    run = app.start(frees, journey)
    assert (run.status, "sys.exit(3)" in (run.row.reason or "")) == (Status.PARKED, True)
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey][3:] == ["hotel", "unlock", "car"]


def test_a_run_that_is_undone_after_its_bug_was_fixed_says_so(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.start(frees, journey)
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        run.result(60)
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[journey][-3:] == ["uncar", "unhotel", "unflight"]


@aft.flow(name="taken_back_booked")
def books(journey: str) -> str:
    """Book something in the place of what could not be booked."""
    try:
        book(journey, "flight")
        check(journey)
        return book(journey, "hotel")
    except TypeError:
        book(journey, "hostel")
        raise


@aft.flow(name="taken_back_nested")
def handles_more(journey: str) -> str:
    """Handle something else while the bug is handled."""
    book(journey, "flight")
    try:
        check(journey)
    except TypeError:
        try:
            {}["nothing"]  # type: ignore[index]
        except KeyError:
            book(journey, "hostel")
        raise
    return book(journey, "hotel")


@aft.flow(name="taken_back_closing")
def closes(journey: str) -> str:
    """Close a generator for the bug, whose ``finally`` does something."""

    def places() -> Generator[str, None, None]:
        try:
            yield book(journey, "flight")
        finally:
            book(journey, "hostel")

    with closing(places()) as found:
        next(found)
        check(journey)
        return book(journey, "hotel")


@pytest.mark.parametrize("flow", [handles_more, closes], ids=lambda flow: flow.name)
def test_so_is_what_was_done_while_something_else_was_handled_for_the_bug(
    setup: Setup, journey: str, flow: aft.Flow[[str], str]
) -> None:
    app = setup.app()
    run = app.start(flow, journey)
    assert ledger[journey] == ["flight", "hostel"]
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        run.result(60)
    assert ledger[journey][:4] == ["flight", "hostel", "unhostel", "hotel"]


def test_what_was_done_while_the_bug_travelled_is_undone_before_the_run_goes_on(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.start(books, journey)
    assert ledger[journey] == ["flight", "hostel"]
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        run.result(60)
    assert ledger[journey][2:] == ["unhostel", "hotel"]


def test_a_run_with_a_bug_that_is_cancelled_is_undone_in_reverse(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.start(books, journey)
    with app.dispatcher():
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[journey][2:] == ["unhostel", "unflight"]


@aft.flow(name="taken_back_handled")
def handles(journey: str) -> str:
    """A bug while something is handled that was expected: that was done well."""
    try:
        {}["nothing"]  # type: ignore[index]
    except KeyError:
        book(journey, "hostel")
        check(journey)
    return book(journey, "car")


def test_what_was_done_before_the_bug_stays(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.start(handles, journey)
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        run.result(60)
    assert ledger[journey] == ["hostel", "car"]


@aft.flow(name="taken_back_twice")
def fails_twice(journey: str) -> str:
    """A bug, and another one in the block that tidies up, because of the first."""
    try:
        check(journey)
        seat = book(journey, "seat")
    finally:
        tell(journey, "leaving")
        tell(journey, seat)
    return book(journey, "car")


def test_a_second_bug_that_follows_from_the_first_keeps_nothing_back(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.start(fails_twice, journey)
    assert "UnboundLocalError" in (run.row.reason or "")
    broken.discard(journey)
    with app.dispatcher():
        run.retry()
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey] == ["leaving", "seat", "leaving", f"seat of {journey}", "car"]


# Tasks --------------------------------------------------------------------------------------------------------------


@aft.flow(name="taken_back_group")
async def groups(journey: str) -> str:
    """One task has a bug, the other one is in a savepoint; the group is tidied up after."""

    async def fly() -> None:
        await book_async(journey, "flight")
        await aft.wait_for("go")
        try:
            check(journey)
        finally:
            await book_async(journey, "lounge")

    async def stay() -> None:
        with aft.savepoint():
            await book_async(journey, "hotel")
            try:
                await aft.wait_for("stay")
            finally:
                await book_async(journey, "bill")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fly())
            group.create_task(stay())
    finally:
        await asyncio.gather(book_async(journey, "taxi"), book_async(journey, "bus"))
    return str(await book_async(journey, "car"))


def test_after_the_fix_all_tasks_of_a_group_go_on(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), groups, journey) as run:
        eventually(lambda: sorted(ledger[journey]) == ["flight", "hotel"] and run.status is Status.WAITING)
        run.signal("go")
        eventually(lambda: run.status is Status.PARKED)
        done = ledger[journey][2:]
        assert sorted(done) == ["bill", "bus", "lounge", "taxi", "unbill", "unhotel"]
        broken.discard(journey)
        run.signal("stay")
        run.retry()
        assert run.result(60) == f"car of {journey}"
    after = ledger[journey][2 + len(done) :]
    # What was begun because of the bug is undone; the savepoint that was undone is gone through again.
    assert sorted(after[:3]) == ["unbus", "unlounge", "untaxi"]
    assert sorted(after[3:-3]) == ["bill", "hotel", "lounge"]
    assert (sorted(after[-3:-1]), after[-1]) == (["bus", "taxi"], "car")


@aft.flow(name="taken_back_beside")
async def beside(journey: str) -> str:
    """A bug in the flow itself, which tidies up while a task that it knows nothing of is at work."""

    async def stay() -> None:
        await book_async(journey, "hotel")
        await book_async(journey, "meal")

    task = asyncio.create_task(stay())
    try:
        await book_async(journey, "flight")
        check(journey)
    finally:
        await aft.wait_for("tidy")
    await task
    return str(await book_async(journey, "car"))


def test_what_other_tasks_did_meanwhile_stays(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), beside, journey) as run:
        eventually(lambda: sorted(ledger[journey]) == ["flight", "hotel", "meal"] and run.status is Status.WAITING)
        run.signal("tidy")
        eventually(lambda: run.status is Status.PARKED)
        broken.discard(journey)
        run.retry()
        # The word was given back: it is heard where the code waits for it now.
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey][3:] == ["car"]


@aft.flow(name="taken_back_plain")
async def calls_plainly(journey: str) -> str:
    """A step that is called plainly, in a task, after the bug; another task was at work meanwhile."""

    async def fly() -> None:
        await book_async(journey, "flight")
        try:
            check(journey)
        except TypeError:
            await aft.wait_for("tidy")
            raise
        book(journey, "seat")

    async def stay() -> None:
        await book_async(journey, "hotel")
        await book_async(journey, "meal")

    await asyncio.gather(fly(), stay())
    return str(await book_async(journey, "car"))


def test_a_step_that_is_called_plainly_after_the_fix_is_executed(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), calls_plainly, journey) as run:
        eventually(lambda: sorted(ledger[journey]) == ["flight", "hotel", "meal"] and run.status is Status.WAITING)
        run.signal("tidy")
        eventually(lambda: run.status is Status.PARKED)
        broken.discard(journey)
        run.retry()
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey][3:] == ["seat", "car"]


@aft.flow(name="taken_back_flying")
async def flies(journey: str) -> str:
    """A bug in a task, while another one, which is cancelled for that, begins to tidy up."""

    async def stay() -> None:
        try:
            await aft.wait_for("never")
        finally:
            await book_async(journey, "bill")

    async def fail() -> None:
        await book_async(journey, "flight")
        check(journey)

    tasks = [asyncio.create_task(stay()), asyncio.create_task(fail())]
    try:
        await tasks[1]
    except TypeError:
        tasks[0].cancel()
        await aft.wait_for("tidy")
        raise
    tasks[0].cancel()
    await asyncio.wait(tasks)
    return str(await book_async(journey, "car"))


def test_what_is_at_work_when_the_run_parks_is_taken_back_too(setup: Setup, journey: str) -> None:
    gate = shut(journey, "bill")
    with run_to(setup.app(), flies, journey) as run:
        assert gate.reached.wait(60)
        run.signal("tidy")
        gate.set()
        eventually(lambda: run.status is Status.PARKED)
        broken.discard(journey)
        run.retry()
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey] == ["flight", "bill", "unbill", "bill", "car"]


@aft.flow(name="taken_back_helper")
async def cancels_helper(journey: str) -> str:
    """One task has a bug, of which the flow hears later; another one is cancelled for reasons of the flow's own."""

    async def work() -> None:
        await book_async(journey, "flight")
        check(journey)

    async def helper() -> None:
        try:
            await aft.sleep("1h")
        finally:
            await book_async(journey, "closed")

    worker, helps = asyncio.create_task(work()), asyncio.create_task(helper())
    await aft.wait_for("go")
    helps.cancel()
    await asyncio.wait([helps])
    await book_async(journey, "meal")
    await worker
    return str(await book_async(journey, "car"))


def test_what_a_task_did_that_was_cancelled_for_other_reasons_stays(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), cancels_helper, journey) as run:
        eventually(lambda: ledger[journey] == ["flight"] and run.status is Status.WAITING)
        run.signal("go")
        eventually(lambda: run.status is Status.PARKED)
        assert ledger[journey] == ["flight", "closed", "meal"]
        broken.discard(journey)
        run.retry()
        assert run.result(60) == f"car of {journey}"
    assert ledger[journey] == ["flight", "closed", "meal", "car"]
