"""Measures what a run costs in CPU: Python and its parts, PostgreSQL, RabbitMQ."""

from __future__ import annotations

from bench.contests import Contest, Metric
from bench.ours.cost import HOPS
from bench.setting import Setting

PROCESSES = (
    Metric("python", "µs/run, Python", more=False),
    Metric("database", "µs/run, PostgreSQL", more=False),
    Metric("broker", "µs/run, RabbitMQ", more=False),
)
PARTS = tuple(Metric(hop, f"µs/run, Python: {hop}", more=False) for hop in HOPS)
#: What is measured, as it is called, and the kind of work.
DIRECT = {"aft, 3 activities by start": "start", "aft, the same on 32 threads": "threads"}
QUEUED = {
    "aft, 3 activities by submit and a dispatcher": "submit",
    "aft, an activity that fails twice": "faults",
    "aft, a saga, 4 undone": "saga",
}


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of all kinds of work; ``rest`` is what submits, and a dispatcher's other threads."""

    def make(name: str, metrics: tuple[Metric, ...], kinds: dict[str, str]) -> Contest:
        entrants = tuple(setting.ours(kind, "bench.ours.cost", work=work) for kind, work in kinds.items())
        return Contest("costs", name, metrics, entrants)

    return [make("CPU of a run", PROCESSES, DIRECT), make("CPU of a run in queues", (*PROCESSES, *PARTS), QUEUED)]
