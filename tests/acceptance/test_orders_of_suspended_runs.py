"""A suspended run does nothing until it is resumed, whatever else is asked of it; then that is carried out first."""

from __future__ import annotations

import pytest
from sqlalchemy import update

import aft
from aft import do
from aft.store.tables import runs
from tests.acceptance import theatre
from tests.acceptance.observe import answers
from tests.setups import Setup, eventually, run_to
from tests.world import gates, ledger


def return_key(order: str, what: str) -> None:
    ledger[order].append(f"return {what}")


@aft.compensate_with(return_key)
@aft.activity
def take_key(order: str, what: str) -> None:
    ledger[order].append(what)


@aft.activity
def look_around(order: str) -> None:
    ledger[order].append("look")
    assert gates[order].wait(60)


@aft.flow
def viewing(order: str) -> None:
    with aft.savepoint("cellar"):
        take_key(order, "cellar")
    try:
        with aft.savepoint("flat"):
            take_key(order, "flat")
            look_around(order)
            aft.wait_for("seen")
    except aft.UndoneByHand:
        take_key(order, "other")


#: What becomes of a viewing that is undone to ``flat``.
UNDONE = ["cellar", "flat", "look", "return flat", "other"]


def is_still(run: aft.Run[None]) -> bool:
    """Whether a run is suspended, and nothing wakes it."""
    return (run.status, run.row.worker_id, run.row.wake_id) == ("suspended", None, None)


def suspend_waiting(app: aft.Aft, order: str) -> aft.Run[None]:
    """Suspend a viewing that waits in ``flat``; nobody executes runs then."""
    gates[order].set()
    with app.dispatcher():
        run = app.submit(viewing, order)
        eventually(lambda: (row := run.row).status == "waiting" and row.worker_id is None)
        run.suspend("the owner is to look first")
    return run


def test_a_suspended_run_is_undone_to_a_savepoint_when_it_is_resumed(setup: Setup, order: str) -> None:
    app = setup.app()
    run = suspend_waiting(app, order)
    run.compensate(to="flat")
    assert is_still(run)
    assert (run.row.reason or "").endswith(": the owner is to look first")
    with app.dispatcher():
        run.resume()
        run.result(60)
    assert ledger[order] == UNDONE
    assert answers(app, run) == [("compensate", True, None), ("resume", True, None)]


def test_a_run_that_is_suspended_and_then_undone_to_a_savepoint_while_it_is_executed_stops_first(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(viewing, order)
        eventually(lambda: "look" in ledger[order])
        run.suspend("the owner is to look first")
        run.compensate(to="flat")
        gates[order].set()
        eventually(lambda: is_still(run))
        assert ledger[order] == ["cellar", "flat", "look"]
        run.resume()
        run.result(60)
    assert ledger[order] == UNDONE
    assert [read for _, read, _ in answers(app, run)] == [True] * 3


def test_a_suspended_run_is_cancelled_though_it_is_to_be_undone_to_a_savepoint(setup: Setup, order: str) -> None:
    app = setup.app()
    run = suspend_waiting(app, order)
    run.compensate(to="flat")
    run.cancel(compensate=False)
    with app.dispatcher():
        eventually(lambda: run.status == "cancelled")
    assert ledger[order] == ["cellar", "flat", "look"]


def test_an_exlet_that_undoes_a_suspended_run_to_a_savepoint_waits_for_the_resume(setup: Setup, order: str) -> None:
    app = setup.app()
    theatre.teach(app, letting, "fault", "true", do.unwind(to="flat"))
    run = app.start(letting, order)
    run.suspend("the owner is to look first")
    with app.dispatcher():
        eventually(lambda: app.faults(state="final"))
        assert is_still(run)
        assert ledger[order] == ["flat"]
        run.resume()
        run.result(60)
    assert ledger[order] == ["flat", "return flat", "other"]


@aft.activity(levels=["1h"])
def lost_key(order: str) -> None:
    raise KeyError("lost_key")


@aft.flow
def letting(order: str) -> None:
    try:
        with aft.savepoint("flat"):
            take_key(order, "flat")
            lost_key(order)
    except aft.UndoneByHand:
        take_key(order, "other")


def test_an_order_that_cannot_be_carried_out_does_not_resume_a_run(setup: Setup, order: str) -> None:
    """Its worker was lost: what its row says of savepoints is what it was in before."""
    app = setup.app()
    run = suspend_waiting(app, order)
    with app.store.write() as connection:
        stale = update(runs).where(runs.c.id == run.id).values(savepoints='{"1": "cellar"}')
        connection.execute(stale)
    run.compensate(to="cellar")
    assert is_still(run)
    with app.dispatcher():
        run.resume()
        eventually(lambda: (row := run.row).status == "waiting" and row.worker_id is None)
        run.signal("seen")
        run.result(60)
    assert ledger[order] == ["cellar", "flat", "look"]
    assert answers(app, run)[0] == ("compensate", True, "refused: the run is not in that savepoint any more")


def test_a_suspend_takes_back_a_resume_that_no_worker_has_read(setup: Setup, order: str) -> None:
    app = setup.app()
    run = suspend_waiting(app, order)
    run.resume(by="ann")
    run.suspend("not yet", by="bob")
    assert is_still(run)
    assert run.row.reason == "suspended by bob: not yet"
    assert answers(app, run) == [("resume", True, "refused: bob suspended it before it went on")]
    with app.dispatcher():
        run.resume()
        run.signal("seen")
        run.result(60)


def test_a_resume_takes_back_a_suspend_that_has_not_stopped_the_run_yet(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(viewing, order)
        eventually(lambda: "look" in ledger[order])
        with pytest.raises(aft.OrderRefused, match="is running, not suspended"):
            run.resume()
        run.suspend("wait a bit", by="ann")
        run.resume(by="bob")
        with pytest.raises(aft.OrderRefused, match="is running, not suspended"):
            run.resume()
        gates[order].set()
        run.signal("seen")
        run.result(60)
    assert answers(app, run)[:2] == [
        ("suspend", True, "refused: bob resumed it before it stopped"),
        ("resume", True, None),
    ]


def test_a_run_that_was_resumed_before_it_stopped_can_be_suspended_again(setup: Setup, order: str) -> None:
    with run_to(setup.app(), viewing, order) as run:
        eventually(lambda: "look" in ledger[order])
        run.suspend()
        run.resume()
        run.suspend("after all", by="ann")
        gates[order].set()
        eventually(lambda: is_still(run))
        assert run.row.reason == "suspended by ann: after all"
        run.resume()
        run.signal("seen")
        run.result(60)


def test_a_suspended_run_that_was_cancelled_says_so_to_who_suspends_it_again(setup: Setup, order: str) -> None:
    app = setup.app()
    run = suspend_waiting(app, order)
    run.cancel()
    with pytest.raises(aft.OrderRefused, match="has an order already"):
        run.suspend()
