"""How long does a run lie there when its worker is killed and everything else is at rest? One worker at a time.

The other parts kill under load, where a takeover also waits for the processor. Here processes as ``aft dispatcher``
starts them do a little ordinary work, so that none is brand new; then one run is executed alone, its worker is killed
in the middle of a step, and the next round comes when all processes are there again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial

import aft
from tests.chaos import lines, load, takeover
from tests.chaos.checker import check, read_facts
from tests.chaos.drive import stuck_after
from tests.chaos.fleet import Fleet
from tests.chaos.ledger import Entry
from tests.chaos.load import Plan, StepPlan
from tests.chaos.results import Context, Progress, Result, silent
from tests.chaos.setups import Site, private
from tests.setups import eventually

COMBINATIONS = ("postgresql+rabbitmq", "sqlite+embedded")
ROLES = (["relay", "intake", "sweep", "work"],) * 3
KILLS = 100
#: Quick runs before each kill, with a fault each.
ORDINARY = 6
#: Seconds that a step takes which a message is not held for any more; a lock tells of such a worker's death.
LONG = 5.0
#: What takeovers may take at most, in seconds.
WANTED = {"steps under 3 s": {"p50": 0.1}, "all": {"p99": 3.0}}


def run(ctx: Context) -> Result:
    """The part, on both set-ups: mostly steps under three seconds, and some longer ones."""
    begun, draw = time.monotonic(), random.Random(f"takeover {ctx.seed}")
    plans = [plan(draw, number) for number in range(ctx.size(KILLS, 8))]
    parts = []
    for combination in COMBINATIONS:
        with private(combination, ctx.directory / combination) as site:
            parts.append(kill_each(site, plans, ctx.seed, ctx.progress))
    result = Result(
        "takeover",
        ctx.seed,
        sum(part.runs for part in parts),
        {f"SIGKILL of the worker, {part.name}": part.faults["SIGKILL"] for part in parts},
        [violation for part in parts for violation in part.violations],
        round(time.monotonic() - begun, 1),
        {f"{name}, {part.name}": figure for part in parts for name, figure in part.figures.items()},
    )
    return result.compared({f"{name}, {part.name}": bounds for part in parts for name, bounds in WANTED.items()})


def plan(draw: random.Random, number: int) -> Plan:
    """One step that is long enough to be killed in, and one after it."""
    seconds = LONG if number % 5 == 4 else round(draw.uniform(0.3, 2.5), 3)
    return Plan(f"takeover-{number}", (StepPlan("slow", seconds=seconds), StepPlan("plain")), "completed")


def kill_each(site: Site, plans: Sequence[Plan], seed: int, progress: Progress = silent) -> Result:
    """Execute each plan, and kill its worker in the middle of its first step."""
    begun, draw = time.monotonic(), random.Random(f"takeover {seed}")
    with Fleet(site.environ(), ROLES, site.log) as fleet, site.app() as app:
        fleet.start()
        for number, each in enumerate(plans):
            go_through(app, site, [ordinary(number, place) for place in range(ORDINARY)])
            load.submit(app, [each])
            first = eventually(partial(find, site, each.name, "0", "begin"), within=30)
            time.sleep(each.steps[0].seconds * draw.uniform(0.1, 0.9))
            fleet.kill(next(index for index, seat in enumerate(fleet.seats) if seat.pid == first.pid))
            go_through(app, site, [each])
            fleet.wait_ready()
            progress(number + 1, len(plans), f"one kill at a time, {site.name}")
        fleet.stop()
        facts = read_facts(app.store, site.namespace)
    entries = site.ledger.read()
    broken = check(plans, entries, facts, deaths=fleet.deaths, still=stuck_after(site.lease))
    violations = [f"{site.name}: {each}" for each in broken]
    found = takeover.takeovers(plans, entries, fleet.kills)
    short = [each.seconds for each in found if _is_short(plans, each)]
    figures = {
        "steps under 3 s": takeover.percentiles(short),
        "all": takeover.percentiles(each.seconds for each in found),
        **lines.figures(plans, entries, facts, fleet.deaths),
    }
    faults = {"SIGKILL": len(fleet.kills)}
    return Result(site.name, seed, len(plans), faults, violations, time.monotonic() - begun, figures)


def ordinary(number: int, place: int) -> Plan:
    """A quick run with a fault."""
    return Plan(f"ordinary-{number}-{place}", (StepPlan("plain"), StepPlan("plain", failures=1)), "completed")


def go_through(app: aft.Aft, site: Site, plans: Sequence[Plan]) -> None:
    """Submit plans, unless they are there, and wait until they have ended."""
    load.submit(app, plans)
    for each in plans:
        eventually(partial(find, site, each.name, "1", "done"), within=60)


def find(site: Site, name: str, step: str, what: str) -> Entry | None:
    """The first such line; the ledger is asked, not the database, so that looking on does not slow anything down."""
    wanted = (name, step, what)
    return next((line for line in site.ledger.read() if (line.load, line.step, line.what) == wanted), None)


def _is_short(plans: Sequence[Plan], found: takeover.Takeover) -> bool:
    seconds = {plan.name: plan.steps[0].seconds for plan in plans}
    return seconds[found.load] < LONG
