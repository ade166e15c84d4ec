"""A part: half an hour of steady load, in which a dispatcher's memory must not grow."""

from __future__ import annotations

import statistics
import time

from chaos.checker import read_facts
from chaos.conclude import conclude
from chaos.drive import Driver
from chaos.fleet import Fleet
from chaos.load import plan_of
from chaos.results import Context, Result
from chaos.setups import private

SECONDS, RATE = 1800, 8
#: The share of the time after which caches are full.
WARM = 0.2
#: The growth of memory after that which is too much.
DRIFT = 0.05


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """Run the part on private servers: one process with every role, which is never killed."""
    begun = time.monotonic()
    seconds = ctx.size(SECONDS, 60)
    plans = [plan_of(ctx.seed, number) for number in range(seconds * RATE)]
    samples: list[tuple[float, int]] = []
    with private(combination, ctx.directory, lease="30s") as site:
        roles = [["relay", "intake", "sweep", "work"]]
        driver = Driver(site, plans, progress=ctx.progress, pause=1 / RATE)
        with Fleet(site.environ(), roles, site.log) as fleet, driver:
            fleet.start()

            def inject(done: float) -> bool:
                if not samples or time.monotonic() - samples[-1][0] >= 1.0:
                    samples.append((time.monotonic(), fleet.memory(0)))
                return True

            driver.under_fire(inject, "soaking")
            driver.settle()
            facts = read_facts(driver.store, site.namespace)
            fleet.stop()
    first, last = ends([size for _, size in samples])
    drift = last / first - 1
    figures = {"MB when warm": round(first / 1e6, 1), "MB in the end": round(last / 1e6, 1), "drift": round(drift, 4)}
    result = conclude("soak", ctx.seed, site, plans, facts, fleet, {}, begun, figures=figures)
    if drift > DRIFT:
        result.violations.append(f"memory grew by {drift:.1%} after it was warm")
    return result


def ends(samples: list[int]) -> tuple[float, float]:
    """Return the median memory after warm-up and at the end, each of a tenth of the samples."""
    warm = samples[int(len(samples) * WARM) :]
    tenth = max(1, len(warm) // 10)
    return statistics.median(warm[:tenth]), statistics.median(warm[-tenth:])
