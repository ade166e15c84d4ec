"""Runs that begin anew: what an earlier generation did stays as it is, whatever a later one undoes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

import aft
from aft.flows.steps.children import Children
from aft.runs.ownership.owner import Fenced
from aft.runs.states import Status
from aft.store.tables import frames
from tests.acceptance.agency import book, unbook
from tests.setups import Setup, eventually, run_to
from tests.world import Refused, ledger, shut, trouble


@aft.flow(name="generations_monthly")
def monthly(journey: str, month: int = 1) -> str:
    """Charge and ship each month; a month that fails is left out."""
    try:
        with aft.savepoint("month"):
            book(journey, f"charge {month}")
            book(journey, f"ship {month}")
    except Refused:
        return f"stopped in month {month}"
    if month < 3:
        aft.continue_as_new(journey, month + 1)
    return "all months"


@aft.flow(name="generations_charge")
def charge(journey: str, month: int) -> str:
    return book(journey, f"charge {month}")


@aft.flow(name="generations_by_child")
def by_child(journey: str, month: int = 1) -> str:
    """The same, with a child that charges."""
    try:
        with aft.savepoint("month"):
            charge(journey, month)
            book(journey, f"ship {month}")
    except Refused:
        return f"stopped in month {month}"
    if month < 3:
        aft.continue_as_new(journey, month + 1)
    return "all months"


MONTHS = ["charge 1", "ship 1", "charge 2", "ship 2", "charge 3", "ship 3!"]


@pytest.mark.parametrize("flow", [monthly, by_child])
def test_a_savepoint_undoes_only_what_its_own_generation_pushed(
    setup: Setup, journey: str, flow: aft.Flow[[str], str]
) -> None:
    trouble[journey, "ship 3"] = [Refused("no parcel")]
    with run_to(setup.app(), flow, journey) as run:
        assert run.result(60) == "stopped in month 3"
    assert ledger[journey] == [*MONTHS, "uncharge 3"]


@pytest.mark.parametrize("flow", [monthly, by_child])
def test_what_earlier_generations_did_is_undone_with_the_run(
    setup: Setup, journey: str, flow: aft.Flow[[str], str]
) -> None:
    trouble[journey, "ship 3"] = [Refused("no parcel")]
    with run_to(setup.app(), flow, journey) as run:
        run.result(60)
        told = [undo.arguments["what"] for undo in run.compensate(dry_run=True)]
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert told == ["ship 2", "charge 2", "ship 1", "charge 1"]
    assert ledger[journey] == [*MONTHS, "uncharge 3", *(f"un{what}" for what in told)]


def test_a_run_whose_worker_is_lost_between_two_children_of_one_step_is_undone_to_the_end(
    setup: Setup, journey: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of both children have the same path; what was awaited for the newer one is not for the older one."""
    take_off = Children._undo_frame

    def be_lost_after_it(self: Children, *given: Any) -> None:
        monkeypatch.setattr(Children, "_undo_frame", take_off)
        take_off(self, *given)
        raise Fenced("the worker was lost after a child's frame was off")

    with run_to(setup.app(lease=quick_beats), by_child, journey) as run:
        run.result(60)
        monkeypatch.setattr(Children, "_undo_frame", be_lost_after_it)
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[journey][6:] == [f"un{what} {month}" for month in (3, 2, 1) for what in ("ship", "charge")]


@aft.flow(name="generations_asked")
def asked(journey: str, month: int = 1) -> str:
    """Charge, and wait for a word in the second month."""
    try:
        with aft.savepoint("month"):
            charge(journey, month)
            book(journey, f"ship {month}")
            if month == 2:
                aft.wait_for("word")
    except aft.UndoneByHand:
        return "undone"
    if month < 2:
        aft.continue_as_new(journey, month + 1)
    return "all months"


def test_a_person_undoes_a_savepoint_of_the_current_generation_as_it_was_told(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), asked, journey) as run:
        eventually(lambda: "ship 2" in ledger[journey] and run.status is Status.WAITING)
        told = [undo.arguments["what"] for undo in run.compensate(dry_run=True, to="month")]
        run.compensate(to="month")
        assert run.result(60) == "undone"
    assert told == ["ship 2", "charge 2"]
    assert ledger[journey] == ["charge 1", "ship 1", "charge 2", "ship 2", "unship 2", "uncharge 2"]


@aft.flow(name="generations_slow")
def slow(journey: str, month: int = 1) -> str:
    """Ask for a word in the first month; the second one has a savepoint of the same name and place."""
    try:
        with aft.savepoint("month"):
            if month == 1:
                aft.wait_for("word")
            book(journey, f"charge {month}")
            book(journey, f"ship {month}")
    except aft.UndoneByHand:
        return f"undone in month {month}"
    if month < 2:
        aft.continue_as_new(journey, month + 1)
    return "all months"


def test_an_order_to_undo_a_savepoint_is_for_the_generation_that_was_in_it(setup: Setup, journey: str) -> None:
    """It comes too late: the run is at the savepoint's last step, and begins anew before it reads the order."""
    with run_to(setup.app(), slow, journey, status=Status.WAITING) as run:
        gate = shut(journey, "ship 1")
        run.signal("word")
        assert gate.reached.wait(60)
        run.compensate(to="month")
        gate.set()
        assert run.result(60) == "all months"
    assert ledger[journey] == ["charge 1", "ship 1", "charge 2", "ship 2"]


def test_a_run_that_began_anew_is_in_no_savepoint_of_before(setup: Setup, journey: str) -> None:
    gate = shut(journey, "charge 2")
    with run_to(setup.app(), slow, journey, status=Status.WAITING) as run:
        run.signal("word")
        assert gate.reached.wait(60)
        with pytest.raises(
            aft.OrderRefused, match="is being executed: only its worker knows which savepoints it is in"
        ):
            run.compensate(to="month", dry_run=True)
        gate.set()
        assert run.result(60) == "all months"


# What is not known when a run begins anew -----------------------------------------------------------------------


@aft.compensate_with(unbook, when="started")
@aft.activity(name="generations_request", levels=[], unrecoverable=(Refused,))
def request(journey: str, what: str) -> str:
    """Ask for something; its undo is owed once it was begun."""
    return book.fn(journey, what)


@aft.flow(name="generations_requests")
def requests(journey: str, month: int = 1) -> str:
    """Request something each month."""
    request(journey, f"month {month}")
    if month < 3:
        aft.continue_as_new(journey, month + 1)
    return book(journey, "year")


def test_a_started_activity_is_recorded_beside_those_of_earlier_generations(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(requests, journey)
        assert run.result(60)
        with app.store.read() as connection:
            owed = select(frames.c.key_generation, frames.c.state).where(frames.c.run_id == run.id)
            found: list[Any] = [tuple(row) for row in connection.execute(owed.order_by(frames.c.seq))]
    assert found == [(0, "owed"), (1, "owed"), (2, "owed"), (2, "owed")]
    assert ledger[journey] == ["month 1", "month 2", "month 3", "year"]


# What is the same on replay -------------------------------------------------------------------------------------

seen: dict[str, list[tuple[Any, ...]]] = {}


@aft.flow(name="generations_clocked")
def clocked(journey: str, month: int = 1) -> None:
    """Look at the clock, and wait for a word, so that all of it is replayed."""
    here = [aft.now(), aft.uuid(), aft.random().random()]
    book(journey, f"month {month}")
    here += [aft.now(), aft.uuid(), aft.random().random()]
    seen.setdefault(journey, []).append((month, *here))
    aft.wait_for("word")
    if month < 2:
        aft.continue_as_new(journey, month + 1)


def _waits_after(run: aft.Run, journey: str, done: list[str]) -> bool:
    return ledger[journey] == done and run.status is Status.WAITING


def test_a_new_generation_sees_the_same_time_ids_and_numbers_on_replay(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), clocked, journey) as run:
        for done in (["month 1"], ["month 1", "month 2"]):
            eventually(partial(_waits_after, run, journey, done))
            run.signal("word")
        run.result(60)
    first, again, second, replayed = seen[journey]
    assert first == again
    assert second == replayed
    assert not set(first[1:]) & set(second[1:])
