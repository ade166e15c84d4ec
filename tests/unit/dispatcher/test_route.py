"""Claims about routing: how a fault climbs its ladder, and where it goes when no level is left."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from aft.dispatcher.fault_rules import retry_route
from aft.dispatcher.route import GiveUp, ParkRun, RetryLater, route
from aft.fault import Fault, FaultKind
from aft.recovery.known_exceptions import Classification
from aft.recovery.levels import Ladder, Level
from aft.rules.exlets.primitives import Retry
from tests.faults import make_fault

PASSES, LASTS = Classification(True, "it passes"), Classification(False, "it lasts")
LADDER = Ladder((Level("10s", tries=2), Level("1m"), Level(0)))


def a_fault(attempt: int = 1, ladder: Ladder = LADDER) -> Fault:
    return make_fault(attempt=attempt, ladder=ladder.stored)


@pytest.mark.parametrize(
    ("attempt", "wait", "level", "try_in_level"),
    [(1, 10, 1, 1), (2, 10, 1, 2), (3, 60, 2, 1), (4, 0, 3, 1)],
)
def test_a_fault_climbs_its_ladder_try_by_try(attempt: int, wait: int, level: int, try_in_level: int) -> None:
    found = route(a_fault(attempt), PASSES)
    assert found == RetryLater(timedelta(seconds=wait), "recoverable: it passes", level, try_in_level, declared=True)


@pytest.mark.parametrize("attempt", [5, 6, 1000])
def test_above_the_last_level_the_failure_is_final(attempt: int) -> None:
    assert route(a_fault(attempt), PASSES) == GiveUp(f"all levels exhausted after {attempt} failures: it passes")


def test_without_levels_the_first_failure_is_final() -> None:
    assert isinstance(route(a_fault(1, Ladder()), PASSES), GiveUp)


def test_what_lasts_is_final_on_the_lowest_level_already() -> None:
    assert route(a_fault(1), LASTS) == GiveUp("unrecoverable: it lasts")


# --- Retry-After ---


def test_who_asks_for_more_time_than_the_level_has_goes_to_the_timer() -> None:
    found = route(replace(a_fault(1), after=timedelta(seconds=25)), PASSES)
    assert found == RetryLater(
        timedelta(seconds=25), "recoverable: it passes; it asked to wait 25s", 1, 1, declared=False
    )


@pytest.mark.parametrize("asked", [timedelta(0), timedelta(seconds=3), timedelta(seconds=10)])
def test_who_asks_for_no_more_than_the_level_waits_in_its_queue(asked: timedelta) -> None:
    found = route(replace(a_fault(1), after=asked), PASSES)
    assert found == RetryLater(timedelta(seconds=10), "recoverable: it passes", 1, 1, declared=True)


def test_asking_for_time_does_not_make_more_levels() -> None:
    assert isinstance(route(replace(a_fault(5), after=timedelta(seconds=25)), PASSES), GiveUp)


def test_asking_for_time_does_not_help_what_lasts() -> None:
    assert isinstance(route(replace(a_fault(1), after=timedelta(seconds=25)), LASTS), GiveUp)


# --- compensators ---


def test_a_compensator_climbs_like_an_activity() -> None:
    found = route(replace(a_fault(3), kind=FaultKind.COMPENSATOR), PASSES)
    assert found == RetryLater(timedelta(minutes=1), "recoverable: it passes", 2, 1)


def test_an_exhausted_compensator_parks() -> None:
    found = route(replace(a_fault(5), kind=FaultKind.COMPENSATOR), PASSES)
    assert found == ParkRun("all levels exhausted after 5 failures: it passes")


def test_a_compensator_whose_failure_lasts_parks_at_once() -> None:
    assert route(replace(a_fault(1), kind=FaultKind.COMPENSATOR), LASTS) == ParkRun("unrecoverable: it lasts")


# --- aborts ---


@pytest.mark.parametrize("verdict", [PASSES, LASTS])
def test_an_abort_goes_on_at_once_and_uses_up_no_level(verdict: Classification) -> None:
    abort = replace(a_fault(0, Ladder()), kind=FaultKind.ABORT, path=None, after=timedelta(hours=1))
    assert route(abort, verdict) == RetryLater(timedelta(0), verdict.reason, None, None)


# --- rows that somebody edited ---


@pytest.mark.parametrize("broken", ["", "null", "{}", "[[1]]", "[[-5, 1]]", '[["10s", 3]]', "[[1000, 0]]", "not json"])
@pytest.mark.parametrize("kind", [FaultKind.ACTIVITY, FaultKind.COMPENSATOR])
def test_a_ladder_that_cannot_be_read_parks(kind: FaultKind, broken: str) -> None:
    found = route(replace(a_fault(1), ladder=broken, kind=kind), PASSES)
    assert isinstance(found, ParkRun)
    assert "its ladder cannot be climbed" in found.why


@pytest.mark.parametrize(
    "broken", [{"attempt": 0}, {"attempt": -1}, {"ladder": "[" * 100_000}], ids=["none", "negative", "deep"]
)
def test_a_count_or_a_depth_that_cannot_be_parks_too(broken: dict[str, object]) -> None:
    assert isinstance(route(replace(a_fault(1), **broken), PASSES), ParkRun)  # type: ignore[arg-type]


def test_a_rule_that_tries_again_by_a_ladder_that_cannot_be_read_parks() -> None:
    found = retry_route(replace(a_fault(1), ladder="{"), Retry(level=1), "a rule")
    assert isinstance(found, ParkRun)


def an_abort(deaths: int) -> Fault:
    return replace(a_fault(deaths, Ladder()), kind=FaultKind.ABORT, path=None)


@pytest.mark.parametrize(("deaths", "alone"), [(0, False), (1, False), (2, True), (3, True), (4, True)])
def test_after_two_deaths_beside_others_a_run_goes_on_alone(deaths: int, alone: bool) -> None:
    found = route(an_abort(deaths), PASSES)
    assert isinstance(found, RetryLater)
    assert (found.wait, found.alone) == (timedelta(0), alone)


@pytest.mark.parametrize("deaths", [5, 6])
def test_three_deaths_alone_are_a_person_s_to_look_at(deaths: int) -> None:
    found = route(an_abort(deaths), PASSES)
    assert isinstance(found, ParkRun)
    assert f"died {deaths} times in a row, {deaths - 2} times while it executed nothing else" in found.why
