"""A part: one RabbitMQ under load is killed again and again, and restarted with its data or empty."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator

from chaos.checker import read_facts
from chaos.conclude import conclude
from chaos.drive import Driver
from chaos.fleet import Fleet
from chaos.load import plan_of
from chaos.results import Context, Result
from chaos.setups import private
from tests.servers import PrivateRabbit

ROLES = (["work", "relay"], ["intake", "sweep"], ["relay", "intake", "sweep", "work"])
RUNS, FAULTS = 4_000, 40
#: Seconds that the broker lives at the least, and at the most.
LIFE = 2.0, 5.0
#: Runs under way, at the most; and at the least when the broker is struck.
BACKLOG, LEAST = 60, 20
RESTARTED, WIPED = "SIGKILL of RabbitMQ, started with its data", "SIGKILL of RabbitMQ, started empty"


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """Run the part on private servers; half of the faults wipe the broker."""
    begun, draw = time.monotonic(), random.Random(f"wiped {ctx.seed}")
    plans = [plan_of(ctx.seed, number, slow=0.3) for number in range(ctx.size(RUNS, 240))]
    wanted = ctx.size(FAULTS, 2)
    faults: Counter[str] = Counter()
    under_way: list[int] = []
    with private(combination, ctx.directory) as site:
        assert site.rabbit is not None
        strikes = _strike(site.rabbit, draw)
        load = Driver(site, plans, BACKLOG, ctx.progress)
        with Fleet(site.environ(), ROLES, site.log) as fleet, load as driver:
            fleet.start()
            next_strike = time.monotonic() + LIFE[0]

            def inject(done: float) -> bool:
                nonlocal next_strike
                due = min(wanted, int(wanted * min(1.0, done / 0.95)) + 1)
                strikes_now = faults.total() < due and time.monotonic() >= next_strike
                runs = driver.seen.made - driver.seen.resting
                if strikes_now and runs >= LEAST:
                    under_way.append(runs)
                    faults[next(strikes)] += 1
                    next_strike = time.monotonic() + draw.uniform(*LIFE)
                # Before it is struck the load comes, until there is enough of it.
                return strikes_now or faults.total() == due

            driver.under_fire(inject)
            settled = driver.settle()
            facts = read_facts(driver.store, site.namespace)
            fleet.stop()
    struck = {"median": statistics.median(under_way or [0]), "least": min(under_way, default=0)}
    figures = {"seconds to rest": round(settled, 1), "runs under way when it was struck": struck}
    name = f"RabbitMQ killed and wiped, {combination}"
    return conclude(name, ctx.seed, site, plans, facts, fleet, faults, begun, figures=figures)


def _strike(rabbit: PrivateRabbit, draw: random.Random) -> Iterator[str]:
    """Kill and restart the broker, with its data or without, equally often; yield which it was."""
    while True:
        for what in draw.sample((RESTARTED, WIPED), 2):
            if what == WIPED:
                rabbit.wipe()
            else:
                rabbit.kill()
                rabbit.start()
            yield what
