"""Scenarios for the model and the simulations: capacity, latency, deaths and outages.

Everything here is a function of the costs and of a seed; the same ones give the same figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bench.scale.costs import Costs
from bench.scale.events import Simulation, births
from bench.scale.fluid import Fluid
from bench.scale.model import Cluster, Load, Machines, database_cpu, executing, most, plan
from bench.scale.shape import shape_of

DAY = 86_400
#: Seconds in one step of the day's simulation; every wait of the ladder is a multiple.
DAY_STEP = 5
#: The load at its highest, against its average over the day.
PEAK = 1.5
#: Processes of each shard that have every role; the others only execute runs.
HELPERS = 2
#: The cluster that is simulated.
DISPATCHERS = 1_000
#: The share of dispatchers that die, and for how many seconds nobody replaces them.
DYING, REPLACED_AFTER = 0.1, 300
#: Runs that an outage hits at once.
HIT = 10_000_000
#: Seconds after which an outage's end is no longer awaited.
HORIZON = 6 * 3600


@dataclass(frozen=True)
class Growth:
    """What a number of dispatchers carry on one database."""

    dispatchers: int
    everything: tuple[float, str]  #: each with every role: runs a second, and what stops it
    helped: tuple[float, str]  #: two with every role, the others only work
    pooled: tuple[float, str]  #: the same, behind a pooler
    overhead: float  #: cores of the database that are used before the first run, each with every role


def growth(costs: Costs) -> list[Growth]:
    """Return what one database carries, by the number of dispatchers."""
    found = []
    connected = int(Machines().database_connections / costs.database_connections)
    for dispatchers in sorted({1, 4, 16, 32, 64, connected, 128, 256, 512, 1_000}):
        cluster = Cluster(dispatchers)
        helped = replace(cluster, helpers=HELPERS)
        idle = sum(database_cpu(costs, Load(0.0), cluster).values()) * cluster.machines.database_cores
        found.append(
            Growth(
                dispatchers,
                most(costs, Load(1), cluster),
                most(costs, Load(1), helped),
                most(costs, Load(1), replace(helped, pooled=True)),
                idle,
            )
        )
    return found


def crowd(costs: Costs) -> dict[str, float]:
    """Return the cores of one database that 1,000 dispatchers use at 1,000 runs a second, by purpose."""
    cluster = Cluster(DISPATCHERS)
    found = database_cpu(costs, Load(1_000.0), cluster)
    return {name: share * cluster.machines.database_cores for name, share in found.items()}


def plans(costs: Costs) -> list[tuple[float, Load, Cluster]]:
    """Return the smallest cluster for each number of runs a day."""
    found = []
    for runs in (1e6, 1e7, 1e8, 1e9, 1e10):
        load = Load(runs / DAY * PEAK)
        found.append((runs, load, plan(costs, load, helpers=HELPERS)))
    return found


def big(costs: Costs) -> Cluster:
    """Return the cluster that is simulated: 1,000 dispatchers, and as many shards as they can fill."""
    rate, _ = most(costs, Load(1), Cluster(DISPATCHERS, 10_000, helpers=HELPERS, broker_nodes=300))
    return replace(plan(costs, Load(rate), helpers=HELPERS), dispatchers=DISPATCHERS)


@dataclass(frozen=True)
class Latency:
    """The duration of runs at one utilisation, without the user's code."""

    utilisation: float
    p50: float
    p99: float


def latencies(costs: Costs, seed: int) -> list[Latency]:
    """Simulate some thousand runs on one shard exactly, at rising load."""
    load = Load(1)
    shape = replace(shape_of(costs, load, Cluster(8, helpers=HELPERS)), cores=2.0)
    found = []
    for utilisation in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        rate = shape.capacity() * utilisation
        outcome = Simulation(shape, seed=seed).run(births(rate, 12_000 / rate, seed))
        took = np.array(outcome.took[len(outcome.took) // 5 :]) - shape.pause
        found.append(Latency(utilisation, *(float(value) for value in np.percentile(took, [50, 99]))))
    return found


@dataclass(frozen=True)
class Day:
    """The outcome of 10⁹ runs in a day."""

    runs: float
    ended: float
    faults: float
    left: float  #: that had not ended at midnight
    busiest: float  #: the fullest shard's utilisation at the peak
    delayed: float  #: runs in delay queues, at the most
    wait: float  #: seconds that a run waited for a slot, at the most
    most_a_day: float  #: runs that the same cluster would carry in a day of this shape


def day(costs: Costs, cluster: Cluster, seed: int, runs: float = 1e9) -> Day:
    """Simulate a day with a sinusoidal load; runs are spread over shards by the hash of their id."""
    source = np.random.default_rng(seed)
    load = Load(runs / DAY)
    fails = load.faults / (1 + load.faults)
    shape = shape_of(costs, replace(load, runs_a_second=load.runs_a_second * PEAK), cluster)
    fluid = Fluid(shape, cluster.shards, step=DAY_STEP)
    peak = 0.0
    made = 0.0
    for second in range(0, DAY, DAY_STEP):
        rate = load.runs_a_second * (1 + (PEAK - 1) * math.sin(2 * math.pi * second / DAY))
        arrivals = source.poisson(rate * DAY_STEP / cluster.shards, cluster.shards).astype(np.float64)
        fluid.advance(arrivals, 1.0, fails)
        made += float(arrivals.sum())
        peak = max(peak, rate)
    trace = fluid.trace
    capacity, _ = most(costs, load, cluster)
    full = capacity / cluster.machines.full
    return Day(
        runs=made,
        ended=float(np.array(trace.ended).sum()),
        faults=trace.failed,
        left=fluid.inside,
        busiest=peak / full,
        delayed=max(trace.delayed),
        wait=float(trace.waits.max()),
        most_a_day=capacity / PEAK * DAY,
    )


@dataclass(frozen=True)
class Deaths:
    """The outcome when a tenth of all dispatchers dies at once, and is replaced after five minutes."""

    utilisation: float
    noticed: float  #: seconds until their runs go on
    orphans: float  #: runs that they were executing
    wait: float  #: seconds that a run waited for a slot in the worst shard, at the most
    drained: float | None  #: seconds after the deaths until nobody waits any more


def deaths(costs: Costs, cluster: Cluster, seed: int) -> list[Deaths]:
    """Simulate deaths that are noticed by locks after two seconds, or by leases after thirty."""
    rate, _ = most(costs, Load(1), cluster)
    full = rate / cluster.machines.full
    cases = [(0.5, 2.0), (0.7, 2.0), (0.7, 30.0), (0.85, 2.0), (0.95, 2.0)]
    return [_die(costs, cluster, Load(full * share), share, noticed, seed) for share, noticed in cases]


def _die(costs: Costs, cluster: Cluster, load: Load, share: float, noticed: float, seed: int) -> Deaths:
    source = np.random.default_rng(seed)
    shape = shape_of(costs, load, cluster)
    fluid = Fluid(shape, cluster.shards)
    homes = source.permutation(np.arange(round(shape.dispatchers) * cluster.shards) % cluster.shards)
    dead = np.bincount(homes[: round(len(homes) * DYING)], minlength=cluster.shards).astype(np.float64)
    orphans = executing(load, cluster) * dead / cluster.each
    arrivals = np.full(cluster.shards, load.runs_a_second / cluster.shards)
    fails = load.faults / (1 + load.faults)
    warm, drained = 60, None
    for second in range(warm + 3_600):
        if second == warm:
            fluid.reshape(shape, dead)
        if second == warm + REPLACED_AFTER:
            fluid.reshape(shape)
        extra = orphans if second == warm + round(noticed) else 0.0
        fluid.advance(arrivals + extra, 1.0, fails)
        quiet = float(fluid.trace.wait[-1].max()) < 0.1
        if second >= warm + noticed + 1 and quiet and drained is None:
            drained = float(second - warm)
        if not quiet:
            drained = None
        elif second > warm + REPLACED_AFTER:
            break
    waits = fluid.trace.waits[warm:]
    return Deaths(share, noticed, float(orphans.sum()), float(waits.max()), drained)


@dataclass(frozen=True)
class Outage:
    """The outcome when ten million runs fail at once, and go on failing until an outage is over."""

    minutes: float
    utilisation: float  #: by all other runs
    decided: float  #: seconds until each of them has failed once, and waits
    longest: float  #: messages in the longest delay queue
    attempts: float  #: that failed, for each run that was hit
    stale: float  #: messages that the timer was quicker than
    wait: float  #: seconds that another run waited for a slot, at the most
    given_up: float  #: the share of them that was undone, because its ladder had ended
    drained: float  #: seconds after the outage's end until all have ended
    herd: list[float]  #: runs that wait for a slot, each minute


def outages(costs: Costs, cluster: Cluster, seed: int) -> list[Outage]:
    """Simulate short and long outages, in a cluster with much or little spare capacity."""
    cases = [(1.0, 0.35), (10.0, 0.35), (10.0, 0.7), (60.0, 0.35)]
    return [outage(costs, cluster, minutes, share, seed) for minutes, share in cases]


def outage(costs: Costs, cluster: Cluster, minutes: float, share: float, seed: int, hit: int = HIT) -> Outage:
    """Simulate one outage."""
    rate, _ = most(costs, Load(1), cluster)
    load = Load(rate / cluster.machines.full * share)
    source = np.random.default_rng(seed)
    fluid = Fluid(shape_of(costs, load, cluster), cluster.shards)
    fluid.hit(source.multinomial(hit, [1 / cluster.shards] * cluster.shards).astype(np.float64))
    arrivals = np.full(cluster.shards, load.runs_a_second / cluster.shards)
    fails = load.faults / (1 + load.faults)
    decided, second = math.inf, 0
    while second < HORIZON and (second < minutes * 60 or fluid.hit_left > 0.5):
        fluid.advance(arrivals, 1.0 if second < minutes * 60 else fails, fails)
        second += 1
        if decided == math.inf and fluid.hit_fresh < 1:
            decided = second
    return _tell(fluid, minutes, share, decided, second, hit)


def _tell(fluid: Fluid, minutes: float, share: float, decided: float, second: int, hit: int) -> Outage:
    trace = fluid.trace
    return Outage(
        minutes=minutes,
        utilisation=share,
        decided=decided,
        longest=max(trace.longest),
        attempts=trace.failed_hit / hit,
        stale=trace.stale,
        wait=float(trace.waits.max()),
        given_up=trace.given_up_hit / hit,
        drained=second - minutes * 60,
        herd=trace.ready[::60],
    )
