"""Claims about the event loops of a process: what blocks one, and whom that concerns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aft.flows.runtime.event_loop
from aft.clock import SystemClock
from aft.flows.runtime.abandoned_attempts import AbandonedAttempts
from aft.flows.runtime.event_loop import LoopEnded, LoopThread, RunningCoroutine
from aft.ids import RunId
from aft.telemetry import Telemetry
from tests.setups import eventually


class Stage:
    """A loop, and what its coroutines came to, by their names."""

    def __init__(self) -> None:
        self.loop = LoopThread()
        self.gate = threading.Event()
        self.told: list[tuple[str, bool, Any]] = []

    def begin(self, name: str, act: Callable[[], Any]) -> RunningCoroutine:
        running = self.loop.begin(act(), lambda *outcome: self.told.append((name, *outcome)))
        eventually(lambda: running.began_at is not None)
        return running

    async def block(self) -> None:
        self.gate.wait()

    def give_up(self, running: RunningCoroutine) -> None:
        running.cancel()
        self.loop.replace_blocked(running)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.gate.set()
    made.loop.close()


def test_closing_waits_for_no_loop_that_is_blocked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aft.flows.runtime.event_loop, "CLOSING", 600.0)
    for name in "ab":
        stage.give_up(stage.begin(name, stage.block))
    threads = list(stage.loop._threads.values())
    closing = threading.Thread(target=stage.loop.close, daemon=True)
    closing.start()
    eventually(lambda: not closing.is_alive())
    stage.gate.set()
    for thread in threads:
        thread.join(60)


def test_closing_waits_for_a_loop_that_was_blocked_and_goes_on(stage: Stage) -> None:
    ended = threading.Event()

    async def act() -> None:
        stage.gate.wait()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stage.loop.replace_blocked(stage.begin("a", act))
    stage.gate.set()
    eventually(lambda: not stage.loop._blocked)
    stage.loop.close()
    assert ended.is_set()


async def rest() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("within", ["itself", "task", "gather", "wait_for", "task of a callback"])
def test_a_coroutine_that_is_at_work_is_not_told_as_unknown_whatever_task_of_its_blocks_the_loop(
    stage: Stage, within: str
) -> None:
    blocks = threading.Event()

    async def block() -> str:
        blocks.set()
        stage.gate.wait()
        return "done"

    async def act() -> Any:
        match within:
            case "task":
                return await asyncio.create_task(block())
            case "gather":
                return (await asyncio.gather(block(), asyncio.sleep(0)))[0]
            case "wait_for":
                return await asyncio.wait_for(block(), 600)
            case "task of a callback":
                begun: asyncio.Future[Any] = asyncio.Future()
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: begun.set_result(loop.create_task(block())))
                return await (await begun)
        return await block()

    given_up = stage.begin("a", rest)
    stage.begin("b", act)
    assert blocks.wait(60)
    stage.give_up(given_up)
    assert stage.told == []
    stage.gate.set()
    eventually(lambda: len(stage.told) == 2)
    assert [(name, returned) for name, returned, _ in sorted(stage.told)] == [("a", False), ("b", True)]


def test_when_what_blocks_a_loop_is_given_up_too_only_those_that_are_waited_for_are_told(stage: Stage) -> None:
    first, _ = stage.begin("a", rest), stage.begin("b", rest)
    blocking = stage.begin("c", stage.block)
    stage.give_up(first)
    assert stage.told == []
    stage.give_up(blocking)
    assert [(name, type(error)) for name, _, error in stage.told] == [("b", LoopEnded)]


def test_what_a_coroutine_left_behind_when_it_returned_is_nobody_s_work(stage: Stage) -> None:
    left: list[Any] = []

    async def leave() -> None:
        left.append(asyncio.create_task(later()))

    async def later() -> None:
        while not stage.told:
            await asyncio.sleep(0)
        left.append("blocks")
        stage.gate.wait()

    given_up = stage.begin("a", rest)
    stage.begin("b", rest)
    stage.begin("c", leave)
    eventually(lambda: "blocks" in left)
    stage.give_up(given_up)
    assert [(name, type(error)) for name, _, error in stage.told] == [("c", type(None)), ("b", LoopEnded)]


def test_a_call_that_is_told_to_have_returned_twice_is_counted_once() -> None:
    abandoned = AbandonedAttempts(SystemClock(), Telemetry(), 5)
    call = abandoned.watch(RunId("r"), "1", "act", 1)
    abandoned.give_up(call, "")
    abandoned.end(call)
    abandoned.end(call)
    assert abandoned.encode() is None
