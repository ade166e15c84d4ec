"""An effect that comes after its step has failed for good is undone while the run goes on, or parks it."""

from __future__ import annotations

import pytest

import aft
from aft.runs.states import Status
from tests.acceptance.agency import book, do, unbook
from tests.setups import Setup, eventually
from tests.world import ledger, shut


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
def patient(journey: str, undoable: bool, anew: bool = False) -> str:
    """Go on without the slow step, and wait for a word."""
    if not anew:
        try:
            (slow if undoable else slow_for_good)(journey, "slow")
        except TimeoutError:
            book(journey, "instead")
        if (journey, "anew") in anew_ones:
            aft.continue_as_new(journey, undoable, True)
    return str(aft.wait_for("word"))


anew_ones: set[tuple[str, str]] = set()


@pytest.mark.parametrize("anew", [False, True])
def test_a_late_effect_of_a_step_that_failed_for_good_is_undone_while_the_run_waits(
    setup: Setup, journey: str, anew: bool
) -> None:
    app = setup.app(grace="300ms")
    gate = shut(journey, "slow")
    if anew:
        anew_ones.add((journey, "anew"))
    with app.dispatcher():
        run = app.submit(patient, journey, True)
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
    app = setup.app(grace="300ms")
    gate = shut(journey, "slow")
    if anew:
        anew_ones.add((journey, "anew"))
    with app.dispatcher():
        run = app.submit(patient, journey, False)
        eventually(lambda: run.status is Status.WAITING)
        gate.set()
        eventually(lambda: run.status is Status.PARKED)
        assert "had its effect after the run had gone on without it, and has no compensator" in (run.row.reason or "")
        run.retry()
        eventually(lambda: run.status is Status.WAITING)
        run.signal("word", "on")
        assert run.result(60) == "on"
    assert ledger[journey] == ["instead", "slow"]
