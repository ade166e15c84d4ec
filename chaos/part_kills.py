"""A part: random SIGKILLs of workers, dispatchers and relays under load; every fifth hit is a SIGTERM.

Who is asked to stop, as by a deploy, ends in order and is replaced, and nothing is done again for its sake.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from chaos.checker import read_facts
from chaos.conclude import conclude
from chaos.drive import Driver
from chaos.fleet import Fleet, Hit
from chaos.graceful import burned, read_buried
from chaos.load import Plan, plan_of
from chaos.results import Context, Progress, Result, silent
from chaos.setups import Site, private

#: Who sits where. Every kind of process is there twice, alone or together with others.
ROLES = (["work"], ["work", "relay"], ["intake", "sweep"], ["relay", "intake", "sweep", "work"])
RUNS, HITS = 20_030, 1_250
#: Of so many hits one is a SIGTERM.
STOP = 5
#: Hits that may be due and not done yet, before the load waits for them.
BEHIND = 5


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """Run the part on private servers."""
    plans = [plan_of(ctx.seed, number) for number in range(ctx.size(RUNS, 300))]
    with private(combination, ctx.directory) as site:
        return kill(site, plans, ctx.size(HITS, 15), ctx.seed, f"kills, {combination}", ctx.progress)


def kill(
    site: Site, plans: Sequence[Plan], hits: int, seed: int, name: str = "kills", progress: Progress = silent
) -> Result:
    """Run plans while ``hits`` processes are killed or stopped, evenly spread, and check every promise."""
    begun, draw = time.monotonic(), random.Random(f"kills {seed}")
    with Fleet(site.environ(), ROLES, site.log) as fleet, Driver(site, plans, progress=progress) as driver:
        fleet.start()

        def inject(done: float) -> bool:
            # All before the last runs end: a kill after that hits nobody.
            due = min(hits, int(hits * min(1.0, done / 0.95)) + 1)
            hit = len(fleet.kills) + len(fleet.stops)
            if hit < due and (victims := fleet.ready()):
                strike = fleet.ask_to_stop if hit % STOP == STOP - 1 else fleet.kill
                strike(draw.choice(victims))
            return due - hit < BEHIND

        driver.under_fire(inject)
        settled = driver.settle()
        facts, buried = read_facts(driver.store, site.namespace), read_buried(driver.store, site.namespace)
        fleet.stop()
    faults = _faults("SIGKILL", fleet.kills) + _faults("SIGTERM", fleet.stops)
    figures = {
        "seconds to rest": round(settled, 1),
        "stopped in order, by status": dict(Counter(fleet.stopped.values())),
    }
    result = conclude(
        name,
        seed,
        site,
        plans,
        facts,
        fleet,
        faults,
        begun,
        hits=fleet.kills,
        figures=figures,
        wanted={"takeover": {"p99": 3.0}},
    )
    lost = burned(fleet.stops, fleet.stopped, site.ledger.read(), buried)
    return replace(result, violations=[*result.violations, *lost])


def _faults(signal: str, hits: Sequence[Hit]) -> Counter[str]:
    return Counter(f"{signal} of {'+'.join(ROLES[hit.index])}" for hit in hits)
