"""The parameters of one shard, for both simulations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.scale.costs import Costs
from bench.scale.model import Cluster, Load, database_cpu

#: The default ladder, ``10s*3, 1m*3, 10m*3``: seconds before the nth try after the first.
LADDER = (10.0,) * 3 + (60.0,) * 3 + (600.0,) * 3
#: Seconds after which the timer takes a run whose message has not come.
GRACE = 5.0


@dataclass(frozen=True)
class Shape:
    """A shard. An attempt is a number of visits, each first to its dispatcher's core, then to the database."""

    dispatchers: int
    cores: float  #: of the database, that are left for runs
    slots: int
    visits: int  #: transactions of one attempt
    python: float  #: seconds of an attempt that succeeds
    database: float
    python_failed: float  #: seconds of an attempt that fails, with all that is done about the fault
    database_failed: float
    pause: float  #: seconds that the user's code waits for others in an attempt
    spare: float = 1.0  #: the share of each dispatcher's core that idling leaves
    ladder: tuple[float, ...] = LADDER
    delays_a_second: float = float("inf")  #: that one delay queue forwards

    def capacity(self, failing: float = 0.0) -> float:
        """Return the attempts per second that fit when this share of them fails."""
        python = self.python * (1 - failing) + self.python_failed * failing
        database = self.database * (1 - failing) + self.database_failed * failing
        slots = self.dispatchers * self.slots / (self.pause + python + database)
        return min(self.dispatchers * self.spare / python, self.cores / database, slots)

    def without(self, dispatchers: int) -> Shape:
        """Return the shape after this many of its dispatchers have died."""
        return replace(self, dispatchers=self.dispatchers - dispatchers)


def shape_of(costs: Costs, load: Load, cluster: Cluster) -> Shape:
    """Return the shape of one shard of a cluster."""
    run, fault = costs.of_run(load.activities, 0), costs.fault
    overhead = {name: share for name, share in database_cpu(costs, load, cluster).items() if name != "runs"}
    submits = load.runs_a_second / cluster.shards * costs.submit.database_ms / 1e3
    cores = cluster.machines.database_cores * (1 - sum(overhead.values())) - submits
    idle = costs.idle if cluster.helpers is None else costs.idle_work
    return Shape(
        dispatchers=round(cluster.each),
        cores=cores,
        slots=cluster.slots,
        visits=max(1, round(run.transactions)),
        python=run.python_ms / 1e3,
        database=run.database_ms / 1e3,
        python_failed=fault.python_ms / 1e3,
        database_failed=fault.database_ms / 1e3,
        pause=load.activities * load.activity_seconds,
        spare=1 - idle.python_ms / 1e3,
        delays_a_second=costs.broker.delays_a_second,
    )
