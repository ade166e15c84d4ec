"""Flows that outlast their code and their plans: pivots, conditions, changes, beginning anew, deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aft
from aft.app.views import timeline, versions
from aft.flows.declare.registry import Registry
from aft.runs.states import Status
from aft.telemetry import Event, FrameUnresolved
from tests.acceptance import agency
from tests.setups import Setup, eventually, run_to
from tests.world import Refused, ledger, shut, trouble

# Pivots ---------------------------------------------------------------------------------------------------------


def test_after_a_pivot_a_failure_parks_and_a_retry_goes_forward(setup: Setup, journey: str) -> None:
    trouble[journey, "mail"] = [Refused("no address")]
    with run_to(setup.app(), agency.pivoted, journey, status=Status.PARKED) as run:
        assert "failed after its pivot, so nothing is undone: Refused: no address" in (run.row.reason or "")
        run.retry()
        assert run.result(60) == f"mail of {journey}"
    assert ledger[journey] == ["flight", "tickets", "lounge", "upgrade", "mail!", "mail"]


def test_after_a_pivot_a_savepoint_is_undone_and_another_way_taken(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "upgrade"] = [Refused("full")]
    with app.dispatcher():
        assert app.submit(agency.pivoted, journey).result(60)
    assert ledger[journey] == ["flight", "tickets", "lounge", "upgrade!", "unlounge", "voucher", "mail"]


def test_before_its_pivot_a_run_is_undone_like_any_other(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "flight"] = [Refused("full")]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(agency.pivoted, journey).result(60)
    assert ledger[journey] == ["flight!"]


def test_a_run_past_its_pivot_is_not_cancelled_by_undoing(setup: Setup, journey: str) -> None:
    trouble[journey, "mail"] = [Refused("no address")]
    with run_to(setup.app(), agency.pivoted, journey, status=Status.PARKED) as run:
        with pytest.raises(aft.OrderRefused, match="has gone past its pivot and only goes forward"):
            run.cancel()
        run.cancel(compensate=False)
        with pytest.raises(aft.FlowCancelled):
            run.result(60)
    assert "unflight" not in ledger[journey]


# Conditions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "undone"), [("luggage", ["unluggage"]), ("nothing", [])])
def test_a_compensator_may_depend_on_the_result(setup: Setup, journey: str, what: str, undone: list[str]) -> None:
    app = setup.app()
    trouble[journey, "flight"] = [Refused("full")]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(agency.insured, journey, what).result(60)
    assert ledger[journey] == [what, "flight!", *undone]


def test_a_condition_cannot_be_asked_before_there_is_a_result() -> None:
    def refund(amount: int) -> None: ...

    def pay(amount: int) -> int:
        return amount

    with pytest.raises(aft.DefinitionError, match="only_if needs to know what came of it"):
        aft.compensate_with(refund, when="started", only_if=lambda result: bool(result))(pay)


def test_a_condition_asks_for_names_that_there_are() -> None:
    def refund(amount: int) -> None: ...

    def pay(amount: int) -> int:
        return amount

    with pytest.raises(aft.DefinitionError, match="takes 'amuont', but pay has no argument of that name"):
        aft.compensate_with(refund, only_if=lambda amuont: True)(pay)


# Beginning anew -------------------------------------------------------------------------------------------------


def test_a_run_begins_anew_and_carries_its_stack(setup: Setup, journey: str) -> None:
    trouble[journey, "year"] = [Refused("never")]
    with run_to(setup.app(), agency.months, journey, 1) as run, pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert ledger[journey] == [
        *("month 1", "month 2", "month 3", "year!"),
        *("unmonth 3", "unmonth 2", "unmonth 1"),
    ]


def test_a_run_that_begins_anew_completes_under_its_id(setup: Setup, journey: str) -> None:
    app = setup.app()
    assert app.start(agency.months, journey, 1).result(0) == f"year of {journey}"


# Changes of the code ---------------------------------------------------------------------------------------------


Code = Callable[[str], Any]


def make_app(setup: Setup, *flows: tuple[Code, int]) -> aft.Aft:
    """An app whose process has these flows only."""
    known = Registry()
    for fn, version in flows:
        known.add_flow(aft.Flow(fn, name="changing", version=version))
    known.add_activity(agency.book)
    made = setup.app()
    made.registry = known
    return made


def old(journey: str) -> str:
    agency.book(journey, "one")
    aft.wait_for("go")
    agency.book(journey, "two")
    return "old"


def new(journey: str) -> str:
    agency.book(journey, "one")
    if aft.patched("check first"):
        agency.book(journey, "check")
    aft.wait_for("go")
    agency.book(journey, "two")
    return "new"


def test_a_patch_lets_running_runs_take_the_old_way_and_new_ones_the_new(setup: Setup, journey: str) -> None:
    before, after = make_app(setup, (old, 1)), make_app(setup, (new, 1))
    with before.dispatcher():
        running = before.submit(before.registry.flow("changing"), journey)
        eventually(lambda: running.status is Status.WAITING)
    with after.dispatcher():
        running.signal("go")
        assert after.run(running.id).result(60) == "new"
        assert ledger[journey] == ["one", "two"]
        ledger[journey].clear()
        fresh = after.submit(after.registry.flow("changing"), journey)
        eventually(lambda: fresh.status is Status.WAITING)
        fresh.signal("go")
        fresh.result(60)
    assert ledger[journey] == ["one", "check", "two"]


def test_versions_stand_side_by_side(setup: Setup, journey: str) -> None:
    both = make_app(setup, (old, 1), (new, 2))
    with both.dispatcher():
        first = both.submit(both.registry.flow("changing", 1), journey)
        second = both.submit(both.registry.flow("changing", 2), journey)
        first.signal("go")
        second.signal("go")
        assert (first.result(60), second.result(60)) == ("old", "new")


def test_a_run_whose_version_nobody_has_waits_untouched(setup: Setup, journey: str) -> None:
    with_old, without = make_app(setup, (old, 1)), make_app(setup, (new, 2))
    run = with_old.submit(with_old.registry.flow("changing"), journey)
    with without.dispatcher():
        other = without.submit(without.registry.flow("changing"), journey)
        other.signal("go")
        other.result(60)
    assert (run.status, run.row.epoch) == (Status.RUNNING, 0)


# Deadlines ------------------------------------------------------------------------------------------------------


def test_a_deadline_interrupts_a_wait_and_everything_is_undone(setup: Setup, journey: str) -> None:
    with (
        run_to(setup.app(), agency.approval.options(deadline="2s"), journey) as run,
        pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"),
    ):
        run.result(60)
    assert ledger[journey] == ["draft", "undraft"]


def test_a_deadline_interrupts_a_ladder(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "pay"] = [aft.Recoverable("later", after="1h")]
    with app.dispatcher():
        run = app.submit(agency.pays.options(deadline="6s"), journey)  # a machine may stand still for a moment
        with pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
            run.result(60)
    assert ledger[journey] == ["pay!"]


def test_a_run_that_ends_in_time_never_hears_of_its_deadline(setup: Setup, journey: str) -> None:
    assert setup.app().start(agency.pays.options(deadline="1h"), journey).result(0) == "paid"


def test_a_deadline_can_be_caught_once(setup: Setup, journey: str) -> None:
    app = setup.app()

    @aft.flow(name=f"patient_{journey}")
    def patient(journey: str) -> str:
        try:
            aft.wait_for("never")
        except aft.DeadlineExceeded:
            return agency.book(journey, "instead")
        return "never"

    with app.dispatcher():
        assert app.submit(patient.options(deadline="1s"), journey).result(60) == f"instead of {journey}"


# Undoing by hand ------------------------------------------------------------------------------------------------


def test_what_would_be_undone_is_told_in_order_and_nothing_happens(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.family, journey) as run:
        run.result(60)
    told = [(undo.activity, undo.arguments["what"]) for undo in run.compensate(dry_run=True)]
    assert told == [
        ("agency_book", what) for what in ("dinner", "boat back", "boat there", "lunch", "train back", "train there")
    ]
    assert run.status is Status.COMPLETED


def test_a_completed_run_is_undone_as_it_was_told(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.family, journey) as run:
        run.result(60)
        done = len(ledger[journey])
        told = [undo.arguments["what"] for undo in run.compensate(note="the customer withdrew")]
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[journey][done:] == [f"un{what}" for what in told]


def test_what_cannot_be_undone_is_told_with_its_reason(setup: Setup, journey: str) -> None:
    run = setup.app().start(agency.pivoted, journey)
    told = {undo.arguments["what"]: undo.obstacle for undo in run.compensate(dry_run=True)}
    assert told["flight"] == "done before the pivot: its effect remains"
    assert told["mail"] is None


def test_a_run_that_was_undone_cannot_be_undone_again(setup: Setup, journey: str) -> None:
    trouble[journey, "flight"] = [Refused("full")]
    with run_to(setup.app(), agency.pivoted, journey) as run, pytest.raises(aft.FlowCompensated):
        run.result(60)
    with pytest.raises(aft.OrderRefused, match="has ended compensated; only a completed one can be undone"):
        run.compensate()


# What is still needed -------------------------------------------------------------------------------------------


def test_the_versions_that_runs_still_need_are_listed_with_who_has_them(setup: Setup, journey: str) -> None:
    both, newer = make_app(setup, (old, 1), (new, 2)), make_app(setup, (new, 2))
    with both.dispatcher():
        run = both.submit(both.registry.flow("changing", 1), journey)
        eventually(lambda: run.status is Status.WAITING)
    with newer.dispatcher(), newer.store.read() as connection:
        seen = {(one.version, one.runs, one.workers) for one in versions.read_versions(connection, newer.namespace)}
    assert seen == {(1, 1, 0), (2, 0, 1)}


def test_a_process_that_lacks_an_owed_compensator_says_so_when_it_starts(setup: Setup, journey: str) -> None:
    before, after = make_app(setup, (old, 1)), make_app(setup, (old, 1))
    with before.dispatcher():
        run = before.submit(before.registry.flow("changing"), journey)
        eventually(lambda: run.status is Status.WAITING)
    after.registry.add_activity(aft.Activity(agency.book.fn, name="agency_book"))
    heard: list[Event] = []
    after.telemetry.subscribe(heard.append)
    with after.dispatcher():
        pass
    (told,) = [event for event in heard if isinstance(event, FrameUnresolved)]
    assert (told.activity, told.compensator, told.runs) == ("agency_book", "unbook", 1)


def test_a_person_has_a_savepoint_undone_and_the_flow_takes_another_way(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.undecided, journey, status=Status.WAITING) as run:
        assert [undo.arguments["what"] for undo in run.compensate(dry_run=True, to="sea")] == ["ferry"]
        assert [undo.arguments["what"] for undo in run.compensate(dry_run=True)] == ["ferry", "deposit"]
        run.compensate(to="sea", note="storm")
        assert run.result(60) == f"train of {journey}"
    assert ledger[journey] == ["deposit", "ferry", "unferry", "train"]


@aft.flow
def in_legs(journey: str, stops: int) -> str:
    """Goes in two legs, each in a savepoint of the same name."""
    for leg in ("out", "home"):
        try:
            with aft.savepoint("leg"):
                for stop in range(stops):
                    agency.book(journey, f"{leg}{stop}")
        except aft.UndoneByHand:
            agency.book(journey, f"stay {leg}")
    return "arrived"


@pytest.mark.parametrize("stops", [2, 1], ids=["in it", "left it"])
def test_an_order_that_comes_while_a_step_is_executed_is_judged_by_the_runs_owner(
    setup: Setup, journey: str, stops: int
) -> None:
    app = setup.app()
    gate = shut(journey, "out0")
    with app.dispatcher():
        run = app.submit(in_legs, journey, stops)
        assert gate.reached.wait(60)
        assert run.compensate(to="leg", note="storm") == []
        gate.set()
        assert run.result(60) == "arrived"
    with app.store.read() as connection:
        told = [happening.detail for happening in timeline.read_timeline(connection, app.namespace, run.id)[1]]
    refused = [detail for detail in told if "not carried out: the run is not in that savepoint any more" in str(detail)]
    if stops == 2:
        assert ledger[journey] == ["out0", "unout0", "stay out", "home0", "home1"]
        assert not refused
    else:
        assert ledger[journey] == ["out0", "home0"]
        assert len(refused) == 1


def test_only_a_savepoint_that_the_run_is_in_can_be_undone(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.undecided, journey, status=Status.WAITING) as run:
        with pytest.raises(aft.OrderRefused, match="is not in savepoint 'land'; it is in 'sea'"):
            run.compensate(to="land")
        run.signal("word", "sea")
        assert run.result(60) == "sea"
        with pytest.raises(aft.OrderRefused, match="is completed: it is in no savepoint"):
            run.compensate(to="sea", dry_run=True)
