"""The report of the long profile, from the results that were kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.results import Result

HEAD = """# What chaos found

`make chaos` starts servers of its own, lets runs go through, and kills, stops and cuts whatever it can. Activities and
compensators append to a ledger that knows nothing of aft; in the end a checker compares it with the plans and with the
database: nothing lost or stuck, completed or fully undone, undone in order, same keys, transactional effects exactly
once, attempts counted and waited for, no word from a stale owner. A run that is neither ended nor parked three leases
after the last fault is stuck; a parked one counts as broken, too, unless the ledger shows five processes that were
killed on the same step, of which no outcome is recorded: that is what parking is for. The checker itself is tested:
`tests/chaos/test_controls.py` seeds bugs into aft, and each must be found.

One part: `make chaos PART=pauses SEED=1`. Results are kept in `docs/chaos/`, so that an interrupted profile goes on
where it was; remove a part's to see it again.
"""


def write_report(results: Mapping[str, Result]) -> str:
    """Spell the report."""
    return "\n".join([HEAD, *_table(results), "", *_details(results)]).rstrip() + "\n"


def _table(results: Mapping[str, Result]) -> Iterator[str]:
    yield "| part | seed | runs | faults injected | broken promises | seconds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for part, result in results.items():
        faults = sum(result.faults.values())
        numbers = f"{result.runs:,} | {faults:,} | {len(result.violations)} | {result.seconds:,.0f}"
        yield f"| [{part}](#{part}) | {result.seed} | {numbers} |"


def _details(results: Mapping[str, Result]) -> Iterator[str]:
    for part, result in results.items():
        yield f"## {part}\n"
        if result.name != part:
            yield f"{result.name}.\n"
        yield from (f"- {what}: {count:,}" for what, count in result.faults.items())
        tabled = {name: figure for name, figure in result.figures.items() if _is_row(figure)}
        yield from (f"- {name}: {_spell(figure)}" for name, figure in result.figures.items() if name not in tabled)
        yield from _rows(tabled)
        yield from _violations(result.violations)
        yield ""


def _is_row(figure: Any) -> bool:
    """Whether a figure is a small result of its own: one of several configurations of a part."""
    return isinstance(figure, Mapping) and {"runs", "faults", "violations"} <= figure.keys()


def _rows(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not figures:
        return
    yield "\n| configuration | runs | faults | broken promises | s under fire | longest s without progress |"
    yield "| --- | ---: | --- | ---: | ---: | ---: |"
    for name, row in figures.items():
        faults = ", ".join(f"{what}: {count}" for what, count in row["faults"].items())
        times = f"{row['seconds under fire']:.0f} | {row['longest without progress']:.1f}"
        yield f"| {name} | {row['runs']:,} | {faults} | {row['violations']} | {times} |"


def _violations(violations: Sequence[str]) -> Iterator[str]:
    for violation in violations[:20]:
        yield f"- **broken**: {violation}"
    if len(violations) > 20:
        yield f"- **and {len(violations) - 20} more**"


def _spell(figure: Any) -> str:
    if isinstance(figure, Mapping):
        return ", ".join(f"{name} {_spell(value)}" for name, value in figure.items())
    if isinstance(figure, list | tuple):
        return "; ".join(map(_spell, figure))
    return f"{figure:,}" if isinstance(figure, int | float) else str(figure)
