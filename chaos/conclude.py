"""Concludes a part: checks every promise and assembles the result."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from chaos import ledger_lines, takeover
from chaos.checker import check
from chaos.drive import stuck_after
from chaos.facts import Facts
from chaos.fleet import Fleet, Hit
from chaos.load import Plan
from chaos.results import Result, Wanted
from chaos.setups import Site


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
    wanted: Wanted | None = None,
    still: float | None = None,
    **flags: bool,
) -> Result:
    """Check every promise and return the result; ``hits``: kills to measure takeovers from; ``wanted``: bounds.

    ``still`` are the seconds for which a run may lie still: those after which it is stuck, unless a part says more.
    """
    entries = site.ledger.read()
    site.killed.write_text(json.dumps(fleet.deaths))
    still = stuck_after(site.lease) if still is None else still
    violations = check(plans, entries, facts, deaths=fleet.deaths, still=still, **flags)
    found: dict[str, Any] = dict(takeover.figures(plans, entries, hits, facts.runs)) if hits else {}
    found |= ledger_lines.figures(plans, entries, facts, fleet.deaths)
    if parked := sum(run.status == "parked" for run in facts.runs.values()):
        found["runs parked"] = parked
    if fleet.fell:
        found["processes that ended by themselves"] = dict(fleet.fell)
    texts = [*map(str, violations), *fleet.crashes]
    taken = round(time.monotonic() - begun, 1)
    result = Result(name, seed, len(plans), dict(faults), texts, taken, {**found, **(figures or {})})
    return result.compared(wanted or {})
