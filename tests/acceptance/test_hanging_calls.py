"""Calls that never return: they are given up, keep no slot, end no drain, and a person sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import aft
from aft.cli.show.output import short_id
from aft.rules.exlets import do
from aft.telemetry import AttemptAbandoned, AttemptReturned, Event
from tests.acceptance.terminal import Terminal
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually, run_to
from tests.world import gates, ledger


def undo_hang(place: str, result: object) -> None:
    ledger[place].append("undone")


@aft.compensate_with(undo_hang)
@aft.activity(name="hanging_hang", timeout="50ms", levels=[aft.Level("10ms", tries=2)])
def hang(place: str) -> str:
    ledger[place].append("hangs")
    gates[place].wait()
    return "after all"


@aft.activity(name="hanging_stubborn", timeout="50ms", levels=[])
async def stubborn(place: str) -> None:
    """Ignore that it is cancelled."""
    while not gates[place].is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            ledger[place].append("ignored")


@aft.activity(name="hanging_blocking", timeout="50ms", levels=[])
async def blocking(place: str) -> None:
    """Block the event loop, which all async activities of a process share."""
    gates[place].wait()


@aft.activity(name="hanging_quick")
async def quick(place: str) -> str:
    await asyncio.sleep(0)
    return "quick"


@aft.activity(name="hanging_quick_in_time", timeout="20ms", levels=[])
async def quick_in_time(place: str) -> str:
    ledger[place].append("executed")
    return "quick"


@aft.activity(name="hanging_block", levels=[])
async def block(place: str) -> None:
    ledger[place].append("blocks")
    gates[place].wait()


@aft.activity(name="hanging_block_in_time", timeout="50ms", levels=[])
async def block_in_time(place: str) -> None:
    await block.fn(place)


@aft.activity(name="hanging_patient", levels=[])
async def patient(place: str) -> None:
    """Wait for a gate without blocking the loop."""
    ledger[place].append("waits")
    while not gates[f"{place} patient"].is_set():
        await asyncio.sleep(0.01)


@aft.activity(name="hanging_patient_in_time", timeout="500ms", levels=[])
async def patient_in_time(place: str) -> None:
    await patient.fn(place)


@aft.activity(name="hanging_untimed")
def untimed(place: str) -> None:
    ledger[place].append("begun")
    gates[place].wait()


@aft.flow(name="hanging")
def hanging(place: str) -> str:
    return hang(place)


@aft.flow(name="hanging_async")
async def hanging_async(place: str, how: str) -> None:
    await (stubborn if how == "stubborn" else blocking)(place)


@aft.flow(name="hanging_not")
def not_hanging(place: str) -> Any:
    return quick(place)


@aft.flow(name="hanging_block")
def blocking_flow(place: str, timed: bool) -> None:
    (block_in_time if timed else block)(place)


@aft.flow(name="hanging_quick_in_time")
def quick_flow(place: str) -> Any:
    return quick_in_time(place)


@aft.flow(name="hanging_patient")
def patient_flow(place: str, timed: bool) -> None:
    (patient_in_time if timed else patient)(place)


@aft.flow(name="hanging_for_ever")
def for_ever(place: str) -> None:
    untimed(place)


def checks(terminal: Terminal) -> list[dict[str, str]]:
    """What the doctor has looked at."""
    found: list[dict[str, str]] = json.loads(terminal.call("doctor", "--json").stdout)["checks"]
    return found


def test_a_call_that_never_returns_keeps_no_slot(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher(concurrency=1):
        stuck = app.submit(hanging, place)
        eventually(lambda: ledger[place])
        assert app.submit(not_hanging, place).result(60) == "quick"
        eventually(lambda: stuck.status == "compensated")  # its ladder went on meanwhile, to its end
        assert ledger[place] == ["hangs"] * 3


@pytest.mark.parametrize("how", ["stubborn", "blocking"])
def test_a_coroutine_that_never_ends_keeps_neither_its_slot_nor_the_loop(setup: Setup, place: str, how: str) -> None:
    app = setup.app()
    with app.dispatcher(concurrency=1):
        stuck = app.submit(hanging_async, place, how)
        eventually(lambda: stuck.status == "compensated")
        assert app.submit(not_hanging, place).result(60) == "quick"


@pytest.mark.parametrize("timed", [True, False])
def test_what_is_queued_behind_a_coroutine_that_blocks_is_executed_elsewhere_and_has_not_failed(
    setup: Setup, place: str, timed: bool
) -> None:
    app = setup.app()
    with app.dispatcher(concurrency=3):
        app.submit(blocking_flow, place, timed)
        eventually(lambda: ledger[place] == ["blocks"])
        queued = app.submit(not_hanging, place), app.submit(quick_flow, place)
        assert [run.result(60) for run in queued] == ["quick", "quick"]
        assert ledger[place] == ["blocks", "executed"]
        gates[place].set()


def test_what_has_begun_on_a_loop_that_is_blocked_for_good_is_executed_again(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher(concurrency=2):
        begun = app.submit(patient_flow, place, False)
        eventually(lambda: ledger[place] == ["waits"])
        app.submit(blocking_flow, place, True)
        eventually(lambda: ledger[place] == ["waits", "blocks", "waits"])
        gates[f"{place} patient"].set()
        begun.result(60)
        assert begun.fault is None


def test_a_coroutine_that_blocks_the_loop_but_is_at_work_is_not_executed_twice(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher(concurrency=2):
        given_up = app.submit(patient_flow, place, True)
        eventually(lambda: ledger[place] == ["waits"])
        blocks = app.submit(blocking_flow, place, False)
        eventually(lambda: given_up.status == "compensated")
        assert app.submit(not_hanging, place).result(60) == "quick"
        gates[place].set()
        blocks.result(60)
        assert ledger[place] == ["waits", "blocks"]


def test_a_drain_does_not_wait_for_calls_that_were_given_up(setup: Setup, place: str) -> None:
    app = setup.app()
    process = app.dispatcher()
    process.start()
    run = app.submit(hanging, place)
    eventually(lambda: run.status == "compensated")
    assert process.stop(timeout=1.0)


def test_it_is_told_when_a_call_is_given_up_and_when_it_returns_after_all(setup: Setup, place: str) -> None:
    app, told = setup.app(), list[Event]()
    app.telemetry.subscribe(told.append)
    with app.dispatcher():
        run = app.submit(hanging, place)
        eventually(lambda: run.status == "compensated")
        given_up = [event for event in told if isinstance(event, AttemptAbandoned)]
        assert [(event.run, event.path, event.activity) for event in given_up] == [(run.id, "1", "hanging_hang")] * 3
        assert [event.attempt for event in given_up] == [1, 2, 3]
        gates[place].set()
        eventually(lambda: sum(isinstance(event, AttemptReturned) for event in told) == 3)
        eventually(lambda: "undone" in ledger[place])  # its effect has come after all


def test_the_doctor_shows_run_step_and_age_of_a_call_that_was_given_up(setup: Setup, place: str) -> None:
    terminal = Terminal(setup)
    with terminal.app.dispatcher():
        run = terminal.app.submit(hanging, place)
        eventually(lambda: run.status == "compensated")

        def seen() -> list[str]:
            return [check["says"] for check in checks(terminal) if check["name"] == "hanging"]

        says = eventually(lambda: found if len(found := seen()) == 3 else None)
        assert all(f"run {short_id(run.id)}, " in one for one in says)
        assert all("step 1" in one and "'hanging_hang'" in one and " ago" in one for one in says)
        gates[place].set()
        eventually(lambda: not seen())


def test_a_process_with_too_many_calls_that_hang_claims_nothing_says_so_and_goes_on_when_they_return(
    setup: Setup, place: str
) -> None:
    terminal = Terminal(setup)
    app = setup.app(most_abandoned=1)
    with app.dispatcher():
        run = app.submit(hanging, place)
        eventually(lambda: ledger[place])

        def complaint() -> str:
            found = [check for check in checks(terminal) if check["name"] == "hanging"]
            return next((check["says"] for check in found if check["state"] == "problem"), "")

        says = eventually(complaint)
        assert "claims no run" in says
        waiting = app.submit(not_hanging, place)
        eventually(lambda: run.row.worker_id is None)
        assert waiting.row.worker_id is None
        gates[place].set()
        assert waiting.result(60) == "quick"
        assert ledger[place][:1] == ["hangs"]
        eventually(lambda: not complaint())


DISPATCHING = """
    import sys, threading
    import aft

    @aft.activity(timeout="50ms", levels=[])
    def given_up() -> None:
        threading.Event().wait()

    @aft.activity
    def at_work() -> None:
        print("at work", flush=True)
        threading.Event().wait()

    @aft.flow
    def first() -> None:
        given_up()

    @aft.flow
    def second() -> None:
        at_work()

    app = aft.Aft.from_env()
"""


def test_a_process_can_exit_while_calls_hang_in_it(setup: Setup, tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        textwrap.dedent(DISPATCHING)
        + textwrap.dedent("""
    process = app.dispatcher()
    process.start()
    run = app.submit(first)
    while run.status != "compensated":
        pass
    app.submit(second)
    sys.stdin.read()
    assert not process.stop(timeout=0.1)
    app.close()
    print("closed", flush=True)
    """)
    )
    setup.app().check()
    environ = {**os.environ, **setup.environ()}
    with subprocess.Popen(
        [sys.executable, script], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "at work\n"
        process.stdin.close()
        assert process.stdout.readline() == "closed\n"
        assert process.wait(60) == 0


def test_a_dispatcher_with_calls_that_hang_drains_when_it_is_asked_to(setup: Setup, tmp_path: Path) -> None:
    (tmp_path / "drained.py").write_text(textwrap.dedent(DISPATCHING))
    app = setup.app()
    app.check()
    environ = {**os.environ, **setup.environ()}
    arguments = [sys.executable, "-m", "aft", "dispatcher", "drained"]
    with subprocess.Popen(arguments, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        sys.path.insert(0, str(tmp_path))
        try:
            import drained  # type: ignore[import-not-found]
        finally:
            sys.path.remove(str(tmp_path))
        run = app.submit(drained.first)
        eventually(lambda: run.status == "compensated")
        process.send_signal(signal.SIGTERM)
        told = process.stderr.read()
        assert process.wait(60) == 0, told
        assert "stopped" in told


def test_a_watched_attempt_whose_thread_ends_without_an_outcome_is_noticed(setup: Setup, place: str) -> None:
    app = setup.app()
    teach(app, watched_flow, "violated", "activity.elapsed > 3600.0", do.complete(None), activity="hanging_panic")
    with run_to(app, watched_flow, place, status="compensated"):
        assert ledger[place] == ["panics"]


class Panic(BaseException):
    """As a library in another language raises it."""


@aft.activity(name="hanging_panic")
def panic(place: str) -> None:
    ledger[place].append("panics")
    raise Panic("index out of bounds")


@aft.flow(name="hanging_watched")
def watched_flow(place: str) -> None:
    panic(place)
