"""Retries that wait cost no memory: 50,000 and 1,000,000 of them, seeded through the store and the broker port."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

METRICS = (
    Metric("before", "MB dispatcher, before", more=False),
    Metric("growth", "MB dispatcher, growth", more=False),
    Metric("queues", "MB queues of the vhost, as the broker counts them", more=False),
    Metric("broker", "MB broker, growth", more=False),
    Metric("broker after", "MB broker, after", more=False),
)


def contests(setting: Setting) -> list[Contest]:
    """Return a contest for each number of retries."""
    return [_contest(setting, count) for count in setting.pick([50_000], [50_000, 1_000_000])]


def _contest(setting: Setting, count: int) -> Contest:
    entrants = (setting.ours("aft", "bench.ours.pending", patience=900, count=count),)
    note = "The whole broker's memory moves with whoever else uses it; its queues' is only ours."
    # What is measured here are bytes, which do not vary; and a million messages take minutes.
    return Contest(
        "pending", f"{count:,} pending retries", METRICS, entrants, (Goal("growth", 20.0),), most_rounds=1, note=note
    )
