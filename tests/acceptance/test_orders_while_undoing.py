"""A run that is cancelled as it is, while a savepoint is being undone: that undoing comes to its end first."""

from __future__ import annotations

from typing import Any

import pytest

import aft
from aft.runs.records import inbox
from tests.setups import Setup, eventually
from tests.world import broken, gates, ledger


def unpaint(order: str, what: str) -> None:
    ledger[order].append(f"unpaint {what}")
    if what == "door":
        assert gates[order].wait(60)
    if what == "wall" and order in broken:
        raise ValueError("wet")


@aft.compensate_with(unpaint)
@aft.activity(name="undoing_paint", levels=["1h"])
def paint(order: str, what: str) -> None:
    ledger[order].append(f"paint {what}")


@aft.activity(name="undoing_inspect", levels=[], unrecoverable=(ValueError,))
def inspect(order: str) -> None:
    raise ValueError("no")


@aft.flow(name="undoing_by_order")
def painting(order: str) -> str:
    paint(order, "house")
    try:
        with aft.savepoint("rooms"):
            paint(order, "wall")
            paint(order, "door")
            aft.wait_for("dry")
    except aft.UndoneByHand:
        paint(order, "fence")
    return "painted"


@aft.flow(name="undoing_after_failure")
def trying(order: str) -> str:
    paint(order, "house")
    try:
        with aft.savepoint("rooms"):
            paint(order, "wall")
            paint(order, "door")
            inspect(order)
    except ValueError:
        paint(order, "fence")
    return "painted"


def undo_rooms(app: aft.Aft, order: str, how: str) -> aft.Run[str]:
    """Have a savepoint undone, up to its first compensator, which does not return before the gate is open."""
    run = app.submit(painting if how == "by order" else trying, order)
    if how == "by order":
        eventually(lambda: run.status == "waiting")
        run.compensate(to="rooms")
    eventually(lambda: "unpaint door" in ledger[order])
    return run


def answers(app: aft.Aft, run: aft.Run[Any]) -> dict[str, str | None]:
    with app.store.read() as connection:
        return {item.verb.value: item.note for item in inbox.of_run(connection, run.id) if item.read}


@pytest.mark.parametrize("how", ["by order", "after a failure"])
def test_a_savepoint_that_is_being_undone_is_undone_before_the_run_ends_as_it_is(
    setup: Setup, order: str, how: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = undo_rooms(app, order, how)
        run.cancel(compensate=False)
        gates[order].set()
        eventually(lambda: run.status == "cancelled")
    assert ledger[order] == ["paint house", "paint wall", "paint door", "unpaint door", "unpaint wall"]
    assert not any(answers(app, run).values())


def test_so_it_is_if_another_worker_goes_on_with_that(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = undo_rooms(app, order, "by order")
        run.cancel(compensate=False)
        run.release()
        gates[order].set()
        eventually(lambda: run.status == "cancelled")
    assert ledger[order][3:] == ["unpaint door", "unpaint door", "unpaint wall"]


def test_where_its_compensator_fails_the_run_ends_and_its_story_says_that_the_order_was_not_carried_out(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    broken.add(order)
    with app.dispatcher():
        run = undo_rooms(app, order, "by order")
        run.cancel(compensate=False)
        gates[order].set()
        eventually(lambda: run.status == "cancelled")
    assert ledger[order][3:] == ["unpaint door", "unpaint wall"]
    said = answers(app, run)
    assert (said["compensate"] or "").startswith("refused: the run was cancelled")
    assert said["cancel"] is None


def test_as_it_does_if_the_run_was_parked_for_that_compensator(setup: Setup, order: str) -> None:
    app = setup.app()
    broken.add(order)
    with app.dispatcher():
        run = undo_rooms(app, order, "by order")
        gates[order].set()
        eventually(lambda: run.status == "parked")
        run.cancel(compensate=False)
        eventually(lambda: run.status == "cancelled")
    assert ledger[order][3:] == ["unpaint door", "unpaint wall"]
    assert (answers(app, run)["compensate"] or "").startswith("refused: the run was cancelled")
