"""A process is killed at every point before and after a durable step, one after the other; another one finishes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from tests.chaos import crashpoints
from tests.chaos.checker import Violation, check, read_facts
from tests.chaos.drive import Driver
from tests.chaos.fleet import Fleet
from tests.chaos.load import Plan, StepPlan
from tests.chaos.results import Context, Progress, Result, silent
from tests.chaos.setups import COMBINATIONS, Site, private

ALL = ["intake", "work", "relay", "sweep"]
#: Scenarios at a time.
AT_ONCE = 2
#: Scenarios in a row that no crash point ended, after which there are no more: threads do not always pass them in the
#: same order.
LAST = 2 * AT_ONCE
#: What has to happen in a scenario: straight on; through a ladder; undone, with trouble on the way back; a savepoint.
PLANS = (
    Plan("straight", (StepPlan("plain"), StepPlan("booked"), StepPlan("bare")), "completed"),
    Plan("ladder", (StepPlan("plain", failures=2), StepPlan("started", failures=1)), "completed"),
    Plan(
        "undone",
        (StepPlan("plain"), StepPlan("booked", undo_failures=1), StepPlan("started"), StepPlan("doomed", 0, 1)),
        "compensated",
    ),
    Plan("caught", (StepPlan("plain"), StepPlan("plain"), StepPlan("fatal"), StepPlan("booked")), "completed", (1, 3)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one scenario: was the point reached, and what was broken."""

    number: int
    crashed: bool
    violations: list[Violation]


def run(ctx: Context) -> Result:
    """The part: all combinations, every point; a sample of them if it shall be quick."""
    begun = time.monotonic()
    faults: dict[str, int] = {}
    violations: list[str] = []
    runs = 0
    for combination in COMBINATIONS:
        with private(combination, ctx.directory / combination, lease="1s", grace="500ms") as site:
            numbers: Iterable[int] = range(1, 10_000, 25) if ctx.quick else count(1)
            outcomes = list(crash(site, numbers, ctx.progress))
        crashed = sum(outcome.crashed for outcome in outcomes)
        faults[f"SIGKILL at crash points, {combination}"] = crashed
        runs += len(PLANS) * len(outcomes)
        violations += [f"{combination}, point {each.number}: {text}" for each in outcomes for text in each.violations]
    return Result("crashpoints", ctx.seed, runs, faults, violations, time.monotonic() - begun)


def crash(site: Site, numbers: Iterable[int], progress: Progress = silent) -> Iterator[Outcome]:
    """Go through crash points until there are no more of them."""
    ahead, unharmed = iter(numbers), 0
    with Fleet({}, [ALL], site.log, concurrency=2) as fleet, ThreadPoolExecutor(AT_ONCE) as pool:
        while unharmed < LAST:
            batch = [number for _, number in zip(range(AT_ONCE), ahead, strict=False)]
            if not batch:
                return
            for outcome in pool.map(lambda number: crash_at(site.another(), fleet, number), batch):
                unharmed = 0 if outcome.crashed else unharmed + 1
                progress(outcome.number, outcome.number + LAST, f"crash points, {site.name}")
                yield outcome


def crash_at(site: Site, fleet: Fleet, number: int) -> Outcome:
    """One scenario: a process that is killed at this point, then one that lives."""
    with Driver(site, PLANS) as driver:
        driver.submitted()
        seat = fleet.add(ALL, site.environ(), once={crashpoints.NUMBER: str(number)})
        driver.settle(lapse=True)
        facts = read_facts(driver.store, site.namespace)
    crashed = fleet.retire(seat)
    site.forget()
    # Short leases on a busy machine: an owner may well be late, and be overtaken.
    return Outcome(number, crashed, check(PLANS, site.ledger.read(), facts, stale=True))
