"""Finds the resource of a cluster that is full first, by adding up the measured costs.

A *shard* is one namespace in a database of its own, with queues of its own; a dispatcher belongs to one shard. What
is not measured but assumed of the machines is in ``Machines``, each with its reason. Costs are taken to be the same
on every core, and to grow in proportion: no cache that gets cold, no lock that is fought over. So the model says what
is impossible, and what may be possible; it promises nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.scale.costs import Costs

#: Seconds between two looks at all signs by one process, and between two of its sweeps (``store.liveness``,
#: ``sweeper``).
LOOK_EVERY, SWEEP_EVERY = 0.9, 1.0
#: Heartbeats a second of one process, with the default lease of 30 s.
BEATS = 3 / 30
#: Bytes of an index entry whose key is an id of 36 characters, and of a page that holds them.
ENTRY, PAGE = 56, 8192
#: Transaction numbers that PostgreSQL has before the oldest must be frozen.
MOST_XIDS = 2**31


@dataclass(frozen=True)
class Machines:
    """The assumptions about the machines, which are not measured."""

    database_cores: int = 16  #: of one PostgreSQL server; as fast as those that were measured
    database_wal_mb: float = 200.0  #: MB/s that its disk, and the line to its standby, take
    database_connections: int = 1_000  #: without a pooler; each is a process
    broker_cores: int = 8  #: of one RabbitMQ node
    broker_replicas: int = 3  #: of a quorum queue: each message costs CPU on so many nodes
    #: Messages a second through the leader of one quorum queue on such a node: what its makers show, in order of
    #: magnitude. Here one queue on two busy cores gave what ``costs.broker`` says.
    queue_limit: float = 30_000.0
    full: float = 0.7  #: how much of anything may be used; above that, waiting grows quickly


@dataclass(frozen=True)
class Load:
    """The load to be carried."""

    runs_a_second: float
    activities: float = 3.0
    faults: float = 0.03  #: of a run, on average
    activity_seconds: float = 0.05  #: that the user's code takes, mostly waiting for others

    @property
    def faults_a_second(self) -> float:
        return self.runs_a_second * self.faults


@dataclass(frozen=True)
class Cluster:
    """The cluster that carries the load."""

    dispatchers: int
    shards: int = 1
    slots: int = 32  #: runs that a dispatcher executes at a time
    #: Processes of each shard that also have the roles intake, relay and sweep; None: every one has, as is the default.
    helpers: int | None = None
    broker_nodes: int = 3
    pooled: bool = False  #: behind a pooler that lends a connection for a transaction: those of PostgreSQL suffice
    machines: Machines = Machines()

    @property
    def each(self) -> float:
        """The dispatchers of one shard."""
        return self.dispatchers / self.shards

    @property
    def sweeping(self) -> float:
        """The processes of one shard that sweep."""
        return self.each if self.helpers is None else min(self.each, self.helpers)


@dataclass(frozen=True)
class Use:
    """The utilisation of a resource; 1.0 is full."""

    name: str
    share: float


def uses(costs: Costs, load: Load, cluster: Cluster) -> list[Use]:
    """Return the utilisation of each resource, the fullest first."""
    found = [
        Use("dispatchers: CPU", _dispatcher_cpu(costs, load, cluster)),
        Use("dispatchers: slots", _slots(costs, load, cluster)),
        Use("database: CPU", sum(database_cpu(costs, load, cluster).values())),
        Use("database: WAL", _wal(costs, load, cluster)),
        Use("database: connections", _connections(costs, cluster)),
        Use("broker: CPU", _broker_cpu(costs, load, cluster)),
        Use("queue: resume", _resume(load, cluster)),
        Use("queue: delay", load.faults_a_second / cluster.shards / costs.broker.delays_a_second),
    ]
    return sorted(found, key=lambda use: -use.share)


def _dispatcher_cpu(costs: Costs, load: Load, cluster: Cluster) -> float:
    """Return the use of the dispatchers' CPU, one core each: Python executes one thread at a time."""
    idle = costs.idle if cluster.helpers is None else costs.idle_work
    work = costs.of_run(load.activities, load.faults).python_ms * load.runs_a_second / 1e3
    return work / cluster.dispatchers + idle.python_ms / 1e3


def _connections(costs: Costs, cluster: Cluster) -> float:
    """Return the use of database connections, which does not depend on the load."""
    if cluster.pooled:
        return 0.0
    # May be used up: unlike a core, the last one is as quick as the first.
    most = cluster.machines.database_connections / cluster.machines.full
    return costs.database_connections * cluster.each / most


def _slots(costs: Costs, load: Load, cluster: Cluster) -> float:
    one = costs.of_run(load.activities, load.faults)
    seconds = load.activities * load.activity_seconds + (one.python_ms + one.database_ms) / 1e3
    return load.runs_a_second * seconds / (cluster.dispatchers * cluster.slots)


def database_cpu(costs: Costs, load: Load, cluster: Cluster) -> dict[str, float]:
    """Return the use of the CPU of one shard's database, by kind of work."""
    cores = cluster.machines.database_cores
    rate = load.runs_a_second / cluster.shards
    run = costs.of_run(load.activities, load.faults).database_ms + costs.submit.database_ms
    poll_ms = costs.idle.database_ms / costs.idle.transactions
    polls = cluster.sweeping * costs.idle.transactions
    polls += (cluster.each - cluster.sweeping) * costs.idle_work.transactions
    looks = cluster.sweeping / LOOK_EVERY * cluster.each * costs.look_us
    sweeps = cluster.sweeping / SWEEP_EVERY * executing(load, cluster) * costs.sweep_us
    return {
        "runs": rate * run / 1e3 / cores,
        "polling": polls * poll_ms / 1e3 / cores,
        "looking who is dead": looks / 1e6 / cores,
        "sweeping": sweeps / 1e6 / cores,
        "heartbeats": cluster.each * BEATS * poll_ms * 2 / 1e3 / cores,
    }


def executing(load: Load, cluster: Cluster) -> float:
    """Return the number of runs of one shard that are executed at a time."""
    busy = load.runs_a_second / cluster.shards * load.activities * load.activity_seconds
    return min(cluster.each * cluster.slots, busy)


def _wal(costs: Costs, load: Load, cluster: Cluster) -> float:
    each = costs.of_run(load.activities, load.faults).wal_bytes + costs.submit.wal_bytes
    return load.runs_a_second / cluster.shards * each / 1e6 / cluster.machines.database_wal_mb


def _broker_cpu(costs: Costs, load: Load, cluster: Cluster) -> float:
    """Return the use of the broker's CPU: a message for each run, and for each fault two, one of them delayed."""
    broker, machines = costs.broker, cluster.machines
    work = load.runs_a_second * broker.message_ms + load.faults_a_second * (broker.message_ms + broker.delay_ms)
    return work * machines.broker_replicas / 1e3 / (cluster.broker_nodes * machines.broker_cores)


def _resume(load: Load, cluster: Cluster) -> float:
    """Return the use of a shard's resume queue, which takes each run once, and again after each fault."""
    return (load.runs_a_second + load.faults_a_second) / cluster.shards / cluster.machines.queue_limit


def most(costs: Costs, load: Load, cluster: Cluster) -> tuple[float, str]:
    """Return the runs per second that the cluster carries, and the resource that limits it."""
    limit = cluster.machines.full
    low, high = 0.0, 1e7
    for _ in range(60):
        middle = (low + high) / 2
        fullest = uses(costs, replace(load, runs_a_second=middle), cluster)[0]
        low, high = (middle, high) if fullest.share <= limit else (low, middle)
    return low, uses(costs, replace(load, runs_a_second=high), cluster)[0].name


def plan(costs: Costs, load: Load, *, helpers: int = 2, slots: int = 32) -> Cluster:
    """Return the smallest cluster that carries a load: shards first, then dispatchers, then broker nodes."""
    full = Machines().full
    for shards in _steps():
        dispatchers = max(shards * helpers, math.ceil(_dispatchers(costs, load, slots) / full))
        cluster = Cluster(dispatchers, shards, slots, helpers)
        nodes = 3 * math.ceil(_broker_cpu(costs, load, cluster) / full) if load.runs_a_second else 3
        cluster = Cluster(dispatchers, shards, slots, helpers, max(3, nodes))
        if all(use.share <= full for use in uses(costs, load, cluster) if not use.name.startswith("dispatchers")):
            return cluster
    raise AssertionError("no number of shards is enough")


def _steps() -> list[int]:
    return [*range(1, 17), *range(20, 64, 4), *range(64, 10_001, 8)]


def _dispatchers(costs: Costs, load: Load, slots: int) -> float:
    """Return how many dispatchers the load fills, by CPU or by slots."""
    one = Cluster(1, slots=slots, helpers=0)
    idle = costs.idle_work.python_ms / 1e3
    return max(_dispatcher_cpu(costs, load, one) - idle, _slots(costs, load, one)) / (1 - idle)


def predicted(costs: Costs, processes: int, activities: int, cores: float) -> float:
    """Return the most runs per second of dispatchers that share one machine with database and broker."""
    one = costs.of_run(activities, 0)
    each = one.python_ms / 1e3
    everything = (one.python_ms + one.database_ms + costs.broker.message_ms) / 1e3
    idle = processes * (costs.idle.python_ms + costs.idle.database_ms) / 1e3
    return min(processes * (1 - costs.idle.python_ms / 1e3) / each, max(0.0, cores - idle) / everything)


def index_depth(rows: float) -> int:
    """Return the number of pages from an index's root to a leaf, both counted."""
    return max(1, math.ceil(math.log(max(rows, 2)) / math.log(PAGE * 0.7 / ENTRY)))


def hours_to_freeze(costs: Costs, load: Load, cluster: Cluster) -> float:
    """Return the hours until a database has used up its transaction numbers, if nothing is frozen."""
    written = load.runs_a_second / cluster.shards * (1 + costs.of_run(load.activities, load.faults).transactions)
    return MOST_XIDS / max(written, 1e-9) / 3600
