"""The measured cost of each step, from ``costs.json``, which ``bench.scale.measure`` writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: The costs that the report is made from, unless another file is named.
FILE = Path(__file__).with_name("costs.json")


@dataclass(frozen=True)
class Op:
    """The cost of one operation in each resource; of an idle process for one second."""

    python_ms: float  #: CPU of the process that does it
    database_ms: float  #: CPU of PostgreSQL's backends
    transactions: float  #: begun and ended, reads too
    wal_bytes: float = 0.0

    def __add__(self, other: Op) -> Op:
        return Op(
            self.python_ms + other.python_ms,
            self.database_ms + other.database_ms,
            self.transactions + other.transactions,
            self.wal_bytes + other.wal_bytes,
        )

    def times(self, factor: float) -> Op:
        """Return the cost of this many operations."""
        return Op(
            self.python_ms * factor,
            self.database_ms * factor,
            self.transactions * factor,
            self.wal_bytes * factor,
        )


@dataclass(frozen=True)
class Broker:
    """The costs of RabbitMQ, on one node with quorum queues of one replica."""

    message_ms: float  #: CPU for a message: published, confirmed, delivered, acknowledged
    delay_ms: float  #: the same for one that also waits in a delay queue and is forwarded
    messages_a_second: float  #: through one queue, pipelined, by one publisher and one consumer
    delays_a_second: float  #: out of one delay queue, once they are due
    message_bytes: float  #: of one body


@dataclass(frozen=True)
class Stored:
    """The bytes in tables and indices that remain after a run has ended."""

    run: float
    activity: float  #: its journal row and its frame
    fault: float
    indices: float  #: the share of all of it that is indices


@dataclass(frozen=True)
class Seen:
    """The throughput of dispatchers on the measuring machine, to compare the model with."""

    processes: int
    activities: int
    runs_a_second: float
    cores: float  #: that were left for aft and its services by whatever else ran


@dataclass(frozen=True)
class Costs:
    """Everything that was measured, and on what."""

    origin: dict[str, str]
    submit: Op  #: make a run durable, in the caller's process
    run: Op  #: publish its message, claim it, end it
    activity: Op  #: call it, record its outcome and its frame
    fault: Op  #: record, decide, wait in a delay queue, claim again, replay
    idle: Op  #: one second of a dispatcher with every role that has nothing to do
    idle_work: Op  #: the same with the role ``work`` alone
    look_us: float  #: database CPU for one worker, each time one process looks who is dead
    sweep_us: float  #: database CPU for one run that is being executed, each time one process sweeps
    broker: Broker
    stored: Stored
    database_connections: float  #: of one dispatcher with eight slots
    broker_connections: float
    seen: list[Seen]

    def of_run(self, activities: float, faults: float) -> Op:
        """Return the cost of a run to its dispatcher, without its submission."""
        return self.run + self.activity.times(activities) + self.fault.times(faults)

    def bytes_of_run(self, activities: float, faults: float) -> float:
        """Return the bytes that a run leaves in the database."""
        return self.stored.run + self.stored.activity * activities + self.stored.fault * faults


def load(file: Path = FILE) -> Costs:
    """Read the measured costs."""
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    for name in ("submit", "run", "activity", "fault", "idle", "idle_work"):
        found[name] = Op(**found[name])
    found["broker"], found["stored"] = Broker(**found["broker"]), Stored(**found["stored"])
    found["seen"] = [Seen(**one) for one in found["seen"]]
    return Costs(**found)


def save(costs: Costs, file: Path = FILE) -> None:
    """Write the measured costs."""
    file.write_text(json.dumps(_rounded(asdict(costs)), indent=2) + "\n", "utf-8")


def _rounded(value: Any) -> Any:
    """Round to four digits: a measurement on a busy machine has no more."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
