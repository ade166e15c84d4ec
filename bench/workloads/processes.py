"""Compares one, two and four dispatcher processes that drain the same backlog."""

from __future__ import annotations

from typing import Any

from bench.contests import Contest, Metric
from bench.setting import Setting


def contests(setting: Setting) -> list[Contest]:
    """Return the contests of the fault path, and of flows of three activities."""
    counts = setting.pick([1, 2], [1, 2, 4])
    kinds: list[tuple[str, dict[str, Any], str]] = [
        ("fault path", {"flow": "failing_1ms", "faults": 2, "count": setting.pick(500, 3000)}, "faults"),
        ("happy path", {"flow": "happy", "arguments": [3], "faults": 0, "count": setting.pick(500, 3000)}, "flows"),
    ]
    made: list[Contest] = []
    # A quick run has two processes against one in the fault path; the rest is not what changes from day to day.
    for title, job, what in setting.pick(kinds[:1], kinds):
        job["most"] = setting.most
        entrants = tuple(
            setting.ours(f"aft, {count} process{'es' * (count > 1)}", "bench.ours.drain", processes=count, **job)
            for count in counts
        )
        made.append(
            Contest(
                "processes",
                f"dispatcher processes, {title}",
                (Metric(what, f"{what}/s"),),
                entrants,
                most_rounds=setting.pick(1, None),
            )
        )
    return made
