"""An effect that came late, and is known when its step fails for good or its run is undone, is undone in its place."""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from sqlalchemy import text

import aft
from aft.runs.states import Status
from tests.acceptance.agency import book
from tests.setups import Setup, eventually
from tests.world import Busy, Refused, ledger, shut

#: How often a seat was tried to be taken, and what the tries after the first come to.
tries: defaultdict[str, int] = defaultdict(int)
verdicts: dict[str, BaseException] = {}


@pytest.fixture
def journey() -> Iterator[str]:
    made = secrets.token_hex(4)
    slow[made] = threading.Event()
    verdicts[made] = Busy("not yet")
    yield made
    slow[made].set()


#: Holds up the first try, beyond its time limit.
slow: dict[str, threading.Event] = {}


def leave_seat(journey: str, seat: str) -> None:
    ledger[journey].append(f"leave {seat}")


@aft.compensate_with(leave_seat)
@aft.activity(
    name="late_seat",
    timeout="200ms",
    levels=[aft.Level("50ms", tries=1000)],
    recoverable=(Busy,),
    unrecoverable=(Refused,),
)
def take_seat(journey: str, seat: str) -> str:
    """Take a seat; the first try of all has its effect long after it was given up, the next ones fail as told."""
    tries[journey] += 1
    if tries[journey] == 1:
        assert slow[journey].wait(60)
    elif (verdict := verdicts.get(journey)) is not None:
        raise verdict
    ledger[journey].append(f"take {seat}")
    return seat


@aft.flow(name="late_seat_again")
def again(journey: str) -> str:
    """Take the same seat once more if that has failed for good."""
    try:
        return take_seat(journey, "5A")
    except Refused:
        verdicts.pop(journey)
        return take_seat(journey, "5A")


@aft.flow(name="late_seat_or_nothing")
def or_nothing(journey: str) -> str:
    """Book something first; what fails undoes everything."""
    book(journey, "hotel")
    return take_seat(journey, "5A")


@aft.flow(name="late_seat_beside")
def beside(journey: str) -> str:
    """Take the seat beside something else; without it, go by train."""
    try:
        aft.parallel(take_seat.call(journey, "5A"), book.call(journey, "hotel"))
    except Refused:
        book(journey, "train")
    return "away"


@aft.flow(name="late_seat_in_savepoint")
def in_savepoint(journey: str) -> str:
    """Go by train if the way with the seat is given up, for whatever reason."""
    try:
        with aft.savepoint("flight"):
            book(journey, "hotel")
            take_seat(journey, "5A")
    except (Refused, aft.UndoneByHand, aft.DeadlineExceeded):
        book(journey, "train")
    return "away"


@aft.flow(name="late_seat_below")
def below(journey: str) -> str:
    """The same in a child."""
    book(journey, "insurance")
    return or_nothing(journey)


def opened(app: aft.Aft) -> list[str]:
    """The paths of late effects about which nothing was decided."""
    statement = text("SELECT path FROM aft_late_effects WHERE namespace = :ns AND state = 'open'")
    with app.store.read() as connection:
        return list(connection.execute(statement, {"ns": app.namespace}).scalars())


def come_late(app: aft.Aft, journey: str) -> None:
    """Let the first try have its effect, while the step is tried again and again."""
    eventually(lambda: tries[journey] > 1)
    slow[journey].set()
    eventually(lambda: opened(app))


def test_it_is_undone_before_the_flow_hears_of_the_failure(setup: Setup, journey: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(again, journey)
        come_late(app, journey)
        verdicts[journey] = Refused("sold out")
        assert run.result(60) == "5A"
        assert ledger[journey] == ["take 5A", "leave 5A", "take 5A"]
        eventually(lambda: not opened(app))
    assert (run.status, ledger[journey]) == (Status.COMPLETED, ["take 5A", "leave 5A", "take 5A"])


@pytest.mark.parametrize("how", ["fails", "cancelled", "deadline"])
def test_it_is_undone_in_its_place_before_the_run_says_that_all_is_undone(setup: Setup, journey: str, how: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(or_nothing.options(deadline="5s" if how == "deadline" else None), journey)
        come_late(app, journey)
        if how == "fails":
            verdicts[journey] = Refused("sold out")
        elif how == "cancelled":
            run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert (ledger[journey], opened(app)) == (["hotel", "take 5A", "leave 5A", "unhotel"], [])


def test_beside_other_steps_it_is_undone_before_the_flow_takes_another_way(setup: Setup, journey: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(beside, journey)
        come_late(app, journey)
        verdicts[journey] = Refused("sold out")
        assert run.result(60) == "away"
        assert ledger[journey] == ["hotel", "take 5A", "leave 5A", "train"]


@pytest.mark.parametrize("how", ["fails", "by hand", "deadline"])
def test_in_a_savepoint_that_is_undone_it_is_undone_first(setup: Setup, journey: str, how: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(in_savepoint.options(deadline="5s" if how == "deadline" else None), journey)
        come_late(app, journey)
        if how == "fails":
            verdicts[journey] = Refused("sold out")
        elif how == "by hand":
            run.compensate(to="flight")
        assert run.result(60) == "away"
        assert ledger[journey] == ["hotel", "take 5A", "leave 5A", "unhotel", "train"]


def test_that_of_a_child_is_undone_before_its_parent_goes_on(setup: Setup, journey: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(below, journey)
        come_late(app, journey)
        verdicts[journey] = Refused("sold out")
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert ledger[journey] == ["insurance", "hotel", "take 5A", "leave 5A", "unhotel", "uninsurance"]


@aft.compensate_with(leave_seat)
@aft.activity(name="late_seat_once", timeout="200ms", levels=[])
def take_once(journey: str, seat: str) -> str:
    assert slow[journey].wait(60)
    ledger[journey].append(f"take {seat}")
    return seat


def check_out(journey: str, what: str) -> None:
    if (gate := gates.get(journey)) is not None:
        assert gate.wait(60)
    ledger[journey].append(f"out of {what}")


gates: dict[str, threading.Event] = {}


@aft.compensate_with(check_out)
@aft.activity(name="late_check_in")
def check_in(journey: str, what: str) -> str:
    ledger[journey].append(what)
    return what


@aft.flow(name="late_seat_once_or_nothing")
def once_or_nothing(journey: str) -> str:
    check_in(journey, "hotel")
    return take_once(journey, "5A")


def test_one_that_comes_while_the_run_is_undone_is_undone_before_it_says_so(setup: Setup, journey: str) -> None:
    app = setup.app(grace="300ms")
    gates[journey] = gate = shut(journey, "check out")
    with app.dispatcher():
        run = app.submit(once_or_nothing, journey)
        assert gate.reached.wait(60)
        slow[journey].set()
        eventually(lambda: opened(app))
        gate.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert (ledger[journey], opened(app)) == (["hotel", "take 5A", "out of hotel", "leave 5A"], [])
