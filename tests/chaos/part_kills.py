"""Random SIGKILLs of workers, dispatchers and relays while runs go through."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

from tests.chaos.campaign import conclude
from tests.chaos.checker import read_facts
from tests.chaos.drive import Driver
from tests.chaos.fleet import Fleet
from tests.chaos.load import Plan, plan_of
from tests.chaos.results import Context, Progress, Result, silent
from tests.chaos.setups import Site, private

#: Who sits where. Every kind of process is there twice, alone or together with others.
ROLES = (["work"], ["work", "relay"], ["intake", "sweep"], ["relay", "intake", "sweep", "work"])
RUNS, KILLS = 20_030, 1_000
#: Kills that may be due and not done yet, before the load waits for them.
BEHIND = 5


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """The part, on private servers."""
    plans = [plan_of(ctx.seed, number) for number in range(ctx.size(RUNS, 300))]
    with private(combination, ctx.directory) as site:
        return kill(site, plans, ctx.size(KILLS, 15), ctx.seed, f"kills, {combination}", ctx.progress)


def kill(
    site: Site, plans: Sequence[Plan], kills: int, seed: int, name: str = "kills", progress: Progress = silent
) -> Result:
    """Let plans run while so many processes are killed, spread evenly over them, and check every promise."""
    begun, draw = time.monotonic(), random.Random(f"kills {seed}")
    with Fleet(site.environ(), ROLES, site.log) as fleet, Driver(site, plans, progress=progress) as driver:
        fleet.start()

        def inject(done: float) -> bool:
            # All before the last runs end: a kill after that hits nobody.
            due = min(kills, int(kills * min(1.0, done / 0.95)) + 1)
            if len(fleet.kills) < due and (victims := fleet.ready()):
                fleet.kill(draw.choice(victims))
            return due - len(fleet.kills) < BEHIND

        driver.under_fire(inject)
        settled = driver.settle()
        facts = read_facts(driver.store, site.namespace)
        fleet.stop()
    faults = Counter(f"SIGKILL of {'+'.join(ROLES[hit.index])}" for hit in fleet.kills)
    figures = {"seconds to rest": round(settled, 1)}
    return conclude(name, seed, site, plans, facts, fleet, faults, begun, hits=fleet.kills, figures=figures)
