"""Routes a classified fault: another try, at which level and when; or give up, or park. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from aft import durations
from aft.fault import Fault, FaultKind, FaultState
from aft.recovery.known_exceptions import Classification
from aft.recovery.levels import read_ladder
from aft.rules.exlets.exlet import Exlet
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.rulings import Ruling


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Try again after ``wait``; ``declared`` if that is a level's own wait, which may have a delay queue.

    ``alone``: with no other run in its worker; only the timer can arrange that, a message cannot. ``signal``: when that
    signal has come, or after ``wait``, unless that is None.
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
    """The failure is final: it is raised at its call site; if the flow does not catch it there, the run is unwound."""

    why: str


@dataclass(frozen=True, slots=True)
class ParkRun:
    """A person has to decide, for example about an undo that fails: it must not be forgotten."""

    why: str


@dataclass(frozen=True, slots=True)
class ApplyRuling:
    """An exlet has decided, and the run's owner applies its ruling. ``state`` is the fault's new state."""

    ruling: Ruling
    state: FaultState
    why: str


@dataclass(frozen=True, slots=True)
class CarryOutExlet:
    """An exlet is carried out primitive by primitive, as a plan, and decides about the fault on its way."""

    exlet: Exlet
    facts: dict[str, Any] = field(repr=False)
    why: str


#: Deaths of workers that executed nothing else, after which a run is parked.
MOST_DEATHS_ALONE = 3

#: Routes that decide about a fault at once.
ImmediateRoute = RetryLater | GiveUp | ParkRun | ApplyRuling
Route = ImmediateRoute | CarryOutExlet


def route(fault: Fault, classification: Classification) -> RetryLater | GiveUp | ParkRun:
    """Choose the route of a fault, without rules."""
    if fault.kind is FaultKind.ABORT:
        return _after_death(fault.attempt, classification)
    if not classification.recoverable:
        return _give_up(fault, f"unrecoverable: {classification.reason}")
    try:
        position = read_ladder(fault.ladder).position_after(fault.attempt)
    except (ValueError, RecursionError) as error:
        # A row that somebody edited by hand: nothing is undone for that.
        return ParkRun(f"its ladder cannot be climbed: {error}; retry tries its step again, or cancel the run")
    if position is None:
        return _give_up(fault, f"all levels exhausted after {fault.attempt} failures: {classification.reason}")
    wish = fault.after or timedelta(0)
    why = f"recoverable: {classification.reason}"
    if fault.signal is not None:
        why += f"; it waits for signal {fault.signal!r}"
        return RetryLater(
            fault.after, why, position.level, position.attempt_in_level, declared=False, signal=fault.signal
        )
    if wish > position.wait:
        why += f"; it asked to wait {durations.format(wish)}"
    return RetryLater(
        max(position.wait, wish), why, position.level, position.attempt_in_level, declared=wish <= position.wait
    )


def _after_death(deaths: int, classification: Classification) -> RetryLater | ParkRun:
    if deaths < MOST_SHARED_DEATHS:
        return RetryLater(timedelta(0), classification.reason)
    alone = deaths - MOST_SHARED_DEATHS
    if alone < MOST_DEATHS_ALONE:
        return RetryLater(
            timedelta(0), f"{classification.reason}, alone: {deaths} workers have died on it in a row", alone=True
        )
    return ParkRun(
        f"its worker died {deaths} times in a row, {alone} times while it executed nothing else; "
        "find out what in it ends the process, or keeps it from its heartbeat, then retry"
    )


def _give_up(fault: Fault, why: str) -> GiveUp | ParkRun:
    return ParkRun(why) if fault.kind is FaultKind.COMPENSATOR else GiveUp(why)
