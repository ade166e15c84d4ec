"""Branches of a run that leaves and comes back: it takes the same way again, and nothing is forgotten or done twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import aft
from aft.fault import FaultState
from aft.flows.replay.runner import Runner
from aft.flows.scheduler.finished_steps import FinishedSteps
from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.steps.request import StepRequest
from aft.ids import StepPath
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from tests.acceptance import agency
from tests.acceptance.agency import book, book_async, do, visit
from tests.acceptance.observe import recorded
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, gates, ledger, shut, trouble


async def later(call: Any) -> Any:
    return await call


def who_awaits(app: aft.Aft, signal: str) -> aft.Run:
    """Wait until a run awaits this signal and nothing else, nobody has it, and nobody has called for it."""

    def rests(row: RunRow) -> bool:
        return row.worker_id is None and row.due_at is None and [wait.name for wait in row.waits] == [signal]

    found: aft.Run = eventually(lambda: next((run for run in app.runs() if rests(run.row)), None))
    return found


def has_failed_for_good(app: aft.Aft) -> bool:
    """Whether the failure of some step is final."""
    return any(fault.state is FaultState.FINAL for fault in app.faults())


@aft.flow(name="again_map_then_train")
def map_then_train(journey: str, stops: list[str]) -> str:
    """Not all stops are begun; the flow goes another way."""
    try:
        aft.map(visit, stops, concurrency=1)
    except Refused:
        book(journey, "ticket")
        return book(journey, "train")
    return "all"


def test_stops_that_were_never_begun_do_not_part_code_and_journal(setup: Setup, journey: str) -> None:
    trouble[journey, "a"] = [Refused("closed")]
    trouble[journey, "train"] = [Busy()]
    with run_to(setup.app(), map_then_train, journey, [f"{journey}:{what}" for what in "abc"]) as run:
        assert run.result(60) == f"train of {journey}"
    assert ledger[journey] == ["a!", "ticket", "train!", "train"]


@aft.flow(name="again_sea")
def sea(journey: str) -> str:
    """A child fails for good while an activity beside it is in its ladder."""
    try:
        with aft.savepoint():
            aft.parallel(book.call(journey, "ferry"), agency.leg.call(journey, "boat"))
    except Refused:
        return book(journey, "train")
    return "sea"


def test_a_branch_in_its_ladder_comes_to_its_end_though_another_has_failed_for_good(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "ferry"] = [aft.Recoverable("later", on_signal="go")]
    trouble[journey, "boat there"] = [Refused("storm")]
    with app.dispatcher():
        run = app.submit(sea, journey)
        who_awaits(app, "go").signal("go")  # and no child any more
        assert run.result(60) == f"train of {journey}"
        assert {fault.state.value for fault in app.faults()} <= {"resolved", "final", "tried"}
    assert sorted(ledger[journey][:2]) == ["boat there!", "ferry!"]
    assert ledger[journey][2:] == ["ferry", "unferry", "train"]


def test_a_child_comes_to_its_end_though_what_is_beside_it_has_failed_for_good(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "ferry"] = [Refused("storm")]
    trouble[journey, "boat there"] = [aft.Recoverable("later", on_signal="go")]
    with app.dispatcher():
        run = app.submit(sea, journey)
        eventually(lambda: run.status is Status.WAITING)  # for its child only; nothing else is to be tried again
        who_awaits(app, "go").signal("go")
        assert run.result(60) == f"train of {journey}"
    assert sorted(ledger[journey][:2]) == ["boat there!", "ferry!"]
    assert ledger[journey][2:] == ["boat there", "boat back", "unboat back", "unboat there", "train"]


def test_a_child_that_has_completed_unheard_is_undone_when_its_parent_is_cancelled(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "train there"] = [aft.Recoverable("later", on_signal="go")]
    with run_to(app, agency.family, journey, status=Status.WAITING) as run:
        run.suspend()
        who_awaits(app, "go").signal("go")
        eventually(lambda: run.row.inbox_seq == 1)  # the child's end
        run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["train there!", "train there", "train back", "untrain back", "untrain there"]


class _Lost(threading.Event):
    """A gate at which the run is taken from its owner, when the failure of the other branch is recorded."""

    def __init__(self, app: aft.Aft) -> None:
        super().__init__()
        self._app = app

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            eventually(self._app.faults)
            self.set()
            (run,) = self._app.runs()
            eventually(lambda: recorded(self._app, run))  # the third branch: else it would be executed again
            run.release()
            raise Busy
        return True


def test_a_fault_whose_owner_lost_the_run_is_decided_about_for_the_next(
    setup: Setup, journey: str, quick_beats: float
) -> None:
    app = setup.app(lease=quick_beats, grace="300ms")
    gates[journey, "flight"] = _Lost(app)
    trouble[journey, "hotel"] = [Busy()]
    run = app.start(agency.journey_flow, journey)
    with app.dispatcher():
        assert run.result(60)
    assert sorted(ledger[journey]) == ["car", "flight", "hotel", "hotel!", "invoice"]
    assert [fault.attempt for fault in app.faults() if fault.name == "agency_book"] == [1]


@aft.flow(name="again_asks_twice")
async def asks_twice(journey: str) -> int:
    """A task that waits for a number is cancelled; then the flow itself waits for one."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(later(aft.wait_for("number", int)))
            group.create_task(later(book_async(journey, "hotel")))
    except* Refused:
        ledger[journey].append("caught")
    number: int = await aft.wait_for("number", int)
    return number


def test_a_cancelled_wait_takes_no_signal_from_those_that_still_wait(setup: Setup, journey: str) -> None:
    trouble[journey, "hotel"] = [Refused("full")]
    with run_to(setup.app(), asks_twice, journey) as run:
        eventually(lambda: "caught" in ledger[journey] and run.status is Status.WAITING)
        assert [wait.path for wait in run.row.waits] == ["3"]
        run.signal("number", 7)
        assert run.result(60) == 7


@aft.flow(name="again_abandoned")
async def abandoned(journey: str) -> str:
    """One of two branches fails, and the other is in the middle."""

    async def leg(*stops: str) -> None:
        for what in stops:
            await book_async(journey, what)

    try:
        with aft.savepoint():
            await asyncio.gather(leg("flight", "seat", "meal"), leg("hotel"))
    except Refused:
        booked: str = await book_async(journey, "train")
        return booked
    return "all"


def test_a_branch_under_an_undone_savepoint_does_not_go_on_in_a_later_pass(setup: Setup, journey: str) -> None:
    trouble[journey, "hotel"] = [Refused("full")]
    trouble[journey, "seat"] = [aft.Recoverable("later", on_signal="go")]
    trouble[journey, "train"] = [Busy()]
    with run_to(setup.app(), abandoned, journey) as run:
        assert run.result(60) == f"train of {journey}"
    done = [what for what in ledger[journey] if what != "hotel!"]
    assert done == ["flight", "seat!", "unflight", "train!", "train"]


@aft.flow(name="again_hung")
async def hung(journey: str) -> str:
    """A task of a savepoint that failed is awaited after all."""

    async def leg() -> str:
        booked: str = await book_async(journey, "flight")
        return booked

    tasks: list[asyncio.Task[str]] = []
    try:
        with aft.savepoint():
            tasks.append(asyncio.create_task(leg()))
            await book_async(journey, "hotel")
    except Refused:
        pass
    try:
        return await tasks[0]
    except asyncio.CancelledError:
        return "cancelled"


def test_what_was_begun_under_an_undone_savepoint_is_cancelled(setup: Setup, journey: str) -> None:
    trouble[journey, "flight"] = [aft.Recoverable("later", on_signal="go")]
    trouble[journey, "hotel"] = [Refused("full")]
    with run_to(setup.app(), hung, journey) as run:
        assert run.result(60) == "cancelled"
    assert sorted(ledger[journey]) == ["flight!", "hotel!"]


def test_a_step_that_is_just_being_blocked_is_cancelled_with_its_savepoint(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, complete_under, undoes = FinishedSteps.put, StepScheduler.complete_under, threading.Event()

    def put_late(self: FinishedSteps, step: StepRequest) -> None:
        """Report that the flight is blocked only when the savepoint is being undone."""
        if step.path == "1.1.1" and self._owner.epoch > 1 and step.entry is None:
            undoes.wait(60)
        put(self, step)

    def begin_to_undo(self: StepScheduler, path: StepPath) -> None:
        undoes.set()
        complete_under(self, path)

    monkeypatch.setattr(FinishedSteps, "put", put_late)
    monkeypatch.setattr(StepScheduler, "complete_under", begin_to_undo)
    test_what_was_begun_under_an_undone_savepoint_is_cancelled(setup, journey)


@aft.flow(name="again_returns_early")
async def returns_early(journey: str) -> int:
    """The flow returns while a task of it has just got its signal, and another is at work."""
    tasks = [asyncio.create_task(later(call)) for call in (aft.wait_for("other", int), book_async(journey, "hotel"))]
    number: int = await aft.wait_for("number", int)
    return number + 0 * len(tasks)


@pytest.mark.parametrize("busy", [0, 1])
def test_a_flow_may_return_beside_tasks_that_wait_and_work(setup: Setup, journey: str, busy: int) -> None:
    app = setup.app()
    trouble[journey, "hotel"] = [Busy()] * busy
    run = app.submit(returns_early, journey)
    run.signal("number", 7)
    run.signal("other", 8)
    with app.dispatcher():
        assert run.result(60) == 7
    assert ledger[journey] == ["hotel!"] * busy + ["hotel"]


@aft.flow(name="again_tidies_up")
async def tidies_up(journey: str) -> str:
    """A task that is cancelled at the end of the flow tidies up in two steps."""

    async def guest() -> None:
        try:
            await aft.wait_for("never")
        finally:
            await book_async(journey, "towels")
            await book_async(journey, "keys")

    task = asyncio.create_task(guest())
    await book_async(journey, "hotel")
    return task.get_name() and "done"


def test_a_task_is_cancelled_once_at_the_end_of_its_flow(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "keys"] = [Busy()]
    with app.dispatcher():
        assert app.submit(tidies_up, journey).result(60) == "done"
    assert ledger[journey] == ["hotel", "towels", "keys!", "keys"]


@aft.flow(name="again_mistaken")
async def mistaken(journey: str) -> None:
    """A mistake in the flow's code, while a task is in a savepoint."""

    async def guest() -> None:
        with aft.savepoint():
            await book_async(journey, "hotel")
            await aft.wait_for("never")

    task = asyncio.create_task(guest())
    await book_async(journey, "flight")
    await aft.sleep("1ms")
    raise TypeError(f"a bug beside {task}")


def test_a_mistake_in_an_async_flow_undoes_nothing_of_its_branches(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(mistaken, journey)
        eventually(lambda: run.status is Status.PARKED)
    assert sorted(ledger[journey]) == ["flight", "hotel"]


@aft.flow(name="again_cancels_itself")
async def cancels_itself(journey: str) -> str:
    """A flow that awaits what it has cancelled."""
    await book_async(journey, "flight")
    task = asyncio.create_task(later(aft.wait_for("never")))
    task.cancel()
    return str(await task)


def test_a_flow_that_is_left_by_a_cancellation_is_undone(setup: Setup, journey: str) -> None:
    with (
        run_to(setup.app(), cancels_itself, journey) as run,
        pytest.raises(aft.FlowCompensated, match="CancelledError"),
    ):
        run.result(60)
    assert ledger[journey] == ["flight", "unflight"]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the second pass over a run give it back at its first step; returns the numbers of the passes."""
    passes: list[int] = []
    real = Runner._pass

    def hurry(runner: Runner, *given: Any) -> bool:
        passes.append(len(passes) + 1)
        if passes[-1] != 2:
            return real(runner, *given)
        runner._deps.making_room.set()
        try:
            return real(runner, *given)
        finally:
            runner._deps.making_room.clear()

    monkeypatch.setattr(Runner, "_pass", hurry)
    return passes


def test_a_sleep_does_not_begin_anew_when_its_run_is_given_back(setup: Setup, journey: str, hurried: list[int]) -> None:
    app = setup.app()
    with app.dispatcher():
        app.submit(agency.naps, journey, "300ms").result(60)
    assert hurried == [1, 2, 3]


@aft.flow(name="again_pays_and_books")
def pays_and_books(journey: str) -> tuple[str, str]:
    return aft.parallel(agency.pay.call(journey), book.call(journey, "hotel"))


def test_a_fault_still_waits_for_its_signal_when_its_run_was_given_back(
    setup: Setup, journey: str, hurried: list[int]
) -> None:
    trouble[journey, "pay"] = [aft.Recoverable("no balance", on_signal="refilled")]
    trouble[journey, "hotel"] = [Busy()]
    with run_to(setup.app(), pays_and_books, journey) as run:
        eventually(lambda: len(hurried) >= 3 and "hotel" in ledger[journey] and run.row.worker_id is None)
        run.signal("refilled")
        assert run.result(60)[0] == "paid"


@aft.activity(name="again_item", levels=["1h"], recoverable=(Busy,), unrecoverable=(Refused,))
def item(name: str) -> str:
    journey, number = name.split("/")
    do(journey, number)
    return number


@aft.flow(name="again_items")
def items(journey: str, count: int) -> list[str]:
    return aft.map(item, [f"{journey}/{number}" for number in range(count)], concurrency=4)


def test_an_item_that_waits_in_its_ladder_keeps_no_other_item_of_its_map_from_being_begun(
    setup: Setup, journey: str
) -> None:
    app = setup.app()
    for failing in ("2", "9", "13"):
        trouble[journey, failing] = [Busy()]
    with app.dispatcher():
        app.submit(items, journey, 20)
        eventually(lambda: len(ledger[journey]) == 20)
    assert sorted(ledger[journey]) == sorted(f"{n}!" if n in (2, 9, 13) else str(n) for n in range(20))


def test_no_item_is_begun_any_more_once_one_has_failed_for_good(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "2"] = [Refused("never")]
    failing, *beside = [shut(journey, number) for number in ("2", "3", "4", "5")]
    with app.dispatcher():
        run = app.submit(items, journey, 200)
        for gate in beside:
            eventually(gate.reached.is_set)
        failing.set()
        eventually(app.faults)
        for gate in beside:
            gate.set()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert sorted(ledger[journey]) == ["0", "1", "2!", "3", "4", "5"]


@aft.flow(name="again_items_then_bug")
def items_then_bug(journey: str) -> str:
    """Not all items are begun; further down is a mistake of the flow's own."""
    try:
        aft.map(item, [f"{journey}/{number}" for number in range(6)], concurrency=2)
    except Refused:
        if (journey, "bug") in trouble:
            raise NameError("no such name") from None
    return book(journey, "train")


def test_no_item_is_begun_after_its_map_has_failed_though_the_run_was_parked_since(setup: Setup, journey: str) -> None:
    trouble[journey, "1"] = [Refused("never")]
    trouble[journey, "bug"] = []
    with run_to(setup.app(), items_then_bug, journey, status="parked") as run:
        begun = list(ledger[journey])
        del trouble[journey, "bug"]
        run.retry()
        assert run.result(60) == f"train of {journey}"
    assert ledger[journey] == [*begun, "train"]
