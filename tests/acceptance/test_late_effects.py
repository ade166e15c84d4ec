"""A late effect, of an attempt that was given up, is undone in its place if its step has failed for good."""

from __future__ import annotations

import pytest
from sqlalchemy import text

import aft
from aft.runs.states import Status
from tests.acceptance.agency import book, do, unbook
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, fixed, gates, ledger, shut, tries, trouble


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
        assert gates[journey].wait(60)
    elif journey not in fixed:
        raise trouble[journey, "seat"][0] if trouble[journey, "seat"] else Busy("not yet")
    ledger[journey].append(f"take {seat}")
    return seat


@aft.flow(name="late_seat_again")
def again(journey: str) -> str:
    """Take the same seat once more if that has failed for good."""
    try:
        return take_seat(journey, "5A")
    except Refused:
        fixed.add(journey)
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
    gates[journey].set()
    eventually(lambda: opened(app))


def test_it_is_undone_before_the_flow_hears_of_the_failure(setup: Setup, journey: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(again, journey)
        come_late(app, journey)
        trouble[journey, "seat"] = [Refused("sold out")]
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
            trouble[journey, "seat"] = [Refused("sold out")]
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
        trouble[journey, "seat"] = [Refused("sold out")]
        assert run.result(60) == "away"
        assert ledger[journey] == ["hotel", "take 5A", "leave 5A", "train"]


@pytest.mark.parametrize("how", ["fails", "by hand", "deadline"])
def test_in_a_savepoint_that_is_undone_it_is_undone_first(setup: Setup, journey: str, how: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(in_savepoint.options(deadline="5s" if how == "deadline" else None), journey)
        come_late(app, journey)
        if how == "fails":
            trouble[journey, "seat"] = [Refused("sold out")]
        elif how == "by hand":
            run.compensate(to="flight")
        assert run.result(60) == "away"
        assert ledger[journey] == ["hotel", "take 5A", "leave 5A", "unhotel", "train"]


def test_that_of_a_child_is_undone_before_its_parent_goes_on(setup: Setup, journey: str) -> None:
    app = setup.app(grace="300ms")
    with app.dispatcher():
        run = app.submit(below, journey)
        come_late(app, journey)
        trouble[journey, "seat"] = [Refused("sold out")]
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert ledger[journey] == ["insurance", "hotel", "take 5A", "leave 5A", "unhotel", "uninsurance"]


@aft.compensate_with(leave_seat)
@aft.activity(name="late_seat_once", timeout="200ms", levels=[])
def take_once(journey: str, seat: str) -> str:
    assert gates[journey].wait(60)
    ledger[journey].append(f"take {seat}")
    return seat


def check_out(journey: str, what: str) -> None:
    if (gate := gates.get((journey, "check out"))) is not None:
        assert gate.wait(60)
    ledger[journey].append(f"out of {what}")


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
    gate = shut(journey, "check out")
    with app.dispatcher():
        run = app.submit(once_or_nothing, journey)
        assert gate.reached.wait(60)
        gates[journey].set()
        eventually(lambda: opened(app))
        gate.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert (ledger[journey], opened(app)) == (["hotel", "take 5A", "out of hotel", "leave 5A"], [])


@aft.compensate_with(unbook)
@aft.activity(name="late_slow", timeout="300ms", levels=[])
def slow(journey: str, what: str) -> str:
    do(journey, what)
    return what


@aft.activity(name="late_slow_for_good", timeout="300ms", levels=[])
def slow_for_good(journey: str, what: str) -> str:
    do(journey, what)
    return what


@aft.flow(name="late_patient")
def patient(journey: str, undoable: bool, anew: bool, begun: bool = False) -> str:
    """Go on without the slow step, and wait for a word."""
    if not begun:
        try:
            (slow if undoable else slow_for_good)(journey, "slow")
        except TimeoutError:
            book(journey, "instead")
        if anew:
            aft.continue_as_new(journey, undoable, anew, True)
    return str(aft.wait_for("word"))


@pytest.mark.parametrize("anew", [False, True])
def test_a_late_effect_of_a_step_that_failed_for_good_is_undone_while_the_run_waits(
    setup: Setup, journey: str, anew: bool
) -> None:
    gate = shut(journey, "slow")
    with run_to(setup.app(grace="300ms"), patient, journey, True, anew) as run:
        eventually(lambda: run.status is Status.WAITING and ledger[journey] == ["instead"])
        gate.set()
        eventually(lambda: ledger[journey] == ["instead", "slow", "unslow"])
        eventually(lambda: run.status is Status.WAITING)
        run.signal("word", "on")
        assert run.result(60) == "on"
    assert ledger[journey] == ["instead", "slow", "unslow"]


@pytest.mark.parametrize("anew", [False, True])
def test_one_that_nothing_undoes_parks_the_run_and_a_retry_lets_it_wait_again(
    setup: Setup, journey: str, anew: bool
) -> None:
    gate = shut(journey, "slow")
    with run_to(setup.app(grace="300ms"), patient, journey, False, anew, status=Status.WAITING) as run:
        gate.set()
        eventually(lambda: run.status is Status.PARKED)
        assert "had its effect after the run had gone on without it, and has no compensator" in (run.row.reason or "")
        run.retry()
        eventually(lambda: run.status is Status.WAITING)
        run.signal("word", "on")
        assert run.result(60) == "on"
    assert ledger[journey] == ["instead", "slow"]


def withdraw(order: str) -> None:
    ledger[order].append("withdraw")


@aft.compensate_with(withdraw)
@aft.activity(timeout="1s", levels=["20ms"])
def lags(order: str) -> str:
    if aft.current().attempt == 1:
        gates[order].wait(60)
        ledger[order].append("late effect")
    else:
        ledger[order].append("effect")
    return "done"


@aft.activity(levels=[], unrecoverable=(Refused,))
def fails(order: str) -> None:
    raise Refused(order)


@aft.flow
def lagging(order: str) -> None:
    lags(order)
    fails(order)


def test_an_effect_that_arrives_after_its_step_was_undone_is_undone_too(setup: Setup, order: str) -> None:
    with run_to(setup.app(), lagging, order) as run:
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert ledger[order] == ["effect", "withdraw"]
        gates[order].set()
        eventually(lambda: ledger[order] == ["effect", "withdraw", "late effect", "withdraw"])
        eventually(lambda: (row := run.row).worker_id is None and row.status == "compensated")


def withdraw_badly(order: str) -> None:
    ledger[order].append("withdraw!")
    raise Refused(order)


@aft.compensate_with(withdraw_badly)
@aft.activity(timeout="100ms", levels=[])
def lags_badly(order: str) -> str:
    gates[order].wait(60)
    return "done"


@aft.flow
def lagging_badly(order: str) -> None:
    lags_badly(order)


def test_a_late_undo_that_a_person_lets_go_makes_the_run_failed(setup: Setup, order: str) -> None:
    with run_to(setup.app(), lagging_badly, order) as run:
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        gates[order].set()
        eventually(lambda: run.status == "parked")
        run.skip_frame(note="written off")
        eventually(lambda: run.status == "failed")
