"""Children of a run that is undone: in which order, and what if one cannot be."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from sqlalchemy import delete

import aft
from aft.ids import RunId
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import child_runs
from aft.store.tables import runs
from tests.acceptance.agency import book, do
from tests.setups import Setup, eventually
from tests.world import Refused, ledger, shut, trouble


@aft.flow(name="undone_kid")
def kid(journey: str, what: str) -> str:
    return book(journey, what)


@aft.flow(name="undone_beside")
def beside(journey: str) -> str:
    """Two children, and an activity of its own beside them."""
    aft.parallel(kid.call(journey, "k1"), book.call(journey, "q"), kid.call(journey, "k2"))
    return book(journey, "end")


def children(app: aft.Aft, run: aft.Run) -> list[Status]:
    with app.store.read() as connection:
        return [child.status for child in child_runs.of(connection, RunId(run.id))]


@aft.flow(name="undone_two")
def two(journey: str) -> None:
    kid(journey, "k1")
    kid(journey, "k2")


def test_a_run_whose_child_was_deleted_is_undone_as_far_as_it_can_be(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(two, journey)
        run.result(60)
        with app.store.write() as connection:
            gone = next(child.id for child in child_runs.of(connection, RunId(run.id)) if child.parent_path == "2")
            connection.execute(delete(runs).where(runs.c.id == gone))
        told = [(undo.activity, undo.obstacle) for undo in run.compensate()]
        eventually(lambda: run.status is Status.FAILED)
    assert told == [
        ("undone_kid", f"child {gone} was deleted: nothing of it can be undone"),
        ("agency_book", None),
    ]
    assert ledger[journey] == ["k1", "k2", "unk1"]


def test_children_are_undone_by_the_order_in_which_they_ended(setup: Setup, journey: str) -> None:
    """The parent notices the end of the first child only when its own step is done: that is not when it ended."""
    app = setup.app()
    q, k2 = shut(journey, "q"), shut(journey, "k2")
    trouble[journey, "end"] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(beside, journey)
        eventually(lambda: Status.COMPLETED in children(app, run))
        q.set()
        eventually(lambda: "q" in ledger[journey] and run.status is Status.WAITING)
        k2.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["k1", "q", "k2", "end!", "unk2", "unq", "unk1"]


def test_children_are_undone_by_the_order_in_which_they_ended_after_a_deadline_too(setup: Setup, journey: str) -> None:
    """Their ends were not recorded: the deadline came first."""
    app = setup.app()
    q, k2 = shut(journey, "q"), shut(journey, "k2")
    with app.dispatcher():
        run = app.submit(beside.options(deadline="10s"), journey)
        eventually(lambda: Status.COMPLETED in children(app, run))
        k2.set()
        eventually(lambda: children(app, run) == [Status.COMPLETED] * 2)
        # The run counts the database's time on from when it asked, and may be behind by as long as the answer took.
        late = timedelta(seconds=5)
        eventually(lambda: (row := run.row).deadline_at is None or app.clock.now() > row.deadline_at + late)
        q.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["k1", "k2", "q", "unq", "unk2", "unk1"]


# What stands below ----------------------------------------------------------------------------------------------


def unhold(journey: str, what: str) -> None:
    """Undo something, unless it cannot be."""
    do(journey, f"un{what}")


@aft.compensate_with(unhold)
@aft.activity(name="undone_hold", levels=[], unrecoverable=(Refused,))
def hold(journey: str, what: str) -> str:
    """Do something whose undoing may fail."""
    do(journey, what)
    return what


@aft.flow(name="undone_holds")
def holds(journey: str) -> None:
    """Fail after something that cannot be undone."""
    hold(journey, "held")
    book(journey, "more")


@aft.flow(name="undone_skips")
def skips(journey: str) -> None:
    """Go on when a savepoint was undone."""
    with contextlib.suppress(Refused), aft.savepoint("try"):
        holds.fn(journey)


@aft.flow(name="undone_catches")
def catches(journey: str) -> None:
    """Go on when a child has failed."""
    with contextlib.suppress(Refused, aft.FlowFailed):
        holds(journey)


@aft.flow(name="undone_lingers")
def lingers(journey: str) -> None:
    book(journey, "held")
    aft.wait_for("word")


@aft.flow(name="undone_middle")
def middle(journey: str) -> None:
    lingers(journey)


@aft.flow(name="undone_top")
def top(journey: str, below: str) -> None:
    """Fail after a child has come to its end."""
    with contextlib.suppress(aft.FlowCancelled):
        {"skips": skips, "catches": catches, "middle": middle}[below](journey)
    book(journey, "last")


def descendants(app: aft.Aft, run: aft.Run) -> list[RunRow]:
    with app.store.read() as connection:
        return child_runs.all_of(connection, run.id)[1:]


@pytest.mark.parametrize("below", ["skips", "catches"])
def test_a_run_is_not_compensated_if_a_frame_below_was_skipped_and_caught(
    setup: Setup, journey: str, below: str
) -> None:
    app = setup.app()
    for what in ("more", "unheld", "last"):
        trouble[journey, what] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(top, journey, below)
        eventually(lambda: any(child.status is Status.PARKED for child in descendants(app, run)))
        parked = next(child for child in descendants(app, run) if child.status is Status.PARKED)
        app.run(parked.id).skip_frame(note="it stays")
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert ledger[journey] == ["held", "more!", "unheld!", "last!"]


def test_a_run_is_not_compensated_if_a_child_was_ended_as_it_is_and_its_own_child_stands(
    setup: Setup, journey: str
) -> None:
    app = setup.app()
    trouble[journey, "last"] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(top, journey, "middle")
        eventually(lambda: len(descendants(app, run)) == 2)
        eventually(lambda: all(child.status is Status.WAITING for child in descendants(app, run)))
        app.run(descendants(app, run)[0].id).cancel(compensate=False)
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert ledger[journey] == ["held", "last!"]


@aft.compensate_with(unhold)
@aft.activity(name="undone_slow", timeout="50ms", levels=[])
def slow(journey: str, what: str) -> None:
    """Take longer than it may."""
    do(journey, what)


@aft.flow(name="undone_impatient")
def impatient(journey: str, catches: bool) -> None:
    """Do without what takes too long, or not."""
    book(journey, "held")
    with contextlib.suppress(*([TimeoutError] if catches else [])):
        slow(journey, "slow")


@aft.flow(name="undone_late_below")
def late_below(journey: str, catches: bool) -> None:
    impatient(journey, catches)
    book(journey, "last")


@aft.flow(name="undone_above")
def above(journey: str, catches: bool) -> None:
    late_below(journey, catches)


@pytest.mark.parametrize(("catches", "undone"), [(False, False), (True, False), (False, True)])
def test_runs_do_not_say_compensated_while_a_late_effect_stands_below(
    setup: Setup, journey: str, catches: bool, undone: bool
) -> None:
    app, gate = setup.app(grace="300ms"), shut(journey, "slow")
    for what in ("unslow", "last"):
        trouble[journey, what] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(above, journey, catches)
        eventually(lambda: run.status is Status.COMPENSATED)
        middle, child = (app.run(found.id) for found in descendants(app, run))
        gate.set()
        eventually(lambda: run.status is Status.PARKED)
        assert (middle.status, child.status) == (Status.PARKED, Status.PARKED)
        assert f"child {middle.id} of flow 'undone_late_below' is parked for it" in (run.row.reason or "")
        if undone:
            child.retry()
        else:
            child.skip_frame(note="it stays")
        settled = Status.COMPENSATED if undone else Status.FAILED
        eventually(lambda: run.status is settled)
        assert (middle.status, child.status) == (settled, settled)
