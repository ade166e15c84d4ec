"""An interrupt reaches every branch that is blocked: deadlines, people and exlets that have a savepoint undone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import update

import aft
from aft import do
from aft.flows.orders.interrupts import Interrupts
from aft.flows.session.blocks import Blocked
from aft.flows.session.step_states import StepStates
from aft.flows.steps.activity_step import ActivityStep
from aft.flows.steps.request import OnRecorded, StepRequest
from aft.ids import StepPath
from aft.runs.records.journal import Entry
from aft.runs.states import Status
from aft.store.db_time import now
from aft.store.tables import runs
from tests.acceptance.agency import book, book_async, later
from tests.acceptance.observe import children_of, recorded, unread
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import Busy, gates, ledger, shut, trouble

#: A ladder's level that no test outlasts.
LONG = "1h"


def fails_for_long(journey: str, *whats: str) -> None:
    """Let steps fail once, and their next try be due only after a long time."""
    for what in whats:
        trouble[journey, what] = [aft.Recoverable("later", after=LONG)]


def in_ladders(app: aft.Aft, run: aft.Run, count: int) -> bool:
    """Whether so many branches of a run wait for their next try, and nobody executes it."""
    waiting = [fault for fault in app.faults(state="waiting") if fault.run_id == run.id]
    return run.row.worker_id is None and len(waiting) == count


def pass_deadline(app: aft.Aft, run: aft.Run) -> None:
    """Let the deadline of a run be now, as if its time had passed while all of its branches are blocked."""
    with app.store.write() as connection:
        over = {"deadline_at": now(), "due_at": now(), "sweep_at": now()}
        connection.execute(update(runs).where(runs.c.id == run.id, runs.c.worker_id.is_(None)).values(**over))


def all_wait(app: aft.Aft, run: aft.Run, children: int) -> bool:
    """Whether a run and so many children of it wait, and nobody executes any of them."""
    found = [run.row, *children_of(app, run)]
    waiting = all(row.worker_id is None and row.status in (Status.WAITING, Status.RECOVERING) for row in found)
    return waiting and len(found) == children + 1


@aft.flow(name="interrupts_nap")
def nap(what: str) -> str:
    """A child: book something, then wait for a word that does not come."""
    journey, _, name = what.partition(":")
    book(journey, name)
    return str(aft.wait_for("word"))


@aft.flow(name="interrupts_both")
def both(journey: str, more: list[str] | None = None) -> str:
    """Two calls and more side by side under a savepoint; another way, if that is interrupted."""
    try:
        with aft.savepoint("sea"):
            book(journey, "deposit")
            aft.parallel(*(book.call(journey, what) for what in ["ferry", "cabin", *(more or [])]))
            return "sea"
    except (aft.UndoneByHand, aft.DeadlineExceeded) as error:
        return f"{type(error).__name__}, {book(journey, 'train')}"


@aft.flow(name="interrupts_children")
def children(journey: str) -> str:
    """Two children side by side that wait; another way, if that is interrupted."""
    try:
        with aft.savepoint("sea"):
            aft.map(nap, [f"{journey}:a", f"{journey}:b"])
            return "sea"
    except (aft.UndoneByHand, aft.DeadlineExceeded) as error:
        return f"{type(error).__name__}, {book(journey, 'train')}"


@aft.flow(name="interrupts_unsaved")
def unsaved(journey: str) -> str:
    """Two children side by side that wait, under no savepoint; another way, if that is interrupted."""
    try:
        aft.map(nap, [f"{journey}:a", f"{journey}:b"])
    except aft.DeadlineExceeded:
        return book(journey, "train")
    return "sea"


@aft.flow(name="interrupts_tasks")
async def tasks(journey: str) -> list[str]:
    """Branches of an async flow that each wait for something else; each tells what it hears."""

    async def branch(call: aft.Call[str]) -> str:
        try:
            return str(await call)
        except (aft.UndoneByHand, aft.DeadlineExceeded) as error:
            return type(error).__name__

    with aft.savepoint("sea"):
        waits = (book_async.call(journey, "ferry"), nap.call(f"{journey}:a"), nap.call(f"{journey}:b"))
        heard = await asyncio.gather(*(branch(call) for call in waits), branch(aft.wait_for("word")))
    return [*heard, await book_async(journey, "train")]


@aft.flow(name="interrupts_grouped")
async def grouped(journey: str) -> str:
    """A task group whose tasks are both in their ladders; the first that fails cancels the other."""
    failures: list[str] = []
    try:
        with aft.savepoint("sea"):
            async with asyncio.TaskGroup() as group:
                group.create_task(later(book_async(journey, "ferry")))
                group.create_task(later(book_async(journey, "cabin")))
    except* aft.DeadlineExceeded as errors:
        failures += [type(error).__name__ for error in errors.exceptions]
    return f"{failures}, {await book_async(journey, 'train')}"


# Deadlines --------------------------------------------------------------------------------------------------------


def test_a_deadline_over_children_side_by_side_stops_and_undoes_each_of_them(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(children.options(deadline="1h"), journey)
        eventually(lambda: all_wait(app, run, 2))
        pass_deadline(app, run)
        assert run.result(60) == f"DeadlineExceeded, train of {journey}"
    assert sorted(ledger[journey][:2]) == ["a", "b"]
    assert sorted(ledger[journey][2:4]) == ["una", "unb"]
    assert ledger[journey][4:] == ["train"]
    assert {child.ended_as for child in children_of(app, run)} == {Status.COMPENSATED}


def test_no_child_outlives_a_parent_that_caught_its_deadline(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(unsaved.options(deadline="1h"), journey)
        eventually(lambda: all_wait(app, run, 2))
        pass_deadline(app, run)
        assert run.result(60) == f"train of {journey}"
        assert {child.ended_as for child in children_of(app, run)} == {Status.COMPENSATED}
    assert sorted(ledger[journey][2:4]) == ["una", "unb"]
    assert ledger[journey][4:] == ["train"]


def test_a_deadline_ends_the_ladders_of_all_branches(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry", "cabin")
    with app.dispatcher():
        run = app.submit(both.options(deadline="1h"), journey)
        eventually(lambda: in_ladders(app, run, 2))
        pass_deadline(app, run)
        assert run.result(60) == f"DeadlineExceeded, train of {journey}"
    assert sorted(ledger[journey][1:3]) == ["cabin!", "ferry!"]
    assert ledger[journey][3:] == ["undeposit", "train"]


def test_a_deadline_reaches_all_branches_of_an_async_flow_and_each_hears_of_it_once(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry")
    with app.dispatcher():
        run = app.submit(tasks.options(deadline="1h"), journey)
        eventually(lambda: all_wait(app, run, 2) and in_ladders(app, run, 1))
        pass_deadline(app, run)
        assert run.result(60) == [*["DeadlineExceeded"] * 4, f"train of {journey}"]
        assert {child.ended_as for child in children_of(app, run)} == {Status.COMPENSATED}
    assert ledger[journey][-1] == "train"
    assert sorted(ledger[journey][:-1]) == ["a", "b", "ferry!", "una", "unb"]


def test_a_deadline_ends_the_ladder_of_a_task_that_its_group_has_cancelled(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry", "cabin")
    with app.dispatcher():
        run = app.submit(grouped.options(deadline="1h"), journey)
        eventually(lambda: in_ladders(app, run, 2))
        pass_deadline(app, run)
        assert run.result(60) == f"['DeadlineExceeded'], train of {journey}"


def test_what_is_executed_when_the_deadline_passes_comes_to_its_end(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry")
    gate = shut(journey, "cabin")
    with app.dispatcher():
        run = app.submit(both.options(deadline="5s"), journey)
        eventually(lambda: any(entry.name == "agency_book" for entry in recorded(app, run)[1:]))
        gate.set()
        assert run.result(60) == f"DeadlineExceeded, train of {journey}"
    assert ledger[journey] == ["deposit", "ferry!", "cabin", "uncabin", "undeposit", "train"]


def test_what_is_executed_when_the_deadline_passes_and_fails_then_climbs_no_ladder(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry", "cabin")
    gate = shut(journey, "cabin")
    with app.dispatcher():
        run = app.submit(both.options(deadline="5s"), journey)
        eventually(lambda: len(recorded(app, run)) == 2)  # the ferry has heard of it
        gate.set()
        assert run.result(60) == f"DeadlineExceeded, train of {journey}"
    assert ledger[journey] == ["deposit", "ferry!", "cabin!", "undeposit", "train"]


def test_a_child_that_completes_while_its_step_is_interrupted_is_undone_all_the_same(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    fail = Interrupts.fail

    def complete_and_fail(
        interrupts: Interrupts, ask: StepRequest, on_recorded: OnRecorded | None, **named: Any
    ) -> Entry:
        for child in children_of(app, run):
            if child.parent_path == ask.path:
                app.run(child.id).signal("word", "too late")
                assert app.run(child.id).result(60) == "too late"
        return fail(interrupts, ask, on_recorded, **named)

    monkeypatch.setattr(Interrupts, "fail", complete_and_fail)
    with app.dispatcher():
        run = app.submit(unsaved.options(deadline="1h"), journey)
        eventually(lambda: all_wait(app, run, 2))
        pass_deadline(app, run)
        assert run.result(60) == f"train of {journey}"
        assert {child.ended_as for child in children_of(app, run)} == {Status.COMPENSATED}
    assert sorted(ledger[journey][2:4]) == ["una", "unb"]
    assert ledger[journey][4:] == ["train"]


# People -----------------------------------------------------------------------------------------------------------


def test_undoing_to_a_savepoint_ends_the_ladders_of_all_branches(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry", "cabin")
    with app.dispatcher():
        run = app.submit(both, journey)
        eventually(lambda: in_ladders(app, run, 2))
        run.compensate(to="sea", note="storm")
        assert run.result(60) == f"UndoneByHand, train of {journey}"
    assert ledger[journey][3:] == ["undeposit", "train"]
    assert unread(app, run) == []


def test_undoing_to_a_savepoint_stops_and_undoes_all_children_in_it(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(children, journey)
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.WAITING] * 2)
        eventually(lambda: run.status is Status.WAITING)
        run.compensate(to="sea", note="storm")
        assert run.result(60) == f"UndoneByHand, train of {journey}"
        assert {child.ended_as for child in children_of(app, run)} == {Status.COMPENSATED}
    assert sorted(ledger[journey][2:4]) == ["una", "unb"]


def test_undoing_to_a_savepoint_reaches_all_branches_of_an_async_flow(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry")
    with app.dispatcher():
        run = app.submit(tasks, journey)
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.WAITING] * 2)
        eventually(lambda: in_ladders(app, run, 1))
        run.compensate(to="sea", note="storm")
        assert run.result(60) == [*["UndoneByHand"] * 4, f"train of {journey}"]
        assert {child.ended_as for child in children_of(app, run)} == {Status.COMPENSATED}


def test_undoing_to_a_savepoint_waits_for_what_is_executed_and_reaches_the_other_branches(
    setup: Setup, journey: str
) -> None:
    app = setup.app()
    trouble[journey, "deposit"] = [Busy("soon")]  # it leaves in the savepoint, which others see from then on
    fails_for_long(journey, "ferry")
    gate = shut(journey, "cabin")
    with app.dispatcher():
        run = app.submit(both, journey)
        assert gate.reached.wait(60)
        eventually(lambda: "ferry!" in ledger[journey])
        run.compensate(to="sea", note="storm")
        gate.set()
        assert run.result(60) == f"UndoneByHand, train of {journey}"
    assert ledger[journey] == ["deposit!", "deposit", "ferry!", "cabin", "uncabin", "undeposit", "train"]
    assert unread(app, run) == []


@aft.flow(name="interrupts_legs")
async def legs(journey: str) -> list[str]:
    """Two branches, each in a savepoint of the same name."""

    async def leg(what: str) -> str:
        try:
            with aft.savepoint("leg"):
                await book_async(journey, f"{what} seat")
                await book_async(journey, what)
                meal: str = await book_async(journey, f"{what} meal")
                return meal
        except aft.UndoneByHand:
            return "undone"

    return [str(done) for done in await asyncio.gather(leg("ferry"), leg("cabin"))]


def test_a_name_of_savepoints_side_by_side_is_refused_and_a_path_is_taken(setup: Setup, journey: str) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry", "cabin")
    with app.dispatcher():
        run = app.submit(legs, journey)
        eventually(lambda: in_ladders(app, run, 2))
        row = eventually(lambda: (row := run.row).worker_id is None and len(row.savepoints or ()) == 2 and row)
        one, other = row.savepoints
        for dry_run in (True, False):
            with pytest.raises(aft.OrderRefused, match=f"2 savepoints 'leg' side by side; name one .*: {one}, {other}"):
                run.compensate(to="leg", dry_run=dry_run)
        assert [undo.path for undo in run.compensate(to=one)] == [f"{one}.1"]
        eventually(lambda: (row := run.row).worker_id is None and list(row.savepoints or ()) == [other])
        run.compensate(to="leg")
        assert run.result(60) == ["undone", "undone"]
    assert sorted(ledger[journey][4:]) == ["uncabin seat", "unferry seat"]


def test_a_run_that_is_executed_refuses_a_name_of_savepoints_side_by_side(setup: Setup, journey: str) -> None:
    app = setup.app()
    gate = shut(journey, "ferry")
    other = shut(journey, "cabin")
    with app.dispatcher():
        run = app.submit(legs, journey)
        assert gate.reached.wait(60)
        assert other.reached.wait(60)
        run.compensate(to="leg")
        gate.set()
        other.set()
        assert run.result(60) == [f"ferry meal of {journey}", f"cabin meal of {journey}"]
    assert unread(app, run) == []
    assert not [entry for entry in ledger[journey] if entry.startswith("un")]


# Exlets -----------------------------------------------------------------------------------------------------------


def test_an_exlet_that_unwinds_to_a_savepoint_ends_the_ladders_of_all_branches(setup: Setup, journey: str) -> None:
    app = setup.app()
    teach(app, both, "fault", "fault.name == 'Busy'", do.unwind("sea"))
    fails_for_long(journey, "ferry", "cabin")
    trouble[journey, "seat"] = [Busy("soon")]
    with app.dispatcher():
        run = app.submit(both, journey, ["seat"])
        assert run.result(60) == f"UndoneByHand, train of {journey}"
    assert ledger[journey][4:] == ["undeposit", "train"]


# Crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", [both, children, tasks], ids=lambda flow: flow.name)
def test_an_owner_that_is_lost_between_two_failures_leaves_the_others_to_the_next(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch, flow: aft.Flow[[str], object]
) -> None:
    app = setup.app()
    fails_for_long(journey, "ferry", "cabin")
    told: list[str] = []
    fail = Interrupts.fail

    def fail_and_lose(interrupts: Interrupts, ask: StepRequest, on_recorded: OnRecorded | None, **named: Any) -> Entry:
        told.append(ask.path)
        if len(told) == 2:
            app.run(interrupts._owner.run_id).release()
        return fail(interrupts, ask, on_recorded, **named)

    monkeypatch.setattr(Interrupts, "fail", fail_and_lose)
    with app.dispatcher():
        run = app.submit(flow.options(deadline="1h"), journey)
        blocked = {both: (0, 2), children: (2, 0), tasks: (2, 1)}[flow]
        eventually(lambda: all_wait(app, run, blocked[0]) and in_ladders(app, run, blocked[1]))
        pass_deadline(app, run)
        result = run.result(60)
    expected = ["DeadlineExceeded"] * 4 if flow is tasks else "DeadlineExceeded"
    assert result == ([*expected, f"train of {journey}"] if flow is tasks else f"{expected}, train of {journey}")
    assert len(told) > len(set(told)), "the second was told again"
    assert {child.ended_as for child in children_of(app, run)} <= {Status.COMPENSATED}
    assert ledger[journey][-1] == "train"


@aft.flow(name="interrupts_beside_child")
def beside_child(journey: str) -> list[str]:
    return list(aft.parallel(book.call(journey, "ferry"), nap.call(f"{journey}:cabin")))


class _LosesOwner(threading.Event):
    """A gate at which the run is taken from its owner, once: what the step comes to is not recorded."""

    def __init__(self, app: aft.Aft) -> None:
        super().__init__()
        self._app = app

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self.set()
            next(run for run in self._app.runs() if run.row.parent_id is None).release()
        return True


def test_a_step_in_doubt_stays_so_in_a_run_that_is_given_back_while_its_deadline_is_recorded(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    gates[journey, "ferry"] = _LosesOwner(app)
    run = app.start(beside_child.options(deadline="1h"), journey)
    # As after two lost workers: it is executed alone, until it has got on.
    with app.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run.id).values(deaths=2, deadline_at=now()))
    recorded, left = threading.Event(), threading.Event()
    execute, passed = ActivityStep.execute, StepStates.note_recorded

    def execute_late(self: ActivityStep) -> Entry:
        assert self.session.owner.run_id != run.id or recorded.wait(60)
        try:
            return execute(self)
        except Blocked:
            left.set()
            raise

    def pass_late(self: StepStates, path: StepPath) -> None:
        if self._owner.run_id == run.id and not recorded.is_set():
            recorded.set()
            assert left.wait(60)
        passed(self, path)

    monkeypatch.setattr(ActivityStep, "execute", execute_late)
    monkeypatch.setattr(StepStates, "note_recorded", pass_late)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
        run.result(60)
    # It is executed once more under its key, or found to be late before; undone once, or again under its key if it is
    # found to be late after that.
    assert ledger[journey].count("ferry") in (1, 2)
    assert ledger[journey][-1] == "unferry"
