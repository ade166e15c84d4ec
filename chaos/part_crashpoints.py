"""A part: a process is killed at each crash point, one after the other, and another process finishes.

Then also the other one is killed, at each of its first points: there it rescues what the first one has left. And so is
one that submits the runs itself, while it does; the next one asks for them again, under the same keys.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, cycle, islice

from chaos import crashpoints
from chaos.checker import check, read_facts
from chaos.crashpoints import Death, read_deaths
from chaos.drive import Driver
from chaos.fleet import GRACEFUL, End, Fleet
from chaos.load import Plan, StepPlan
from chaos.results import Context, Progress, Result, silent
from chaos.setups import COMBINATIONS, Site, private
from chaos.zygote import SUBMIT

ALL = ["intake", "work", "relay", "sweep"]
#: Scenarios at a time.
AT_ONCE = 2
#: Scenarios in a row that no crash point ended, after which there are no more: threads do not always pass them in the
#: same order.
LAST = 2 * AT_ONCE
#: Where those die, in turn, whose runs are then rescued by another, which dies as well.
FIRST = (25, 60)
#: Points of one that rescues: after these it does what any other does, too.
RESCUING = 50
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


#: Points of one that submits: both sides of each run's commit.
SUBMITTING = 2 * len(PLANS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one scenario: the crash points to die at, the deaths, and the violations."""

    numbers: tuple[int, ...]
    deaths: Sequence[Death]
    violations: Sequence[str]

    @property
    def crashed(self) -> bool:
        """Whether every process died that was to die."""
        return len(self.deaths) == len(self.numbers)


def run(ctx: Context) -> Result:
    """Run all combinations at every crash point; with ``quick`` at a sample of them."""
    begun = time.monotonic()
    faults: dict[str, int] = {}
    figures: dict[str, dict[str, int]] = {}
    violations: list[str] = []
    runs = 0
    for combination in COMBINATIONS:
        with private(combination, ctx.directory / combination, lease="1s", grace="500ms") as site:
            outcomes = list(crash(site, range(1, 10_000, 25) if ctx.quick else count(1), ctx.progress))
            rescuing = range(1, RESCUING + 1, ctx.size(1, 20))
            of_rescuers = list(crash(site, rescuing, ctx.progress, first=FIRST))
            of_submitters = list(crash(site, range(1, SUBMITTING + 1), ctx.progress, submits=True))
        faults[f"SIGKILL at crash points, {combination}"] = sum(each.crashed for each in outcomes)
        faults[f"SIGKILL of whoever rescues, {combination}"] = sum(each.crashed for each in of_rescuers)
        faults[f"SIGKILL of whoever submits, {combination}"] = sum(each.crashed for each in of_submitters)
        figures[f"points, {combination}"] = _points(outcomes)
        figures[f"points of whoever rescues, {combination}"] = _points(of_rescuers)
        figures[f"points of whoever submits, {combination}"] = _points(of_submitters)
        outcomes += of_rescuers + of_submitters
        runs += len(PLANS) * len(outcomes)
        violations += [f"{combination}, point {each.numbers}: {text}" for each in outcomes for text in each.violations]
    return Result("crashpoints", ctx.seed, runs, faults, violations, time.monotonic() - begun, figures)


def crash(
    site: Site,
    numbers: Iterable[int],
    progress: Progress = silent,
    *,
    first: Sequence[int] = (),
    submits: bool = False,
) -> Iterator[Outcome]:
    """Yield an outcome for each crash point: of any process, of a rescuer after ``first``, or of the submitter."""
    chains = zip(cycle([(each,) for each in first] or [()]), numbers, strict=False)
    unharmed = 0
    with Fleet({}, [ALL], site.log, concurrency=2) as fleet, ThreadPoolExecutor(AT_ONCE) as pool:
        while unharmed < LAST:
            batch = [(*before, number) for before, number in islice(chains, AT_ONCE)]
            if not batch:
                return
            for outcome in pool.map(lambda chain: crash_at(site.another(), fleet, *chain, submits=submits), batch):
                unharmed = 0 if outcome.crashed else unharmed + 1
                progress(outcome.numbers[-1], outcome.numbers[-1] + LAST, f"crash points, {site.name}")
                yield outcome


def crash_at(site: Site, fleet: Fleet, *numbers: int, submits: bool = False) -> Outcome:
    """Run one scenario: a process dies at each of these points in turn, and the next one finishes."""
    record = site.directory / f"{site.namespace}.deaths"
    fatal = [{crashpoints.NUMBER: str(number), crashpoints.RECORD: str(record)} for number in numbers]
    environ = site.environ()
    if submits:
        environ[SUBMIT] = json.dumps([plan.encode() for plan in PLANS])
    with Driver(site, PLANS, backlog=0 if submits else len(PLANS)) as driver:
        if not submits:
            driver.submitted()
        seat = fleet.add(ALL, environ, once=fatal)
        driver.settle(lapse=True)
        facts = read_facts(driver.store, site.namespace)
    ends = fleet.retire(seat)
    site.forget()
    deaths = read_deaths(record)
    # Short leases on a busy machine: an owner may well be late, and be overtaken.
    died = {death.pid: death.at for death in deaths}
    found = check(PLANS, site.ledger.read(), facts, stale=True, deaths=died)
    return Outcome(numbers, deaths, [*map(str, found), *unexpected(ends, died)])


def unexpected(ends: Sequence[End], died: Collection[int]) -> Iterator[str]:
    """Describe processes that ended neither at their crash point nor, as the last one, gracefully."""
    for end in ends:
        at_point = end.pid in died and end.status == -signal.SIGKILL
        in_order = end is ends[-1] and end.status in GRACEFUL
        if not at_point and not in_order:
            yield f"process {end.pid} ended with status {end.status}, and at no crash point"


def _points(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Count at which point the last process to die of each scenario died."""
    return dict(Counter(sorted(outcome.deaths[-1].point for outcome in outcomes if outcome.crashed)))
