"""A part: PostgreSQL is killed every few seconds, with all its processes, and started again under load."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from chaos.checker import read_facts
from chaos.conclude import conclude
from chaos.drive import Driver
from chaos.fleet import Fleet
from chaos.load import plan_of
from chaos.results import Context, Result
from chaos.setups import private
from tests.servers import PrivatePostgres

ROLES = (["work", "relay"], ["work"], ["relay", "intake", "sweep", "work"])
RUNS, KILLS = 20_030, 60
#: Seconds that the server lives at the least.
LIFE = 2.0


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """Run the part on private servers."""
    begun, draw = time.monotonic(), random.Random(f"postgres {ctx.seed}")
    plans = [plan_of(ctx.seed, number) for number in range(ctx.size(RUNS, 300))]
    kills = ctx.size(KILLS, 4)
    killed = 0
    with private(combination, ctx.directory) as site:
        assert site.postgres is not None
        with Fleet(site.environ(), ROLES, site.log) as fleet, Driver(site, plans, progress=ctx.progress) as driver:
            fleet.start()
            next_kill = time.monotonic() + LIFE

            def inject(done: float) -> bool:
                nonlocal killed, next_kill
                due = min(kills, int(kills * min(1.0, done / 0.95)) + 1)
                if killed < due and time.monotonic() >= next_kill:
                    assert site.postgres is not None
                    crash(site.postgres)
                    killed += 1
                    site.postgres.start()
                    next_kill = time.monotonic() + LIFE + draw.uniform(0.0, 2.0)
                return due - killed < 2

            driver.under_fire(inject)
            settled = driver.settle(calm=2 * site.lease)
            facts = read_facts(driver.store, site.namespace)
            fleet.stop()
    figures = {"seconds to rest": round(settled, 1)}
    faults = {"SIGKILL of PostgreSQL": killed}
    name = f"postgres killed, {combination}"
    # While the database is away nobody can tell a lease's end from its own side in time: owners may be overtaken.
    return conclude(
        name, ctx.seed, site, plans, facts, fleet, faults, begun, figures=figures, stale=True, database_away=True
    )


def crash(server: PrivatePostgres) -> None:
    """Kill the server and each of its processes, so that none finishes what it was doing."""
    assert server.pid is not None
    family = [server.pid, *_children(server.pid)]
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.kill()


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(stat.parent.name))
    return found
