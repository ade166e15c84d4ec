"""A signal is taken by a wait that somebody hears of, or is there for the next: also where tasks are cancelled."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime

import pytest
from sqlalchemy import select

import aft
from aft.store.db_time import now
from tests.setups import Setup, eventually, run_to
from tests.world import gates, ledger


class CheckFailed(Exception):
    """Raised by a branch, so that the others are cancelled."""


@aft.activity(name="signals_kept_check", levels=[])
def check(order: str) -> None:
    assert gates[order].wait(60)
    raise CheckFailed(order)


@aft.activity(name="signals_kept_handle")
def handle(order: str, command: str) -> None:
    ledger[order].append(command)


async def pause(how_long: str) -> None:
    await aft.sleep(how_long)


async def hear() -> str:
    return str(await aft.wait_for("word"))


@aft.flow(name="signals_kept_reminding")
async def reminding(order: str) -> str:
    """Whichever is first, a timer or the word; the word is waited for once more after the timer."""
    late, word = asyncio.create_task(pause("1s")), asyncio.create_task(hear())
    await asyncio.wait([late, word], return_when=asyncio.FIRST_COMPLETED)
    if word.done():
        late.cancel()
        return f"at once: {word.result()}"
    word.cancel()
    return f"later: {await aft.wait_for('word', timeout='20s', default='never')}"


@aft.flow(name="signals_kept_grouped")
async def grouped(order: str) -> str:
    """A check beside the wait: if that fails, the word is waited for all the same."""

    async def checks() -> None:
        await check.call(order)

    word = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(checks())
            word = group.create_task(hear())
    except* CheckFailed:
        pass
    if word is not None and word.done() and not word.cancelled():
        return f"before: {word.result()}"
    return f"after: {await aft.wait_for('word', timeout='20s', default='never')}"


@aft.flow(name="signals_kept_listening")
async def listening(order: str, generation: int = 0) -> str:
    """Handle commands beside a timer, and begin anew after it, so that the journal stays short."""

    async def listens() -> None:
        while True:
            command = str(await aft.wait_for("command"))
            await handle.call(order, command)

    rollover, listener = asyncio.create_task(pause("50ms")), asyncio.create_task(listens())
    await rollover
    listener.cancel()
    if "stop" in ledger[order]:
        return "stopped"
    aft.continue_as_new(order, generation + 1)


def is_past(app: aft.Aft, moment: datetime) -> bool:
    with app.store.read() as connection:
        found: datetime = connection.execute(select(now())).scalar_one()
    return found > moment


def test_a_word_that_comes_with_the_timer_that_cancels_its_wait_is_there_for_the_next(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(reminding, order)
        eventually(lambda: len(run.row.waits) == 2)
    # Nobody executes it now: the timer passes, and the word comes.
    assert run.signal("word", "yes")
    (until,) = [wait.until for wait in run.row.waits if wait.until is not None]
    eventually(lambda: is_past(app, until))
    with app.dispatcher():
        assert run.result(60) in ("at once: yes", "later: yes")


@pytest.mark.parametrize("attempt", range(4))
def test_a_word_that_comes_while_a_branch_fails_beside_its_wait_is_heard(
    setup: Setup, order: str, attempt: int
) -> None:
    with run_to(setup.app(), grouped, order) as run:
        eventually(lambda: bool(run.row.waits))
        sender = threading.Thread(target=run.signal, args=("word", "yes"))
        both = [sender, threading.Thread(target=gates[order].set)]
        for thread in both if attempt % 2 else reversed(both):
            thread.start()
        sender.join(30)
        assert run.result(60) in ("before: yes", "after: yes")


def test_no_command_is_lost_by_a_flow_that_begins_anew_beside_its_wait(setup: Setup, order: str) -> None:
    app = setup.app()
    commands = [f"c{number}" for number in range(12)]
    with app.dispatcher():
        run = app.submit(listening, order)
        eventually(lambda: bool(run.row.waits))
        for command in commands[:6]:
            run.signal("command", command)
    for command in commands[6:]:
        run.signal("command", command)
    with app.dispatcher():
        eventually(lambda: ledger[order] == commands)
        run.signal("command", "stop")
        assert run.result(60) == "stopped"
    assert ledger[order] == [*commands, "stop"]


@aft.activity(name="signals_kept_work")
def work(order: str) -> None:
    """Something beside."""


@aft.flow(name="signals_kept_consuming")
async def consuming(order: str, count: int) -> list[int]:
    """Take one signal after the other, beside branches at work."""
    got: list[int] = []

    async def take() -> None:
        for _ in range(count):
            got.append(int(await aft.wait_for("number", int)))

    async def toil() -> None:
        for _ in range(count):
            await work.call(order)

    await asyncio.gather(take(), *(toil() for _ in range(4)))
    return got


def test_signals_are_taken_once_and_in_order_beside_branches_at_work(setup: Setup, order: str) -> None:
    with run_to(setup.app(), consuming, order, 25) as run:
        for number in range(25):
            run.signal("number", number)
        assert run.result(60) == list(range(25))
