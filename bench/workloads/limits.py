"""The limits of the machine: commits of PostgreSQL, confirms and deliveries of RabbitMQ, by the bare drivers."""

from __future__ import annotations

from bench.contests import Contest, Metric
from bench.setting import Setting

METRICS = (
    Metric("commits", "commits/s, one connection, prepared insert"),
    Metric("one", "messages/s, confirmed one by one"),
    Metric("window", "messages/s, confirmed in a window of 1,000"),
    Metric("consume", "messages/s, taken and acked by 100"),
)


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of both services."""
    job = {"seconds": setting.pick(1.0, 3.0), "count": setting.pick(5_000, 20_000), "database": "limits"}
    entrants = (
        setting.ours("limit: psycopg", "bench.limits.statements", way="commits", **job),
        setting.ours("limit: pika, quorum queue", "bench.limits.confirms", **job),
    )
    return [Contest("limits", "limits of the machine", METRICS, entrants)]
