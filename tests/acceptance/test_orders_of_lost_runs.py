"""Which savepoints a run is in whose worker was lost, nobody knows before the next one has it: that one judges."""

from __future__ import annotations

import pytest

import aft
from aft.runs import park
from aft.runs.records import inbox
from tests.setups import Setup, eventually, run_to
from tests.world import gates, ledger


def return_towel(order: str, what: str) -> None:
    ledger[order].append(f"un{what}")


@aft.compensate_with(return_towel)
@aft.activity
def hand_towel(order: str, what: str) -> None:
    ledger[order].append(what)


@aft.activity
def take_bath(order: str) -> None:
    ledger[order].append("bath")
    assert gates[order].wait(60)


@aft.flow
def bathing(order: str) -> str:
    with aft.savepoint("lobby"):
        hand_towel(order, "lobby")
        aft.wait_for("room")
    try:
        with aft.savepoint("room"):
            hand_towel(order, "room")
            take_bath(order)
            aft.wait_for("dry")
    except aft.UndoneByHand:
        return "undone"
    return "dry"


def lose_in_bath(app: aft.Aft, order: str) -> aft.Run[str]:
    """Let a run be let go in ``lobby``, and its worker be lost in ``room``; nobody goes on with it."""
    with app.dispatcher(only=["work", "relay"]):
        run = app.submit(bathing, order)
        eventually(lambda: (row := run.row).status == "waiting" and row.worker_id is None)
        run.signal("room")
        eventually(lambda: "bath" in ledger[order])
        run.release()
        gates[order].set()
    return run


def test_an_order_to_a_run_whose_worker_was_lost_is_judged_by_the_next_one(setup: Setup, order: str) -> None:
    app = setup.app()
    run = lose_in_bath(app, order)
    with pytest.raises(aft.OrderRefused, match="worker was lost: only the next one knows which savepoints it is in"):
        run.compensate(to="lobby", dry_run=True)
    assert run.compensate(to="lobby") == []
    assert run.compensate(to="room") == []
    with app.dispatcher():
        assert run.result(60) == "undone"
    assert ledger[order] == ["lobby", "room", "bath", "bath", "unroom"]
    with app.store.read() as connection:
        notes = [item.note for item in inbox.of_run(connection, run.id) if item.verb == "compensate"]
    assert notes == ["refused: the run is not in that savepoint any more", None]


def test_a_run_that_is_parked_since_its_worker_was_lost_is_not_undone_to_a_savepoint_that_it_may_have_left(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    run = lose_in_bath(app, order)
    with app.store.write() as connection:
        assert park.park(connection, run.id, "it kills its workers")
    with pytest.raises(aft.OrderRefused, match="which savepoints it is in is not known"):
        run.compensate(to="lobby")
    with app.dispatcher():
        run.retry()
        run.signal("dry")
        assert run.result(60) == "dry"
    assert ledger[order] == ["lobby", "room", "bath", "bath"]


def test_a_run_that_is_suspended_after_its_worker_was_lost_is_undone_to_a_savepoint_when_it_is_resumed(
    setup: Setup, order: str
) -> None:
    with run_to(setup.app(), bathing, order) as run:
        run.signal("room")
        eventually(lambda: "bath" in ledger[order])
        run.suspend("wait a bit")
        run.release()
        gates[order].set()
        eventually(lambda: (row := run.row).status == "suspended" and row.worker_id is None)
        run.compensate(to="room")
        assert (run.status, ledger[order]) == ("suspended", ["lobby", "room", "bath"])
        run.resume()
        assert run.result(60) == "undone"


def test_a_run_that_is_in_no_savepoint_says_so_at_once(setup: Setup, order: str) -> None:
    app = setup.app()
    for run in (app.submit(bathing, order), app.start(idling, order)):
        with pytest.raises(aft.OrderRefused, match="not in savepoint 'lobby'; it is in none"):
            run.compensate(to="lobby")


@aft.flow
def idling(order: str) -> str:
    return str(aft.wait_for("dry"))
