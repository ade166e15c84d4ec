"""Flows for the tests of rules: a theatre that sells evenings. And short ways to teach it rules.

Activities keep a ledger, by show, and the keys that they were called with; ``trouble`` is what they raise next, be
it for any number of seats or for one, and ``gates`` hold them up.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from typing import Any

import aft
from aft.rules.exlets.primitives import Primitive
from aft.rules.rule_types import RuleType
from aft.rules.trees.tree import Node, Tree
from aft.runs.states import Status
from aft.telemetry import Event
from tests.setups import eventually
from tests.world import Busy, Refused, gates, keys, ledger, trouble

LEVELS = [aft.Level("50ms", tries=2), aft.Level("100ms")]


def _do(show: str, what: str, seats: int) -> int:
    keys[show, what].append(aft.current().key)
    if waiting := trouble.get((show, what)) or trouble.get((show, f"{what} {seats}")):
        ledger[show].append(f"{what} {seats}!")
        raise waiting.pop(0)
    if (gate := gates.get((show, what))) is not None:
        assert gate.wait(60)
    ledger[show].append(f"{what} {seats}")
    return seats * 10


_as_declared: dict[str, Any] = {"levels": LEVELS, "recoverable": (Busy,), "unrecoverable": (Refused,)}


def give_back(show: str, what: str, seats: int, result: int) -> None:
    ledger[show].append(f"un{what} {seats} for {result}")


@aft.compensate_with(give_back)
@aft.activity(name="theatre_sell", **_as_declared)
def sell(show: str, what: str, seats: int) -> int:
    """Sell seats; returns what they cost."""
    return _do(show, what, seats)


# Nobody waits for the end of its ladder: what comes too late by itself is tried until it is in time.
@aft.activity(name="theatre_rest", timeout="150ms", **{**_as_declared, "levels": [aft.Level("50ms", tries=100)]})
def rest(show: str, what: str) -> int:
    """Take a while, at most so long."""
    return _do(show, what, 0)


@aft.compensate_with(give_back)
@aft.activity(name="theatre_sell_async", **_as_declared)
async def sell_async(show: str, what: str, seats: int) -> int:
    """Sell seats, from an event loop."""
    return _do(show, what, seats)


def tell(found: Iterable[Any]) -> list[Any]:
    """What a flow has got: where it is no result, the word for that, which can be stored."""
    return [repr(one) if one is aft.FAILED or one is aft.REMOVED else one for one in found]


@aft.flow(name="theatre_evening")
def evening(show: str, seats: int = 1) -> list[Any]:
    """A hall, tickets and a bar, one after the other."""
    return tell(sell(show, what, seats) for what in ("hall", "tickets", "bar"))


@aft.flow(name="theatre_night")
def night(show: str) -> list[Any]:
    """Another flow with the same activity."""
    return [sell(show, "night", 1)]


@aft.flow(name="theatre_matinee")
def matinee(show: str) -> Any:
    """Something that has a time limit, between two others."""
    sell(show, "hall", 1)
    rested = rest(show, "pause")
    sell(show, "bar", 1)
    return rested


@aft.flow(name="theatre_two_stages")
def two_stages(show: str) -> list[Any]:
    """Two things with a time limit side by side, after one without."""
    sell(show, "hall", 1)
    return list(aft.parallel(rest.call(show, "left"), sell.call(show, "right", 1), rest.call(show, "middle")))


@aft.flow(name="theatre_rehearsal")
def rehearsal(show: str) -> list[Any]:
    """Something with a time limit beside something that has none."""
    return list(aft.parallel(rest.call(show, "pause"), sell.call(show, "bar", 1)))


@aft.flow(name="theatre_tour")
def tour(show: str) -> list[Any]:
    """Two places side by side, then a party."""
    sold = aft.parallel(sell.call(show, "left", 1), sell.call(show, "right", 2))
    return tell([*sold, sell(show, "party", 3)])


@aft.flow(name="theatre_tasks")
async def tasks(show: str) -> list[Any]:
    """Two tasks of two steps each, then a party."""

    async def branch(name: str) -> int:
        await sell_async(show, f"{name} there", 1)
        sold: int = await sell_async(show, f"{name} back", 1)
        return sold

    async with asyncio.TaskGroup() as group:
        begun = [group.create_task(branch(name)) for name in ("left", "right")]
    return tell([*(task.result() for task in begun), await sell_async(show, "party", 3)])


@aft.flow(name="theatre_gathered")
async def gathered(show: str) -> list[Any]:
    """Two tasks of two steps each, gathered."""

    async def branch(name: str) -> int:
        await sell_async(show, f"{name} there", 1)
        sold: int = await sell_async(show, f"{name} back", 1)
        return sold

    return tell(await asyncio.gather(branch("left"), branch("right")))


@aft.flow(name="theatre_detour")
def detour(show: str) -> Any:
    """Another way, if what is in the savepoint was undone."""
    sell(show, "hall", 1)
    try:
        with aft.savepoint("stalls"):
            sell(show, "stalls", 2)
            return sell(show, "tickets", 3)
    except (Refused, aft.UndoneByHand, aft.ConstraintViolated) as error:
        return [type(error).__name__, sell(show, "balcony", 4)]


@aft.activity(name="theatre_fire")
def fire(show: str) -> str:
    """End the process, whoever it is."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "nobody gets here"


@aft.flow(name="theatre_burns")
def burns(show: str) -> str:
    """Kills whoever executes it."""
    return fire(show)


@aft.flow(name="theatre_hiss")
def hiss(show: str) -> None:
    """Fails by itself, in no activity."""
    raise Refused("hiss")


@aft.flow(name="theatre_act")
def act(show: str, what: str) -> int:
    """A child."""
    return sell(show, what, 1)


@aft.flow(name="theatre_play")
def play(show: str) -> list[Any]:
    """A parent with one child between two steps of its own."""
    return [sell(show, "hall", 1), act(show, "act"), sell(show, "bar", 1)]


@aft.flow(name="theatre_gala")
def gala(show: str) -> Any:
    """A grandparent."""
    return play(show)


@aft.flow(name="theatre_premiere")
def premiere(show: str) -> list[Any]:
    """Waits for a word between two sales."""
    hall = sell(show, "hall", 1)
    aft.wait_for("word")
    return [hall, sell(show, "tickets", 1)]


#: What happens in a long evening.
NUMBERS = ("one", "two", "three", "four", "five")


@aft.flow(name="theatre_long_evening")
def long_evening(show: str) -> list[Any]:
    """Everything that a rule can make of a step, then a wait."""
    found: list[Any] = [sell(show, "one", 1), sell(show, "two", 1), sell(show, "three", 1)]
    found += aft.parallel(sell.call(show, "four", 1), sell.call(show, "beside", 2))
    try:
        sell(show, "five", 1)
    except Refused:
        found.append("five failed")
    aft.wait_for("word")
    return tell(found)


# Teaching -------------------------------------------------------------------------------------------------------


def rule(
    flow: aft.Flow[Any, Any] | str, on: RuleType | str, condition: str, exlet: str, activity: str | None = None
) -> Tree:
    """A tree of one rule; of an activity's type it is about every activity, unless one is named."""
    name = flow if isinstance(flow, str) else flow.name
    found = RuleType(on)
    about = "" if found in (RuleType.RUN_PRE, RuleType.RUN_POST, RuleType.RUN_TRIGGER) else activity or "*"
    return Tree(name, found, about, 0, {1: Node(1, condition, exlet)}, 1)


def tree_of(flow: aft.Flow[Any, Any], on: RuleType | str, rules: dict[str, str]) -> Tree:
    """A tree of alternatives: condition and exlet, one asked after the other."""
    last = len(rules)
    nodes = {
        number: Node(number, condition, exlet, otherwise=number + 1 if number < last else None)
        for number, (condition, exlet) in enumerate(rules.items(), start=1)
    }
    return Tree(flow.name, RuleType(on), "*", 0, nodes, 1)


def teach(
    app: aft.Aft,
    flow: aft.Flow[Any, Any] | str,
    on: RuleType | str,
    condition: str,
    *steps: Primitive,
    activity: str | None = None,
) -> None:
    """Teach a flow one rule, and the exlet that it chooses."""
    tree = rule(flow, on, condition, f"{on}_taught", activity)
    app.rules.save_all([tree], [aft.Exlet(f"{on}_taught", list(steps))])


def listen(app: aft.Aft) -> list[Event]:
    """Everything that an app tells from now on."""
    heard: list[Event] = []
    app.telemetry.subscribe(heard.append)
    return heard


def stops(run: aft.Run, status: Status) -> None:
    """Wait until a run is in a state, and nobody has it."""
    eventually(lambda: (row := run.row).status is status and row.worker_id is None)


def undone(run: aft.Run) -> None:
    """Wait until a run has undone everything."""
    try:
        run.result(60)
    except aft.FlowCompensated:
        return
    raise AssertionError(f"run {run.id} was not undone; it is {run.status.value}")
