"""What becomes of a classified fault: another try, at which level and when; or the end, and which. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aft import durations
from aft.fault import Fault, FaultKind, FaultState
from aft.recovery.knowledge import Expectation
from aft.recovery.levels import Rung, read_ladder
from aft.rules.exlets import Exlet
from aft.runs.owner import MOST_SHARED_DEATHS
from aft.runs.rulings import Ruling


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Try again after ``wait``; ``declared`` if that is a level's own wait, which may have a queue.

    ``alone``: with no other run beside it; the timer sees to that, a message could not. ``signal``: when that signal
    has come; after ``wait`` all the same, unless that is None.
    """

    wait: timedelta | None
    why: str
    level: int | None = None
    try_in_level: int | None = None
    declared: bool = True
    alone: bool = False
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The failure is final: raised at its call site; nobody catching it there, everything is undone."""

    why: str


@dataclass(frozen=True, slots=True)
class ParkRun:
    """A person has to look: an undo that cannot be done must not be forgotten."""

    why: str


@dataclass(frozen=True, slots=True)
class Rule:
    """An exlet has decided: the run's owner obeys. ``state`` is the fault's then."""

    ruling: Ruling
    state: FaultState
    why: str


@dataclass(frozen=True, slots=True)
class Carry:
    """An exlet is carried out, primitive by primitive; what becomes of the fault is its to say."""

    exlet: Exlet
    facts: dict[str, Any]
    why: str


#: Deaths of workers that executed nothing else, after which a run waits for a person.
MOST_DEATHS_ALONE = 3

#: What becomes of a fault at once.
Settled = RetryLater | GiveUp | ParkRun | Rule
Route = Settled | Carry


def route(fault: Fault, verdict: Expectation) -> RetryLater | GiveUp | ParkRun:
    """Choose what to do about a fault."""
    if fault.kind is FaultKind.ABORT:
        return _after_death(fault.attempt, verdict)
    if not verdict.recoverable:
        return _give_up(fault, f"unrecoverable: {verdict.reason}")
    rung = _rung(fault)
    if rung is None:
        return _give_up(fault, f"all levels exhausted after {fault.attempt} failures: {verdict.reason}")
    asked = fault.after or timedelta(0)
    why = f"recoverable: {verdict.reason}"
    if fault.signal is not None:
        why += f"; it waits for signal {fault.signal!r}"
        return RetryLater(fault.after, why, rung.level, rung.attempt_in_level, declared=False, signal=fault.signal)
    if asked > rung.wait:
        why += f"; it asked to wait {durations.spell(asked)}"
    return RetryLater(max(rung.wait, asked), why, rung.level, rung.attempt_in_level, declared=asked <= rung.wait)


def _after_death(deaths: int, verdict: Expectation) -> RetryLater | ParkRun:
    if deaths < MOST_SHARED_DEATHS:
        return RetryLater(timedelta(0), verdict.reason)
    alone = deaths - MOST_SHARED_DEATHS
    if alone < MOST_DEATHS_ALONE:
        return RetryLater(
            timedelta(0), f"{verdict.reason}, alone: {deaths} workers have died on it in a row", alone=True
        )
    return ParkRun(
        f"its worker died {deaths} times in a row, {alone} times while it executed nothing else; "
        "find out what in it ends the process, or keeps it from its heartbeat, then retry"
    )


def _give_up(fault: Fault, why: str) -> GiveUp | ParkRun:
    return ParkRun(why) if fault.kind is FaultKind.COMPENSATOR else GiveUp(why)


def _rung(fault: Fault) -> Rung | None:
    try:
        return read_ladder(fault.ladder).rung(fault.attempt)
    except (ValueError, RecursionError):
        # A row that somebody edited by hand: no more tries, and its run is undone or parked, not lost.
        return None
