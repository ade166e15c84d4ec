"""A part: several processes at a time are stopped for longer than their lease, and then continued."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from chaos.checker import read_facts
from chaos.conclude import conclude
from chaos.drive import LOOK, Driver
from chaos.fleet import Fleet
from chaos.load import Plan, plan_of
from chaos.results import Context, Progress, Result, silent
from chaos.setups import Site, private

ROLES = (["work"], ["work"], ["work", "relay"], ["relay", "intake", "sweep", "work"], ["intake", "sweep"])
RUNS, PAUSES = 6_000, 500
#: Processes that may be stopped at the same time.
OVERLAP = 3
BEHIND = 5


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """Run the part on private servers; a third of the plans has a step long enough to be stopped in."""
    plans = [plan_of(ctx.seed, number, slow=0.3) for number in range(ctx.size(RUNS, 150))]
    with private(combination, ctx.directory, lease="2s") as site:
        return pause(site, plans, ctx.size(PAUSES, 10), ctx.seed, ctx.progress)


def pause(site: Site, plans: Sequence[Plan], pauses: int, seed: int, progress: Progress = silent) -> Result:
    """Run plans while processes are stopped for one to two and a half leases, and check every promise."""
    begun, draw = time.monotonic(), random.Random(f"pauses {seed}")
    until: dict[int, float] = {}
    with Fleet(site.environ(), ROLES, site.log) as fleet, Driver(site, plans, progress=progress) as driver:
        fleet.start()

        def resume_due() -> None:
            for index in [index for index, end in until.items() if end <= time.monotonic()]:
                fleet.resume(index)
                del until[index]

        def inject(done: float) -> bool:
            resume_due()
            due = min(pauses, int(pauses * min(1.0, done / 0.9)) + 1)
            victims = fleet.ready()
            if (
                len(fleet.pauses) < due
                and victims
                and len(until) < OVERLAP
                and fleet.pause(index := draw.choice(victims))
            ):
                until[index] = time.monotonic() + site.lease * draw.uniform(1.1, 2.5)
            return due - len(fleet.pauses) < BEHIND

        driver.under_fire(inject)
        while until:  # who was stopped when the last run came to rest is stopped beyond its lease as well
            time.sleep(LOOK)
            resume_due()
        settled = driver.settle(calm=2 * site.lease)
        facts = read_facts(driver.store, site.namespace)
        fleet.stop()
    beyond = [hit for hit in fleet.pauses if hit.until is not None and hit.until - hit.at > site.lease]
    faults = {"SIGSTOP beyond the lease, then SIGCONT": len(beyond)}
    figures = {"seconds to rest": round(settled, 1)}
    name = f"pauses, {site.name}"
    return conclude(name, seed, site, plans, facts, fleet, faults, begun, hits=beyond, figures=figures, stale=True)
