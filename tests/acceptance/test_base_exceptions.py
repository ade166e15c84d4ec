"""Whatever user code raises is its failure, BaseExceptions too; a defect of aft parks. Nothing is tried uncounted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

import aft
from aft.flows.replay.runner import Runner
from aft.flows.scheduler.scheduler import StepScheduler
from aft.runs.ownership.rescue import MOST_LAPSES
from tests.setups import Setup, eventually, run_to
from tests.world import ledger, tries


class Panic(BaseException):
    """As a library in another language raises it."""


def undo(place: str) -> None:
    ledger[place].append("undone")


@aft.compensate_with(undo)
@aft.activity(name="base_done")
def done(place: str) -> None:
    ledger[place].append("done")


RAISED: list[Callable[[], BaseException]] = [
    lambda: Panic("out of bounds"),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: SystemExit(3),
]


@aft.activity(name="base_raise", levels=[])
def raise_it(place: str, which: int) -> None:
    ledger[place].append("raises")
    raise RAISED[which]()


@aft.activity(name="base_raise_async", levels=[])
async def raise_async(place: str, which: int) -> None:
    ledger[place].append("raises")
    raise RAISED[which]()


@aft.activity(name="base_raise_in_time", levels=[], timeout="60s")
def raise_in_time(place: str, which: int) -> None:
    ledger[place].append("raises")
    raise RAISED[which]()


@aft.flow(name="base_activity")
def of_activity(place: str, how: str, which: int) -> Any:
    done(place)
    ways: dict[str, Any] = {"plain": raise_it, "async": raise_async, "in time": raise_in_time}
    return ways[how](place, which)


@pytest.mark.parametrize("how", ["plain", "async", "in time"])
@pytest.mark.parametrize("which", range(len(RAISED)))
def test_whatever_an_activity_raises_fails_it_once(setup: Setup, place: str, how: str, which: int) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(of_activity, place, how, which)
        eventually(lambda: run.status == "compensated")
    assert ledger[place] == ["done", "raises", "undone"]


@aft.flow(name="base_flow")
def of_flow(place: str) -> None:
    done(place)
    with aft.savepoint("inside"):
        done(place)
        ledger[place].append("panics")
        raise Panic("in the flow's own code")


def test_whatever_a_flow_raises_undoes_it(setup: Setup, place: str) -> None:
    app = setup.app()
    with run_to(app, of_flow, place, status="compensated"):
        fault = app.faults()[0]
    assert ledger[place] == ["done", "done", "panics", "undone", "undone"]
    assert fault.type.endswith("Panic")


class Odd(Exception):
    """One that can neither be shown nor be asked for its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@aft.activity(name="base_odd", levels=[], immediate=1)
def be_odd(place: str) -> None:
    ledger[place].append("odd")
    raise Odd("x")


@aft.flow(name="base_odd")
def odd_flow(place: str) -> None:
    aft.pivot()
    try:
        be_odd(place)
    except Odd:
        done(place)
    raise Odd("in the flow's own code")


def test_an_exception_that_cannot_be_shown_is_a_failure_like_others(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(odd_flow, place)
        eventually(lambda: run.status == "parked")
    assert ledger[place] == ["odd", "done"]
    assert "failed after its pivot, so nothing is undone: Odd: (Odd cannot be shown" in (run.row.reason or "")


UNNAMEABLE = {
    name: type("Unnameable", (Exception,), {"__qualname__": name, "__module__": __name__})
    for name in ("nul\x00", "alone\ud800")
}


@aft.activity(name="base_unnameable", levels=[])
def raise_unnameable(name: str) -> None:
    raise UNNAMEABLE[next(known for known in UNNAMEABLE if known.startswith(name))]("no")


@aft.flow(name="base_unnameable")
def unnameable_flow(place: str, name: str) -> None:
    done(place)
    raise_unnameable(name)


@pytest.mark.parametrize("name", ["nul", "alone"])
def test_an_exception_whose_class_has_a_name_that_cannot_be_stored_is_a_failure_like_others(
    setup: Setup, place: str, name: str
) -> None:
    app = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(unnameable_flow, place, name).result(60)
    assert ledger[place] == ["done", "undone"]


def panicking(_: object) -> bool:
    raise Panic("in a predicate")


def refuse(place: str) -> None:
    ledger[place].append("compensator panics")
    raise Panic("in a compensator")


@aft.compensate_with(refuse)
@aft.activity(name="base_refused")
def refused(place: str) -> None:
    ledger[place].append("done")


@aft.activity(name="base_predicate", levels=[], recoverable=panicking)
def with_predicate(place: str) -> None:
    raise ValueError("judged by a predicate that raises")


@aft.flow(name="base_compensator")
def of_compensator(place: str) -> None:
    refused(place)
    with_predicate(place)


def test_a_compensator_that_raises_anything_parks(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(of_compensator, place)
        eventually(lambda: run.status == "parked")
    assert ledger[place] == ["done", "compensator panics"]


class Stored(BaseModel):
    place: str

    @field_serializer("place")
    def _panic(self, place: str) -> str:
        raise Panic("in a serializer")


@aft.activity(name="base_stored")
def make_stored(place: str) -> Stored:
    ledger[place].append("made")
    return Stored(place=place)


def is_owed(place: str) -> bool:
    raise Panic("in a condition")


@aft.compensate_with(undo, only_if=is_owed)
@aft.activity(name="base_only_if")
def conditional(place: str) -> None:
    ledger[place].append("conditional")


@aft.flow(name="base_codec")
def of_codec(place: str) -> None:
    conditional(place)
    make_stored(place)


def test_a_serializer_or_a_condition_that_raises_anything_costs_one_execution(setup: Setup, place: str) -> None:
    with run_to(setup.app(), of_codec, place, status="parked") as run:
        assert "cannot be stored" in (run.row.reason or "")
    assert ledger[place] == ["conditional", "made"]


NAMES = ["a\ud800b", "a\x00b", "bell \x07"]


@aft.activity(name="base_on_signal", levels=[])
def wait_for_signal(name: str) -> None:
    raise aft.Recoverable("later", on_signal=name)


@aft.flow(name="base_names")
def of_names(place: str, which: str, name: int) -> None:
    done(place)
    if which == "savepoint":
        with aft.savepoint(NAMES[name]):
            done(place)
    elif which == "patched":
        aft.patched(NAMES[name])
    elif which == "wait_for":
        aft.wait_for(NAMES[name])


@pytest.mark.parametrize("name", range(len(NAMES)))
@pytest.mark.parametrize("which", ["savepoint", "patched", "wait_for"])
def test_a_name_that_no_database_stores_is_refused_where_it_is_given(
    setup: Setup, place: str, which: str, name: int
) -> None:
    run = setup.app().start(of_names, place, which, name)
    assert run.status == "parked"
    assert "DefinitionError" in (run.row.reason or "")
    assert ledger[place] == ["done"]


@pytest.mark.parametrize("name", [*NAMES, "", "x" * 201])
def test_a_signal_that_nobody_could_send_is_refused_by_the_exception_that_asks_for_it(name: str) -> None:
    with pytest.raises(aft.DefinitionError, match="on_signal"):
        aft.Recoverable("later", on_signal=name)


@aft.activity(name="base_later", levels=[])
def later(place: str) -> None:
    ledger[place].append("later")
    error = aft.Recoverable("later")
    error.on_signal = NAMES[0]
    raise error


@aft.flow(name="base_later_flow")
def of_later(place: str) -> None:
    later(place)


def test_one_that_is_given_afterwards_is_none(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(of_later, place)
        eventually(lambda: run.status == "compensated")
    assert ledger[place] == ["later"]


# Defects of aft -----------------------------------------------------------------------------------------------------


@aft.flow(name="base_defect")
def of_defect(place: str) -> str:
    done(place)
    ledger[place].append("flow")
    return "fine"


def test_a_defect_of_aft_parks_the_run_with_its_traceback_and_a_retry_goes_on(
    setup: Setup, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()

    def defective(self: Runner, *_: Any) -> None:
        raise ZeroDivisionError("a defect")

    with app.dispatcher():
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "_carry_out", defective)
            run = app.submit(of_defect, place)
            eventually(lambda: run.status == "parked")
        assert "a defect of aft: ZeroDivisionError: a defect" in (run.row.reason or "")
        (fault,) = app.faults(state="parked")
        assert "in defective" in fault.traceback
        run.retry(note="fixed")
        assert run.result(60) == "fine"
    assert ledger[place] == ["done", "flow"]


def test_a_run_whose_thread_ends_again_and_again_is_executed_alone_and_then_parked(
    setup: Setup, place: str, monkeypatch: pytest.MonkeyPatch, quick_beats: float
) -> None:

    def dying(self: Runner, row: Any, **more: Any) -> None:
        ledger[place].append("dies")
        sys.exit("the thread ends")

    monkeypatch.setattr(Runner, "run", dying)
    with run_to(setup.app(lease=quick_beats), of_defect, place) as run:
        eventually(lambda: run.status == "parked", within=120)
    assert MOST_LAPSES < len(ledger[place]) <= MOST_LAPSES + 6


@aft.flow(name="base_catching")
def catching(place: str) -> str:
    try:
        done(place)
    except Exception:
        ledger[place].append("caught")
        done(place)
    return "fine"


@aft.flow(name="base_catching_async")
async def catching_async(place: str) -> str:
    try:
        await aft.sleep("1ms")
    except asyncio.CancelledError:
        done(place)  # a run that leaves executes no further step
        raise
    done(place)
    return "fine"


@pytest.mark.parametrize("flow", [catching, catching_async], ids=lambda flow: flow.name)
def test_a_defect_of_aft_beneath_a_step_is_no_failure_that_the_flow_hears_of(
    setup: Setup, place: str, monkeypatch: pytest.MonkeyPatch, flow: Any
) -> None:
    app = setup.app()

    def defective(self: StepScheduler, *_: Any) -> None:
        raise ZeroDivisionError("a defect")

    with app.dispatcher():
        with monkeypatch.context() as patch:
            patch.setattr(StepScheduler, "_may_begin" if flow is catching else "_start_pending", defective)
            run = app.submit(flow, place)
            eventually(lambda: (row := run.row).status.ended or row.status == "parked")
        assert "a defect of aft: ZeroDivisionError: a defect" in (run.row.reason or "")
        assert ledger[place] == []
        run.retry(note="fixed")
        assert run.result(60) == "fine"
    assert ledger[place] == ["done"]


@aft.activity(levels=[])
async def exits(order: str) -> None:
    sys.exit(3)


@aft.activity
async def lives(order: str) -> str:
    return "alive"


@aft.flow
def exiting(order: str) -> str:
    exits(order)
    return "never"


@aft.flow
def living(order: str) -> str:
    alive: str = lives(order)
    return alive


def test_an_async_activity_that_exits_fails_alone(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match="SystemExit"):
            app.submit(exiting, order).result(60)
        assert app.submit(living, order).result(60) == "alive"


@aft.activity
def interrupted(order: str) -> str:
    tries[order] += 1
    if tries[order] == 1:
        raise KeyboardInterrupt
    ledger[order].append("interrupted")
    return "done"


@aft.activity
def unlock(order: str) -> None:
    ledger[order].append("unlock")


@aft.flow
def locking(order: str) -> str:
    try:
        return interrupted(order)
    finally:
        unlock(order)


@aft.flow
async def locking_async(order: str) -> str:
    try:
        return interrupted(order)
    finally:
        unlock(order)


@pytest.mark.parametrize("flow", [locking, locking_async], ids=["plain", "async"])
def test_an_interrupt_lets_no_further_step_happen_and_the_run_goes_on_elsewhere(
    setup: Setup, order: str, flow: aft.Flow[[str], str], quick_beats: float
) -> None:
    app = setup.app(lease=quick_beats, grace="300ms")
    with pytest.raises(KeyboardInterrupt):
        app.start(flow, order)
    assert ledger[order] == []
    (run,) = app.runs()
    with app.dispatcher():
        assert run.result(60) == "done"
    assert ledger[order] == ["interrupted", "unlock"]
