"""The findings of the report as one value, to be printed, drawn, and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from bench.scale import scenarios, validation
from bench.scale.costs import Costs
from bench.scale.model import Cluster, Load, Use, uses
from bench.scale.scenarios import Day, Deaths, Growth, Latency, Outage
from bench.scale.spread import Spread, spreads
from bench.scale.validation import Agreement

T = TypeVar("T")
#: Told what is being worked on.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Findings:
    """The findings of the report."""

    seed: int
    cluster: Cluster  #: that was simulated
    agreement: list[Agreement]
    erlang: tuple[float, float]
    crowd: dict[str, float]  #: cores of one database that 1,000 dispatchers with every role use, by what for
    growth: list[Growth]
    plans: list[tuple[float, Load, Cluster]]
    uses: list[Use]  #: how full everything is, at the peak of a day of 10⁹ runs on the smallest cluster
    spreads: list[Spread]
    latencies: list[Latency]
    day: Day
    deaths: list[Deaths]
    outages: list[Outage]


def find(costs: Costs, seed: int, progress: Progress) -> Findings:
    """Compute all findings, in about half a minute."""

    def ask(what: str, question: Callable[[], T]) -> T:
        progress(what)
        return question()

    cluster = scenarios.big(costs)
    plans = ask("clusters", lambda: scenarios.plans(costs))
    return Findings(
        seed=seed,
        cluster=cluster,
        agreement=ask("both simulations on a small shard", lambda: validation.agreement(seed)),
        erlang=ask("the exact one against Erlang's formula", lambda: validation.erlang(seed)),
        crowd=scenarios.crowd(costs),
        growth=ask("dispatchers on one database", lambda: scenarios.growth(costs)),
        plans=plans,
        uses=next(uses(costs, load, least) for runs, load, least in plans if runs == 1e9),
        spreads=spreads(cluster.shards, seed),
        latencies=ask("latency against utilisation", lambda: scenarios.latencies(costs, seed)),
        day=ask("a day of 10⁹ runs", lambda: scenarios.day(costs, cluster, seed)),
        deaths=ask("deaths", lambda: scenarios.deaths(costs, cluster, seed)),
        outages=ask("outages", lambda: scenarios.outages(costs, cluster, seed)),
    )


def encode(costs: Costs, found: Findings) -> str:
    """Encode costs and findings as JSON; infinite figures are null."""
    return json.dumps(_plain({"costs": asdict(costs), **asdict(found)}), indent=1) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return None if value in (float("inf"), float("-inf")) else float(f"{value:.6g}")
    return value
