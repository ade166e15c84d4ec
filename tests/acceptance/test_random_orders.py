"""Whatever people ask of a run, and whenever: each order is carried out or answered, and the run ends as it says.

The same runs are drawn each time, unless ``AFT_TEST_EXAMPLES`` says how many, or ``AFT_TEST_SEED`` which.
"""

from __future__ import annotations

import os
import random
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aft
from aft.runs.states import Status
from tests.acceptance.campground import TROUBLES, line, sides
from tests.acceptance.observe import children_of
from tests.acceptance.order_checks import check_end, check_rest, rests
from tests.setups import Setup, eventually
from tests.world import fixed, gates, ledger

EXAMPLES = int(os.environ.get("AFT_TEST_EXAMPLES", "8"))
SEED = os.environ.get("AFT_TEST_SEED", "" if "AFT_TEST_EXAMPLES" in os.environ else "15")
#: What is asked, and how often in comparison.
ASKS = {
    "to outer": 8,
    "to inner": 8,
    "to beside": 4,
    "to closed": 2,
    "suspend": 4,
    "resume": 4,
    "retry": 4,
    "cancel": 2,
    "abandon": 1,
    "release": 2,
}


@dataclass
class Case:
    """A run, and what is asked of it: at first, while it is executed or after it has come to rest, and later."""

    flow: Any
    troubles: list[str]
    catches: list[bool]
    first: list[str]
    later: list[str]
    while_executed: bool
    order: str = field(default_factory=lambda: secrets.token_hex(4))
    given: list[str] = field(default_factory=list)
    run: Any = None

    def __str__(self) -> str:
        how = "while it was executed" if self.while_executed else "at rest"
        return (
            f"{self.flow.name} {self.troubles} {self.catches}: {self.given}, the first {self.first} {how}, {self.run}"
        )

    def give(self, asks: list[str]) -> None:
        """Give orders, each by somebody else."""
        for ask in asks:
            self.try_to_give(ask, f"p{len(self.given)}")

    def try_to_give(self, ask: str, by: str) -> None:
        """Give an order, which may be refused at once."""
        try:
            if ask.startswith("to "):
                self.run.compensate(to=ask.removeprefix("to "), by=by)
            elif ask == "abandon":
                self.run.cancel(compensate=False, by=by)
            else:
                getattr(self.run, ask)(by=by)
            self.given.append(ask)
        except aft.OrderRefused:
            self.given.append(f"{ask} refused")


def is_held_up(case: Case) -> bool:
    """Whether a run has come to where something holds it up."""
    row = case.run.row
    held = any(what.strip("~")[1:] in ("2", "4") for what in ledger[case.order])
    return held or rests(row) or row.status is Status.RECOVERING


def is_resting(case: Case) -> bool:
    return rests(case.run.row)


def draw(rng: random.Random) -> Case:
    """Draw a run and its orders."""
    asks = partial(rng.choices, [*ASKS], [*ASKS.values()])
    return Case(
        flow=rng.choice([line, sides]),
        troubles=rng.choices(TROUBLES, k=3),
        catches=[rng.random() < 0.7 for _ in range(4)],
        first=asks(k=rng.choice([1, 2, 2, 3, 3, 4])),
        later=asks(k=rng.choice([0, 1, 2, 3])),
        while_executed=rng.random() < 0.5,
    )


def help_on(app: aft.Aft, case: Case) -> bool:
    """Do what a run waits for; tells whether it has ended."""
    row = case.run.row
    if row.ended_as is not None and row.status is row.ended_as and rests(row):
        return True
    if not rests(row):
        return False
    if row.status is Status.PARKED:
        case.try_to_give("retry", "helper")
    elif row.status is Status.SUSPENDED:
        case.try_to_give("resume", "helper")
    for one in (row, *children_of(app, case.run)):
        if one.ended_as is None and any(wait.name == "go" for wait in one.waits):
            with suppress(aft.OrderRefused):
                app.run(one.id).signal("go")
    return False


def test_each_order_is_carried_out_or_answered(setup: Setup) -> None:
    seed = int(SEED or random.randrange(10**6))
    rng, app, wrong = random.Random(seed), setup.app(), list[str]()
    cases = [draw(rng) for _ in range(EXAMPLES)]

    def judge(case: Case, found: list[str]) -> None:
        wrong.extend(f"{one}: {case} (seed {seed})" for one in found)

    def rest() -> None:
        for case in cases:
            eventually(partial(is_resting, case))
            judge(case, check_rest(app, case.run))

    with app.dispatcher(concurrency=2 * EXAMPLES):
        for case in cases:
            case.run = app.submit(case.flow, case.order, case.troubles, case.catches)
        for case in cases:
            eventually(partial(is_held_up, case))
            if case.while_executed:
                case.give(case.first)
            gates[case.order].set()
        rest()
    for case in cases:
        if not case.while_executed:
            case.give(case.first)
    with app.dispatcher(concurrency=2 * EXAMPLES):
        rest()
        for case in cases:
            case.give(case.later)
        rest()
        for case in cases:
            fixed.add(case.order)
            eventually(partial(help_on, app, case))
            again, released = "retry" in case.given, "release" in case.given
            judge(case, check_end(app, case.run, ledger[case.order], again=again, released=released))
    assert not wrong, "\n".join(wrong)
