"""Draws three small line plots in SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.scale.findings import Findings

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 80, 150, 40, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


@dataclass(frozen=True)
class Line:
    """The points of one line."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """The range of an axis, and whether it is logarithmic."""

    name: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float, begin: float, end: float) -> float:
        """Return the position of a value between two coordinates."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return begin + min(1.0, max(0.0, share)) * (end - begin)

    def ticks(self) -> list[float]:
        """Return the values that are labelled."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1) if self.low <= 10.0**power <= self.high]
        return [self.low + (self.high - self.low) * part / 5 for part in range(6)]


def draw(title: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """Draw one plot."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.name)}</text>',
        f'<text x="14" y="{(TOP + bottom) / 2:.0f}" transform="rotate(-90 14 {(TOP + bottom) / 2:.0f})" '
        f'text-anchor="middle">{escape(y.name)}</text>',
    ]
    for tick in x.ticks():
        at = x.place(tick, LEFT, right)
        parts.append(f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{_short(tick)}</text>')
    for tick in y.ticks():
        at = y.place(tick, bottom, TOP)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        places = (f"{x.place(a, LEFT, right):.1f},{y.place(b, bottom, TOP):.1f}" for a, b in line.points)
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 8}" y="{TOP + 16 * (number + 1)}" fill="{colour}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.3g}"


def plots(found: Findings) -> dict[str, str]:
    """Return all plots, by file name."""
    return {"latency.svg": _latency(found), "one-database.svg": _growth(found), "outage.svg": _outage(found)}


def _latency(found: Findings) -> str:
    highest = max(one.p99 for one in found.latencies) * 1e3
    lines = [
        Line("p50", [(one.utilisation * 100, one.p50 * 1e3) for one in found.latencies]),
        Line("p99", [(one.utilisation * 100, one.p99 * 1e3) for one in found.latencies]),
    ]
    title = "A run of 3 activities: ms beyond its own code"
    return draw(title, Axis("utilisation, %", 0, 100), Axis("ms", 0, math.ceil(highest / 50) * 50), lines)


def _growth(found: Findings) -> str:
    most = max(one.helped[0] for one in found.growth) * 1.2
    lines = [
        Line("every role each", [(one.dispatchers, max(1.0, one.everything[0])) for one in found.growth]),
        Line("2 helpers", [(one.dispatchers, max(1.0, one.helped[0])) for one in found.growth]),
        Line("2 helpers, pooler", [(one.dispatchers, max(1.0, one.pooled[0])) for one in found.growth]),
    ]
    return draw("One database of 16 cores", Axis("dispatchers", 1, 1000, log=True), Axis("runs/s", 0, most), lines)


def _outage(found: Findings) -> str:
    longest = max(len(one.herd) for one in found.outages)
    highest = max(max(one.herd) for one in found.outages)
    lines = [
        Line(f"{one.minutes:.0f} min, {one.utilisation:.0%} load", list(enumerate(one.herd))) for one in found.outages
    ]
    title = "10 million runs fail at once: runs that wait for a slot"
    return draw(title, Axis("minutes", 0, longest), Axis("runs", 0, highest * 1.05), lines)
