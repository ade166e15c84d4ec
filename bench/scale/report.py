"""Prints the report: one table for each question, with one sentence of conclusion."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.scale import model
from bench.scale.costs import Costs
from bench.scale.findings import Findings
from bench.scale.scenarios import DAY, PEAK

#: How far a prediction for the measuring machine may be off: nothing in the model waits for a lock or for a disk.
FACTOR = 2.0
#: How far the two simulations may be apart.
TOLERANCE = 0.05


def show(console: Console, costs: Costs, found: Findings) -> None:
    """Print everything."""
    _costs(console, costs)
    _checks(console, costs, found)
    _crowd(console, found)
    _growth(console, found)
    _plans(console, costs, found)
    _uses(console, found)
    _spreads(console, found)
    _latencies(console, found)
    _day(console, found)
    _deaths(console, found)
    _outages(console, found)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _costs(console: Console, costs: Costs) -> None:
    table = _table("What was measured", "one", "Python ms", "database ms", "transactions", "WAL bytes")
    for name in ("submit", "run", "activity", "fault", "idle", "idle_work"):
        op = getattr(costs, name)
        table.add_row(
            name, f"{op.python_ms:.2f}", f"{op.database_ms:.2f}", f"{op.transactions:.1f}", f"{op.wal_bytes:,.0f}"
        )
    console.print(table)
    console.print("  " + ", ".join(f"{name}: {value}" for name, value in costs.origin.items()))
    console.print(
        f"  a look at one other worker {costs.look_us:.1f} µs, a sweep past one executed run {costs.sweep_us:.2f} µs; "
        f"one queue {costs.broker.messages_a_second:,.0f}/s, "
        f"out of one delay queue {costs.broker.delays_a_second:,.0f}/s\n"
    )


def _checks(console: Console, costs: Costs, found: Findings) -> None:
    table = _table("Does the model agree with what was seen?", "what", "model", "seen", "apart")
    for seen in costs.seen:
        guess = model.predicted(costs, seen.processes, seen.activities, seen.cores)
        what = f"{seen.processes} dispatchers on {seen.cores:.1f} free cores: runs/s"
        table.add_row(what, f"{guess:.0f}", f"{seen.runs_a_second:.0f}", f"× {guess / seen.runs_a_second:.2f}")
    for one in found.agreement:
        table.add_row(f"fluid for exact: {one.what}", f"{one.fluid:,.0f}", f"{one.exact:,.0f}", f"{one.apart:.1%}")
    exact, formula = found.erlang
    table.add_row(
        "Erlang for exact: mean wait, ms", f"{formula * 1e3:.1f}", f"{exact * 1e3:.1f}", f"{exact / formula - 1:.1%}"
    )
    console.print(table)
    console.print(f"  allowed: a factor of {FACTOR:.0f} for the machine, {TOLERANCE:.0%} for the simulations\n")


def _crowd(console: Console, found: Findings) -> None:
    table = _table("1,000 dispatchers, each with every role, on one database, at 1,000 runs/s", "for", "cores")
    for name, cores in found.crowd.items():
        table.add_row(name, f"{cores:.2f}")
    console.print(table, "")


def _growth(console: Console, found: Findings) -> None:
    table = _table(
        "One database of 16 cores: runs/s, and what stops them",
        "dispatchers",
        "every role each",
        "2 helpers, others work",
        "and a pooler",
        "cores used when idle",
    )
    for one in found.growth:
        cells = [_carried(carried) for carried in (one.everything, one.helped, one.pooled)]
        table.add_row(f"{one.dispatchers:,}", *cells, f"{one.overhead:.1f}")
    console.print(table, "")


def _carried(found: tuple[float, str]) -> str:
    rate, stopped = found
    return f"{rate:,.0f} ({stopped})" if rate > 1 else f"none ({stopped})"


def _plans(console: Console, costs: Costs, found: Findings) -> None:
    table = _table(
        f"The smallest cluster for so many runs a day, {PEAK} times as many at the peak",
        "runs a day",
        "runs/s at the peak",
        "dispatchers",
        "shards",
        "queues",
        "broker nodes",
        "TB in 30 days",
        "index depth",
        "hours to freeze",
    )
    for runs, load, cluster in found.plans:
        size = costs.bytes_of_run(load.activities, load.faults) * runs * 30
        table.add_row(
            f"{runs:,.0f}",
            f"{load.runs_a_second:,.0f}",
            f"{cluster.dispatchers:,}",
            f"{cluster.shards}",
            f"{cluster.shards * 7:,}",
            f"{cluster.broker_nodes}",
            f"{size / 1e12:,.2f}",
            f"{model.index_depth(runs * 30 / cluster.shards)}",
            f"{model.hours_to_freeze(costs, load, cluster):,.0f}",
        )
    console.print(table)
    one = costs.bytes_of_run(3, 0.03)
    console.print(f"  a run of 3 activities leaves {one:,.0f} bytes: 10⁹ of them are {one * 1e9 / 1e12:.1f} TB\n")


def _uses(console: Console, found: Findings) -> None:
    table = _table("How full is what, at the peak of 10⁹ runs a day on the smallest cluster?", "resource", "used")
    for use in found.uses:
        table.add_row(use.name, f"{use.share:.1%}")
    console.print(table, "")


def _spreads(console: Console, found: Findings) -> None:
    table = _table(
        f"How evenly are runs spread over {found.cluster.shards} shards?", "how", "busiest shard", "usable of all"
    )
    for one in found.spreads:
        table.add_row(one.how, f"× {one.busiest:.2f}", f"{one.usable:.0%}")
    console.print(table, "")


def _latencies(console: Console, found: Findings) -> None:
    table = _table(
        "How long a run of 3 activities takes, beyond its own code (exact)", "utilisation", "p50 ms", "p99 ms"
    )
    for one in found.latencies:
        table.add_row(f"{one.utilisation:.0%}", f"{one.p50 * 1e3:.0f}", f"{one.p99 * 1e3:.0f}")
    console.print(table, "")


def _day(console: Console, found: Findings) -> None:
    day, cluster = found.day, found.cluster
    table = _table(f"A day on {cluster.dispatchers:,} dispatchers and {cluster.shards} shards", "what", "figure")
    table.add_row("runs", f"{day.runs:,.0f}")
    table.add_row("ended", f"{day.ended:,.0f}")
    table.add_row("faults on the way", f"{day.faults:,.0f}")
    table.add_row("not ended at midnight", f"{day.left:,.0f}")
    table.add_row("fullest at the peak", f"{day.busiest:.0%}")
    table.add_row("most in delay queues", f"{day.delayed:,.0f}")
    table.add_row("longest wait for a slot", f"{day.wait:.1f} s")
    table.add_row(f"most runs in a day like this, {DAY:,} s", f"{day.most_a_day:,.0f}")
    console.print(table, "")


def _deaths(console: Console, found: Findings) -> None:
    table = _table(
        "A tenth of all dispatchers dies; others take their place after 5 min",
        "utilisation",
        "noticed after",
        "orphaned runs",
        "longest wait",
        "all well after",
    )
    for one in found.deaths:
        over = "not within an hour" if one.drained is None else f"{one.drained:,.0f} s"
        table.add_row(
            f"{one.utilisation:.0%}", f"{one.noticed:.0f} s", f"{one.orphans:,.0f}", f"{one.wait:.1f} s", over
        )
    console.print(table, "")


def _outages(console: Console, found: Findings) -> None:
    table = _table(
        "10,000,000 runs fail at once, and again until the outage is over",
        "outage, other load",
        "all recorded after",
        "longest delay queue",
        "failed attempts each",
        "stale messages",
        "others wait",
        "undone",
        "drained after its end",
    )
    for one in found.outages:
        table.add_row(
            f"{one.minutes:.0f} min, {one.utilisation:.0%}",
            f"{one.decided:,.0f} s",
            f"{one.longest:,.0f}",
            f"{one.attempts:.1f}",
            f"{one.stale:,.0f}",
            f"{one.wait:,.0f} s",
            f"{one.given_up:.0%}",
            f"{one.drained:,.0f} s",
        )
    console.print(table)
