"""The end of a part: what was found, put together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos import takeover
from tests.chaos.checker import check
from tests.chaos.facts import Facts
from tests.chaos.fleet import Fleet, Hit
from tests.chaos.load import Plan
from tests.chaos.results import Result
from tests.chaos.setups import Site


def conclude(
    name: str,
    seed: int,
    site: Site,
    plans: Sequence[Plan],
    facts: Facts,
    fleet: Fleet,
    faults: Mapping[str, int],
    begun: float,
    *,
    hits: Sequence[Hit] = (),
    figures: Mapping[str, Any] | None = None,
    **flags: bool,
) -> Result:
    """Check every promise; ``hits`` are the moments from which takeovers are measured."""
    entries = site.ledger.read()
    violations = check(plans, entries, facts, deaths=fleet.deaths, **flags)
    found: dict[str, Any] = dict(takeover.figures(plans, entries, hits)) if hits else {}
    if parked := sum(run.status == "parked" for run in facts.runs.values()):
        found["runs parked"] = parked
    if fleet.fell:
        found["processes that ended by themselves"] = dict(fleet.fell)
    texts = [*map(str, violations), *fleet.crashes]
    return Result(
        name, seed, len(plans), dict(faults), texts, round(time.monotonic() - begun, 1), {**found, **(figures or {})}
    )
