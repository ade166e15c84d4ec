"""What comes for a run while its branches are at work is not missed, and what it waits for keeps its time."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import aft
from aft.flows.replay.runner import Runner
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.telemetry import ActivityRecorded, Event
from tests.acceptance import agency
from tests.acceptance.agency import book, book_async, later
from tests.acceptance.observe import children_of, database_now, recorded, unread
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, gates, ledger, shut, trouble

#: What only the engine's own code decides: one database says as much as another.
on_sqlite = pytest.mark.parametrize("setup", ["sqlite"], indirect=True)


def is_let_go(run: aft.Run, status: Status) -> bool:
    row = run.row
    return row.status is status and row.worker_id is None


def waits_for(app: aft.Aft, run: aft.Run, *, minutes: int) -> bool:
    """Whether the run is let go in its ladder, and not due for so many minutes. One look at one row: wakes go on."""
    row = run.row
    if row.status is not Status.RECOVERING or row.worker_id is not None or row.due_at is None:
        return False
    return row.due_at > database_now(app) + timedelta(minutes=minutes)


# What comes while another branch is at work ----------------------------------------------------------------------


@aft.flow(name="missed_number")
async def number_beside(journey: str) -> int:
    """Wait for a number, and book two things meanwhile."""
    number = asyncio.create_task(later(aft.wait_for("number", int)))
    await book_async(journey, "flight")
    await book_async(journey, "hotel")
    return int(await number)


def test_a_signal_that_comes_while_another_branch_is_at_work_is_taken(setup: Setup, journey: str) -> None:
    flight = shut(journey, "flight")
    with run_to(setup.app(), number_beside, journey) as run:
        assert flight.reached.wait(60)
        run.signal("number", 7)
        flight.set()
        assert run.result(60) == 7


@aft.flow(name="missed_guide")
async def guide(journey: str) -> str:
    """A child."""
    booked: str = await book_async(journey, "guide")
    return booked


@aft.flow(name="missed_guided")
async def guided(journey: str) -> str:
    """A child, and two bookings meanwhile."""
    child = asyncio.create_task(later(guide(journey)))
    await book_async(journey, "flight")
    await book_async(journey, "hotel")
    return str(await child)


def test_a_child_that_ends_while_another_branch_is_at_work_is_heard(setup: Setup, journey: str) -> None:
    app = setup.app()
    flight = shut(journey, "flight")
    with app.dispatcher():
        run = app.submit(guided, journey)
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.COMPLETED])
        flight.set()
        assert run.result(60) == f"guide of {journey}"


# Signals that failures wait for ----------------------------------------------------------------------------------


@aft.flow(name="missed_charged")
def charged(journey: str) -> str:
    """Take money, then book."""
    agency.charge(journey)
    return book(journey, "flight")


def test_a_compensator_may_wait_for_a_signal(setup: Setup, journey: str) -> None:
    trouble[journey, "flight"] = [Refused("full")]
    trouble[journey, "refund"] = [aft.Recoverable("no balance", on_signal="refilled")]
    with run_to(setup.app(), charged, journey) as run:
        eventually(lambda: [wait.name for wait in run.row.waits] == ["refilled"])
        run.signal("refilled")
        with pytest.raises(aft.FlowCompensated, match="full"):
            run.result(60)
    assert ledger[journey] == ["charge", "flight!", "refund!", "refund"]


def test_one_signal_is_one_try(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "pay"] = [aft.Recoverable("no balance", on_signal="refilled") for _ in range(3)]
    with app.dispatcher():
        run = app.submit(agency.pays, journey)
        for tries in (1, 2, 3):
            eventually(lambda: is_let_go(run, Status.RECOVERING) and run.row.waits)
            assert (ledger[journey], unread(app, run)) == (["pay!"] * tries, [])
            run.signal("refilled")
            eventually(lambda: unread(app, run) == [])
        assert run.result(60) == "paid"
    assert ledger[journey] == ["pay!", "pay!", "pay!", "pay"]


def test_a_failure_is_counted_though_something_came_meanwhile(setup: Setup, journey: str) -> None:
    app = setup.app()
    charge = shut(journey, "charge")
    trouble[journey, "charge"] = [aft.Recoverable("later", after="1h")]
    with app.dispatcher():
        run = app.submit(charged, journey)
        assert charge.reached.wait(60)
        run.signal("noise")
        charge.set()
        eventually(lambda: is_let_go(run, Status.RECOVERING) and run.row.due_at is not None)
        assert [(fault.attempt, fault.state.value) for fault in app.faults()] == [(1, "waiting")]
    assert ledger[journey] == ["charge!"]


# Waits that nobody waits for -------------------------------------------------------------------------------------


@aft.flow(name="missed_changed_mind")
async def changed_mind(journey: str) -> int:
    """A task waits for a number, and is cancelled; then the flow waits for one."""
    task = asyncio.create_task(later(aft.wait_for("number", int)))
    await book_async(journey, "hotel")
    task.cancel()
    number: int = await aft.wait_for("number", int)
    return number


@aft.flow(name="missed_undone")
async def undone(journey: str) -> int:
    """The same, where a savepoint is undone instead."""
    try:
        with aft.savepoint():
            async with asyncio.TaskGroup() as group:
                group.create_task(later(aft.wait_for("number", int)))
                group.create_task(later(book_async(journey, "hotel")))
    except* Refused:
        ledger[journey].append("caught")
    number: int = await aft.wait_for("number", int)
    return number


@on_sqlite
@pytest.mark.parametrize("flow", [changed_mind, undone], ids=["cancelled", "undone"])
def test_a_wait_that_is_no_more_takes_no_signal(setup: Setup, journey: str, flow: aft.Flow[[str], Any]) -> None:
    if flow is undone:
        trouble[journey, "hotel"] = [Refused("full")]
    with run_to(setup.app(), flow, journey) as run:
        eventually(lambda: is_let_go(run, Status.WAITING) and {"hotel", "caught"} & set(ledger[journey]))
        assert [wait.path for wait in run.row.waits] == ["3" if flow is changed_mind else "2"]
        run.signal("number", 7)
        assert run.result(60) == 7


@aft.flow(name="missed_leftover")
async def leftover(journey: str) -> str:
    """Return beside a task that waits, and another that is at work."""
    quick = asyncio.create_task(later(book_async(journey, "quick")))
    others = [later(aft.wait_for("number", int)), later(book_async(journey, "slow"))]
    tasks = [asyncio.create_task(other) for other in others]
    return f"{await quick}, {len(tasks)} left"


@on_sqlite
@pytest.mark.parametrize("busy", [0, 1], ids=["at once", "after coming back"])
def test_a_flow_may_return_while_a_wait_is_left_over(setup: Setup, journey: str, busy: int) -> None:
    app = setup.app()
    slow, trouble[journey, "slow"] = shut(journey, "slow"), [Busy()] * busy

    def hear(event: Event) -> None:
        if isinstance(event, ActivityRecorded):
            slow.set()

    app.telemetry.subscribe(hear)
    run = app.submit(leftover, journey)
    run.signal("number", 7)
    with app.dispatcher():
        assert run.result(60) == f"quick of {journey}, 2 left"
    assert ledger[journey] == ["quick", *["slow!"] * busy, "slow"]


# When a wait begins ----------------------------------------------------------------------------------------------


@aft.flow(name="missed_sleeps")
def sleeps(journey: str, how: str) -> None:
    """Wait for an hour, after a wait and some work in the same breath."""
    aft.sleep("1ms")
    book(journey, "work")
    if how == "sleep":
        aft.sleep("1h")
    else:
        aft.wait_for("number", timeout="1h")


@on_sqlite
@pytest.mark.parametrize("how", ["sleep", "signal"])
def test_a_wait_begins_when_the_run_has_come_to_it(setup: Setup, journey: str, how: str) -> None:
    app = setup.app()
    work = shut(journey, "work")
    with app.dispatcher():
        run = app.submit(sleeps, journey, how)
        assert work.reached.wait(60)
        reached = database_now(app)
        left = eventually(lambda: (moment := database_now(app)) > reached and moment)
        work.set()
        eventually(lambda: (row := run.row).worker_id is None and [wait.path for wait in row.waits] == ["3"])
    (wait,) = run.row.waits
    assert wait.since >= left
    assert wait.until == wait.since + timedelta(hours=1)


def test_a_wait_keeps_its_beginning_when_its_worker_is_drained(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(agency.naps, journey, "1h")
        eventually(lambda: is_let_go(run, Status.WAITING))
    (began,) = run.row.waits
    run.suspend()
    run.resume()
    executed, execute = threading.Event(), Runner.run

    def drained(self: Runner, row: RunRow, **more: Any) -> Any:
        self._deps.draining.set()  # between the claim and the first step
        try:
            return execute(self, row, **more)
        finally:
            executed.set()

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", drained)
        with app.dispatcher():
            assert executed.wait(60)
    assert run.row.wake_id is not None
    assert run.row.waits == (began,)
    with app.dispatcher():
        eventually(lambda: is_let_go(run, Status.WAITING))
    assert run.row.waits == (began,)


# Branches that cannot begin, or must wait -------------------------------------------------------------------------


@on_sqlite
def test_a_branch_whose_thread_cannot_be_started_is_begun_later(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    start, branches = threading.Thread.start, []

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name.startswith("aft-branch"):
            branches.append(thread)
            if len(branches) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    with app.dispatcher():
        assert app.submit(agency.journey_flow, journey).result(60)
    assert sorted(ledger[journey]) == ["car", "flight", "hotel", "invoice"]


def test_a_ladder_s_wait_is_kept_when_the_fault_of_another_branch_wakes_the_run(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "flight"] = [aft.Recoverable("later", after="1h")]
    trouble[journey, "hotel"] = [Refused("full")]
    hotel = shut(journey, "hotel")
    with app.dispatcher():
        run = app.submit(agency.journey_flow, journey)
        eventually(lambda: "flight!" in ledger[journey])
        hotel.set()
        eventually(lambda: any(entry.fault_id for entry in recorded(app, run)) and waits_for(app, run, minutes=50))
        assert sorted(ledger[journey]) == ["car", "flight!", "hotel!"]


@aft.flow(name="missed_unwritten")
async def unwritten(journey: str) -> str:
    """One branch fails between two steps of another, which then fails for good."""

    async def leg() -> None:
        await book_async(journey, "hotel")
        _fail_alone(journey)
        await book_async(journey, "car")
        raise Refused("no car")

    try:
        with aft.savepoint():
            async with asyncio.TaskGroup() as group:
                group.create_task(later(book_async(journey, "flight")))
                group.create_task(leg())
    except* Refused:
        ledger[journey].append("caught")
    booked: str = await book_async(journey, "train")
    return booked


def _fail_alone(journey: str) -> None:
    """Let the flight fail here, where no other branch is at work; once."""
    if not gates[journey, "flight"].is_set():
        eventually(lambda: len(_branches() - strangers[journey]) == 1)
        gates[journey, "flight"].set()
        eventually(lambda: _branches() <= strangers[journey])


def _branches() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("aft-branch")}


#: Branches of other tests that have not come to rest.
strangers: dict[str, set[threading.Thread]] = {}


@on_sqlite
def test_a_fault_that_has_not_been_written_is_not_said_to_be(setup: Setup, journey: str) -> None:
    app = setup.app()
    shut(journey, "flight")
    strangers[journey] = _branches()
    trouble[journey, "flight"] = [Busy()]
    with app.dispatcher():
        assert app.submit(unwritten, journey).result(60) == f"train of {journey}"
    # The flight's failure, and that it is not tried again because its task was cancelled.
    assert [(fault.attempt, fault.state.value) for fault in app.faults()] == [(1, "final"), (1, "final")]
    done = [what for what in ledger[journey] if what != "caught"]
    assert done == ["hotel", "flight!", "car", "uncar", "unhotel", "train"]
