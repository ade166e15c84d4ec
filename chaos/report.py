"""Formats the report of the long profile from the saved results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chaos.results import Result

HEAD = """# What chaos found

`make chaos` starts servers of its own, lets runs go through, and kills, stops and cuts whatever it can. Activities and
compensators append to a ledger that knows nothing of aft; in the end a checker compares it with the plans and with the
database: nothing lost or stuck, completed or fully undone, undone in order, same keys, transactional effects exactly
once, nothing executed again unless a process was killed in it, attempts counted and waited for, no word from a stale
owner.

*Stuck* is a run that lay still, at any time, for more than three leases, or 20 seconds where leases are short (a dead
process's message is sent after 10; ladders and the longest step take as long again): between being submitted and its
first line in the ledger, between two lines, or between the last one and its end, beyond the waits and steps of its
plan, and though it went on later. Stuck is also what has neither ended nor is parked that long after the faults are
over; they are when every run has come to rest, or when nothing at all has moved for a minute and ten leases. What other
runs do gives it no more time. The parts broker, crashpoints and fuzz look only at the second of the two.

*Parked* counts as broken, too, unless the run was parked for a crash loop, five processes were killed meanwhile, and
the ledger shows at least four of them in the same attempt, of which no outcome is recorded: that is what parking is
for, and one may have died between two steps, where the ledger is silent. *Executed again* counts as broken unless a
process was killed in it; not in the parts crashpoints, pauses, postgres and proxy, where an owner may be overtaken
without a death. How often it was is a figure of most parts. Overtaken ten times in the same attempt parks a run, too:
the first five are not counted as deaths.

Of some figures it is said what they shall be at most; one that is more fails the profile like a broken promise. In the
part takeover they are of the rounds in which the machine had its processors: one in which a host took more than a tenth
of their time for others, between the kill and the takeover, is told apart as *disturbed*, and made again.

The checker itself is tested: `tests/chaos/test_controls.py` seeds bugs into aft, and each must be found.

One part: `make chaos PART=pauses SEED=1`. Results are kept in `docs/chaos/`, so that an interrupted profile goes on
where it was; one of another seed or of older code is made again. The code of a part is aft, its migrations and what
tries to break it there, without the other parts. What is said above is true of the code as it is now: a result of older
code was looked at as that code did.
"""


def write_report(results: Mapping[str, Result], codes: Mapping[str, str]) -> str:
    """Return the text of the report; ``codes`` are the digests of the parts' present code."""
    return "\n".join([HEAD, *_table(results, codes), "", *_details(results)]).rstrip() + "\n"


def _table(results: Mapping[str, Result], codes: Mapping[str, str]) -> Iterator[str]:
    yield "| part | seed | date | code | runs | faults injected | broken promises | missed figures | seconds |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for part, result in results.items():
        made = f"{result.date or 'unknown'} | {_age(result, codes[part])}"
        faults = sum(result.faults.values())
        broken = f"{len(result.violations)} | {len(result.missed) if result.wanted else '-'}"
        numbers = f"{result.runs:,} | {faults:,} | {broken} | {result.seconds:,.0f}"
        yield f"| [{part}](#{part}) | {result.seed} | {made} | {numbers} |"


def _age(result: Result, code: str) -> str:
    if result.code == code:
        return f"as it is now, `{code}`"
    return f"older code, `{result.code}`" if result.code else "older code"


def _details(results: Mapping[str, Result]) -> Iterator[str]:
    for part, result in results.items():
        yield f"## {part}\n"
        if result.name != part:
            yield f"{result.name}.\n"
        yield from (f"- {what}: {count:,}" for what, count in result.faults.items())
        tabled = {name: figure for name, figure in result.figures.items() if _is_row(figure)}
        yield from (
            f"- {name}: {_spell(figure, result.wanted.get(name))}"
            for name, figure in result.figures.items()
            if name not in tabled
        )
        yield from _rows(tabled)
        yield from (f"- **missed**: {missed}" for missed in result.missed)
        yield from _violations(result.violations)
        yield ""


def _is_row(figure: Any) -> bool:
    """Whether a figure is a result of its own: one of a part's several configurations."""
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


def _spell(figure: Any, wanted: Mapping[str, float] | None = None) -> str:
    if isinstance(figure, Mapping):
        return ", ".join(f"{name} {_spell(value)}{_bound(name, wanted)}" for name, value in figure.items())
    if isinstance(figure, list | tuple):
        return "; ".join(map(_spell, figure))
    return f"{figure:,}" if isinstance(figure, int | float) else str(figure)


def _bound(number: str, wanted: Mapping[str, float] | None) -> str:
    """Format the bound of a number; empty if it has none."""
    return f" (wanted ≤ {wanted[number]:,})" if wanted and number in wanted else ""
