"""Compares mixed fleets, separate worker pools and rolling deploys with one pool, by the start of runs."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

METRICS = (
    Metric("start p50", "ms to the start, median", more=False),
    Metric("start p95", "ms to the start, p95", more=False),
    Metric("back p95", "ms late after a fault, p95", more=False),
    Metric("most", "ms to the start, most", more=False),
)

SHOP, SHOP_2, BANK = ["shop", 1], ["shop", 2], ["bank", 1]
#: The flows that each dispatcher has, and those whose runs come in.
FLEETS = {
    "aft, one pool: 2 dispatchers with the flow": ([[SHOP], [SHOP]], [SHOP]),
    "aft, mixed: beside 2 dispatchers without it": ([[SHOP], [SHOP], [BANK], [BANK]], [SHOP]),
    "aft, two pools, each with a flow of its own": ([[SHOP], [SHOP], [BANK], [BANK]], [SHOP, BANK]),
    "aft, rolling deploy: old and new version": ([[SHOP], [SHOP], [SHOP, SHOP_2], [SHOP, SHOP_2]], [SHOP, SHOP_2]),
}


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of all fleets, each with the same number of runs per second."""
    count, rate = setting.pick(100, 600), setting.pick(40.0, 40.0)
    entrants = tuple(
        setting.ours(name, "bench.ours.fleets", fleet=fleet, runs=runs, count=count, rate=rate)
        for name, (fleet, runs) in FLEETS.items()
    )
    return [
        Contest("fleets", "start of runs in mixed fleets", METRICS, entrants, (Goal("start p95", 150.0, each=True),))
    ]
