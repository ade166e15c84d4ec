"""What was asked of a run before it turns back is carried out first, and each order that is not is answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import aft
from aft.runs.records import inbox
from tests.setups import Setup, eventually
from tests.world import gates, ledger

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


def answers(app: aft.Aft, run: aft.Run[None]) -> list[tuple[str, bool, str | None]]:
    """What was asked of a run: whether it was read, and what was answered."""
    with app.store.read() as connection:
        return [(item.verb.value, item.read, item.note) for item in inbox.of_run(connection, run.id)]


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
