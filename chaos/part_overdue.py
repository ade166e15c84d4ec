"""A part: a million runs that are overdue and have no message must not flood anything."""

from __future__ import annotations

import time

from sqlalchemy import delete, func, select, text

from aft.brokers.base import Topology
from aft.store import Store
from aft.store.tables import runs
from chaos.conclude import conclude
from chaos.facts import read_facts
from chaos.fleet import Fleet
from chaos.load import Plan, StepPlan, chaos_flow
from chaos.results import Context, Result
from chaos.setups import Site, private

RUNS, SECONDS = 1_000_000, 180
#: Seconds for which they have been there.
OVERDUE = 3600.0
CONCURRENCY = 8
ROLES = [["relay", "intake", "sweep", "work"]] * 2
#: Messages that may lie in the broker's queues: nothing was published for those runs.
MOST_MESSAGES = 100
#: The growth of a process's memory that is too much, in bytes.
MOST_GROWTH = 30_000_000


def plan(number: int) -> Plan:
    """Make the plan of each run."""
    return Plan(f"overdue-{number}", (StepPlan("plain"), StepPlan("plain")), "completed")


def run(ctx: Context) -> Result:
    """Run the part on PostgreSQL and RabbitMQ; observes what the fleet does in some minutes, not all runs."""
    begun = time.monotonic()
    wanted, seconds = ctx.size(RUNS, 20_000), ctx.size(SECONDS, 15)
    with private("postgresql+rabbitmq", ctx.directory, lease="10s") as site, site.app() as app:
        with Fleet(site.environ(), ROLES, site.log, concurrency=CONCURRENCY) as fleet:
            fleet.start()
            seed_overdue(app.store, site, wanted)
            before = [fleet.memory(index) for index in range(len(ROLES))]
            topology = Topology(site.namespace)
            most_messages = most_owned = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                most_messages = max(most_messages, sum(queue.messages for queue in app.broker.status(topology)))
                most_owned = max(most_owned, owned(app.store, site.namespace))
                ctx.progress(seconds - (end - time.monotonic()), seconds, "overdue runs")
                time.sleep(0.2)
            after = [fleet.memory(index) for index in range(len(ROLES))]
            fleet.stop()
        there = forget_untouched(app.store, site.namespace)
        facts = read_facts(app.store, site.namespace)
    ended = {key: run for key, run in facts.runs.items() if run.status == "completed"}
    plans = [plan(int(key.rpartition("-")[2])) for key in ended]
    growth = max(last - first for first, last in zip(before, after, strict=True))
    figures = {
        "runs that were overdue": wanted,
        "runs that ended meanwhile": len(ended),
        "most messages in the broker": most_messages,
        "most runs owned at a time": most_owned,
        "growth of memory in MB": round(growth / 1e6, 1),
    }
    faults = {"messages that never were": wanted}
    # Each of them was submitted an hour ago, and waits for all that are before it.
    still = OVERDUE + time.monotonic() - begun
    result = conclude("overdue", ctx.seed, site, plans, facts, fleet, faults, begun, figures=figures, still=still)
    if most_messages > MOST_MESSAGES:
        result.violations.append(f"{most_messages} messages lay in the broker")
    if most_owned > CONCURRENCY * len(ROLES):
        result.violations.append(f"{most_owned} runs were owned at a time, by {CONCURRENCY * len(ROLES)} slots")
    if growth > MOST_GROWTH:
        result.violations.append(f"a process grew by {growth / 1e6:.1f} MB")
    if there != wanted or not ended:
        result.violations.append(f"of {wanted} runs {there} are there, and {len(ended)} ended")
    return result


def seed_overdue(store: Store, site: Site, count: int) -> None:
    """Insert runs as ``submit`` would have an hour ago, with all their messages lost."""
    encoded = chaos_flow.arguments.encode(chaos_flow.arguments.bind((plan(0).encode(),), {}))
    before, _, after = encoded.partition(plan(0).name)
    statement = text(
        "INSERT INTO aft_runs (id, namespace, flow, version, key, args, status, root_id, wake_id, due_at, sweep_at,"
        " created_at, updated_at)"
        " SELECT id, :namespace, :flow, 1, 'overdue-' || n, :before || 'overdue-' || n || :after, 'running', id,"
        " id || '-wake', past, past, past, past FROM (SELECT n, now() - make_interval(secs => :ago) AS past,"
        " :namespace || '-' || n AS id FROM generate_series(1, :count) AS n) AS made"
    )
    given = {"namespace": site.namespace, "flow": chaos_flow.name, "before": before, "after": after, "count": count}
    with store.write() as connection:
        connection.execute(statement, {**given, "ago": OVERDUE})


def forget_untouched(store: Store, namespace: str) -> int:
    """Delete the runs that were never claimed; return how many runs there were before."""
    with store.write() as connection:
        there = connection.execute(select(func.count()).where(runs.c.namespace == namespace)).scalar_one()
        connection.execute(delete(runs).where(runs.c.namespace == namespace, runs.c.epoch == 0))
    return int(there)


def owned(store: Store, namespace: str) -> int:
    """Return how many runs have an owner now."""
    with store.read() as connection:
        return int(
            connection.execute(
                select(func.count()).where(runs.c.namespace == namespace, runs.c.worker_id.is_not(None))
            ).scalar_one()
        )
