"""Orders to a run that turns back, or is turning back: each is carried out in its turn, or answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import aft
from tests.acceptance.observe import answers
from tests.setups import Setup, eventually
from tests.world import broken, gates, ledger

Ask = Callable[[aft.Run[None]], object]


def refund_fare(order: str) -> None:
    ledger[order].append("refund_fare")


@aft.compensate_with(refund_fare)
@aft.activity
def pay_fare(order: str) -> None:
    ledger[order].append("pay_fare")


@aft.activity
def ask_inspector(order: str) -> None:
    ledger[order].append("ask_inspector")
    assert gates[order].wait(60)


class Rejected(Exception):
    """The flow's own verdict."""


@aft.flow
def fare(order: str) -> None:
    pay_fare(order)
    ask_inspector(order)
    raise Rejected


@aft.flow
def inspection(order: str) -> None:
    ask_inspector(order)
    raise Rejected


@aft.flow
def fare_trip(order: str) -> None:
    pay_fare(order)
    fare(order)


def ask_while_it_executes(app: aft.Aft, flow: aft.Flow[[str], None], order: str, *asks: Ask) -> aft.Run[None]:
    """Ask something of a run while it executes its last step, after which the flow's own code raises."""
    run = app.submit(flow, order)
    eventually(lambda: "ask_inspector" in ledger[order])
    for ask in asks:
        ask(run)
    gates[order].set()
    eventually(lambda: (row := run.row).worker_id is None and row.wake_id is None)
    return run


@pytest.mark.parametrize("flow", [fare, inspection])
def test_a_run_that_is_to_stop_for_good_is_not_undone_though_its_code_raises(
    setup: Setup, order: str, flow: aft.Flow[[str], None]
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = ask_while_it_executes(app, flow, order, lambda run: run.cancel(compensate=False))
    assert run.status == "cancelled"
    assert "refund_fare" not in ledger[order]
    assert answers(app, run) == [("cancel", True, None)]


def test_a_child_that_is_to_stop_for_good_is_not_undone_though_its_code_raises(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(fare_trip, order)
        eventually(lambda: "ask_inspector" in ledger[order])
        run.cancel(compensate=False)
        eventually(lambda: run.status == "cancelled")
        (child,) = app.runs(flow="fare")
        eventually(lambda: answers(app, child))
        gates[order].set()
        eventually(lambda: child.status == "cancelled")
    assert ledger[order] == ["pay_fare", "pay_fare", "ask_inspector"]


@pytest.mark.parametrize("flow", [fare, inspection])
def test_a_run_that_is_to_stop_is_undone_only_after_it_was_resumed(
    setup: Setup, order: str, flow: aft.Flow[[str], None]
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = ask_while_it_executes(app, flow, order, lambda run: run.suspend("wait a bit"))
        assert (run.status, "refund_fare" in ledger[order]) == ("suspended", False)
        run.resume()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[order].count("refund_fare") == ledger[order].count("pay_fare")
    assert answers(app, run) == [("suspend", True, None), ("resume", True, None)]


@pytest.mark.parametrize("flow", [fare, inspection])
def test_a_run_that_is_cancelled_says_so_though_its_code_raises(
    setup: Setup, order: str, flow: aft.Flow[[str], None]
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = ask_while_it_executes(app, flow, order, lambda run: run.cancel())
    assert (run.status, run.row.cause) == ("compensated", "cancel")
    assert answers(app, run) == [("cancel", True, None)]


def test_an_order_for_a_savepoint_that_the_run_has_left_is_answered_though_nothing_is_owed(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = ask_while_it_executes(app, inspection, order, lambda run: run.compensate(to="elsewhere"))
    assert run.status == "compensated"
    assert answers(app, run) == [("compensate", True, "refused: the run is not in that savepoint any more")]


@pytest.mark.parametrize("undo", [True, False])
def test_what_a_cancel_overtakes_is_answered(setup: Setup, order: str, undo: bool) -> None:
    app = setup.app()
    asks: list[Ask] = [
        lambda run: run.suspend("wait a bit"),
        lambda run: run.compensate(to="elsewhere"),
        lambda run: run.cancel(compensate=undo),
    ]
    with app.dispatcher():
        run = ask_while_it_executes(app, fare, order, *asks)
    assert run.status == ("compensated" if undo else "cancelled")
    why = "refused: the run is being undone as a whole" if undo else "refused: the run has ended, it is cancelled"
    assert answers(app, run) == [("suspend", True, why), ("compensate", True, why), ("cancel", True, None)]


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
    assert not any(note for _, _, note in answers(app, run))


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
    said = {asked: note for asked, read, note in answers(app, run) if read}
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
    said = {asked: note for asked, read, note in answers(app, run) if read}
    assert (said["compensate"] or "").startswith("refused: the run was cancelled")
