"""Flows for the tests of rules: a revue of numbers; each call of one returns how many there were."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import select

import aft
from aft.app.process import Role
from aft.rules.exlets import plans
from aft.rules.exlets.plans import Plan
from aft.rules.exlets.primitives import Primitive
from aft.rules.rule_types import RuleType
from aft.runs.states import Status
from aft.store import tables
from tests.acceptance import theatre
from tests.setups import eventually
from tests.world import Busy, Refused, gates, keys, ledger, trouble

#: Nobody listens there.
NOBODY = "http://127.0.0.1:9/"
WORKS = [Role.WORK]
DECIDES = [role for role in Role if role is not Role.WORK]


def play(show: str) -> int:
    """Play the next number; ``trouble`` and ``gates`` know it as ``number 1``, ``number 2``, …"""
    keys[show, "number"].append(aft.current().key)
    nth = len(keys[show, "number"])
    if (gate := gates.get((show, f"number {nth}"))) is not None:
        assert gate.wait(60)
    if waiting := trouble.get((show, f"number {nth}")):
        raise waiting.pop(0)
    ledger[show].append(f"number {nth}")
    return nth


def take_off(show: str, result: int) -> None:
    ledger[show].append(f"off {result}")


_kept: dict[str, Any] = {"levels": theatre.LEVELS, "recoverable": (Busy,), "unrecoverable": (Refused,)}


@aft.compensate_with(take_off)
@aft.activity(name="revue_number", **_kept)
def number(show: str) -> int:
    return play(show)


@aft.compensate_with(take_off)
@aft.activity(name="revue_timed", timeout="1s", **_kept)
def timed(show: str) -> int:
    """At most so long."""
    return play(show)


@aft.activity(name="revue_bare", **_kept)
def bare(show: str) -> int:
    """Nobody can undo it."""
    return play(show)


@aft.activity(name="revue_poster", **_kept)
def poster(show: str, text: str) -> int:
    """Takes something long, and fails as ``number 1``, ``number 2``, …"""
    return play(show) + len(text)


@aft.flow(name="revue")
def revue(show: str) -> int:
    return number(show)


@aft.flow(name="revue_with_a_limit")
def limited(show: str) -> int:
    return timed(show)


@aft.flow(name="revue_for_good")
def for_good(show: str) -> int:
    return bare(show)


@aft.flow(name="revue_past_its_pivot")
def pivoted(show: str) -> int:
    aft.pivot()
    return number(show)


@aft.flow(name="revue_season")
def season(show: str, evening: int = 1) -> str:
    """The same step in each generation."""
    try:
        number(show)
    except aft.ConstraintViolated:
        return "caught"
    if evening < 3:
        aft.continue_as_new(show, evening + 1)
    return "over"


@aft.flow(name="revue_gathered")
async def gathered(show: str) -> list[Any]:
    """Activities that are gathered as they are, without a task's code around them."""
    sold = await asyncio.gather(*(theatre.sell_async(show, what, 1) for what in ("left", "middle", "right")))
    return theatre.tell(sold)


@aft.flow(name="revue_sketch")
def sketch(show: str) -> int:
    """A child that does something before it fails."""
    theatre.sell(show, "props", 1)
    return theatre.sell(show, "sketch", 1)


@aft.flow(name="revue_programme")
def programme(show: str) -> list[int]:
    """A parent with an effect of its own."""
    return [theatre.sell(show, "hall", 1), sketch(show)]


@aft.flow(name="revue_announced")
def announced(show: str, text: str) -> int:
    return poster(show, text)


# Asking what has become of it ---------------------------------------------------------------------------------------


def teach_numbers(app: aft.Aft, flow: aft.Flow[Any, Any], answers: dict[int, list[Primitive]]) -> None:
    """What is said after each number."""
    tree = theatre.tree_of(
        flow, RuleType.ACTIVITY_POST, {f"activity.result == {nth}": f"after_{nth}" for nth in answers}
    )
    app.rules.save_all([tree], [aft.Exlet(f"after_{nth}", steps) for nth, steps in answers.items()])


def plan_of(app: aft.Aft, run: aft.Run) -> Plan:
    with app.store.read() as connection:
        return plans.of_run(connection, run.id)[0]


def late_fates(app: aft.Aft, run: aft.Run) -> list[str]:
    table = tables.late_effects
    with app.store.read() as connection:
        return list(connection.execute(select(table.c.state).where(table.c.run_id == run.id)).scalars())


def stops_by_itself(run: aft.Run, status: Status) -> None:
    """Wait until a run is in a state, nobody has it, and nobody has called for it."""
    eventually(lambda: (row := run.row).status is status and row.worker_id is None and row.due_at is None)


def refuse(show: str, what: str = "tickets") -> None:
    trouble[show, what] = [Refused("no")]
