"""Plays contests: entrants take turns round by round, so that all meet the same conditions.

The one place where rounds are played and figures are made of them: a figure is the median of its rounds with the
least and the greatest; a ratio is that of two medians of the same contest.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: What one round gave: a number for each metric.
Answer = Mapping[str, float]
#: Entrants whose name begins so are aft; the best of them counts.
OURS = "aft"


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity that is measured; ``more``: whether higher is better."""

    name: str
    unit: str
    more: bool = True


@dataclass(frozen=True, slots=True)
class Entrant:
    """A participant of a contest: aft, a peer, or a limit."""

    name: str
    play: Callable[[], Answer]

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of aft's: a multiple of a rival's figure, or, without a rival, an absolute value.

    The best of ours counts; with ``ours`` the entrant of that name; without a rival and with ``each``, every one.
    """

    metric: str
    limit: float
    rival: str | None = None
    each: bool = False
    ours: str | None = None


@dataclass(frozen=True, slots=True)
class Contest:
    """One workload at one size, and its entrants."""

    workload: str
    title: str
    metrics: tuple[Metric, ...]
    entrants: tuple[Entrant, ...]
    goals: tuple[Goal, ...] = ()
    #: Rounds at the most, for what takes minutes or does not vary; None: as many as asked for.
    most_rounds: int | None = None
    note: str = ""


def file_name(title: str) -> str:
    """Return the file name of a contest's plot."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + ".svg"


@dataclass(slots=True)
class Figure:
    """The values of one entrant in one metric, over all rounds."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


@dataclass(slots=True)
class Outcome:
    """The outcome of a contest: figures by metric and entrant, and the entrants that failed, with the reasons."""

    contest: Contest
    figures: dict[str, dict[str, Figure]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    #: What playing took, all rounds together, with all that is not measured.
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, entrant: Entrant, answer: Answer) -> None:
        """Add the figures of one round."""
        for metric in self.contest.metrics:
            if metric.name in answer:
                of_metric = self.figures.setdefault(metric.name, {})
                of_metric.setdefault(entrant.name, Figure()).values.append(float(answer[metric.name]))

    def best(self, metric: Metric) -> str | None:
        """Return the name of our best entrant; None if there is none."""
        ours = self._ours(metric)
        if not ours:
            return None
        choose = max if metric.more else min
        return choose(ours, key=lambda name: ours[name].median)

    def _ours(self, metric: Metric) -> dict[str, Figure]:
        return {name: figure for name, figure in self.figures.get(metric.name, {}).items() if name.startswith(OURS)}

    def ratio(self, metric: Metric, rival: str, ours: str | None = None) -> float | None:
        """Return how many times better than ``rival`` our best is, or the entrant ``ours``.

        Above 1 is better, whatever the metric.
        """
        name, figures = ours or self.best(metric), self.figures.get(metric.name, {})
        if name not in figures or rival not in figures:
            return None
        mine, theirs = figures[name].median, figures[rival].median
        above, below = (mine, theirs) if metric.more else (theirs, mine)
        return above / below if below else None

    def reached(self, goal: Goal) -> bool | None:
        """Return whether a goal was reached; None if that was not measured."""
        metric = next(metric for metric in self.contest.metrics if metric.name == goal.metric)
        if goal.rival is not None:
            ratio = self.ratio(metric, goal.rival, goal.ours)
            return None if ratio is None else ratio >= goal.limit
        ours = [figure.median for figure in self._ours(metric).values()]
        if not ours:
            return None
        counts = (min if goal.each else max)(ours) if metric.more else (max if goal.each else min)(ours)
        return counts >= goal.limit if metric.more else counts <= goal.limit


def play(contest: Contest, rounds: int, turn: Callable[[str], None]) -> Outcome:
    """Play all rounds; ``turn`` is called with the name of each entrant. One that fails is not played again."""
    outcome = Outcome(contest)
    for number in range(rounds_of(contest, rounds)):
        for entrant in _rotated(contest.entrants, number):
            turn(entrant.name)
            if entrant.name in outcome.failures:
                continue
            began = time.monotonic()
            try:
                outcome.add(entrant, entrant.play())
            except Exception as error:  # a peer that breaks must not end the others' contest
                outcome.failures[entrant.name] = str(error) or type(error).__name__
            spent = time.monotonic() - began
            outcome.seconds[entrant.name] = round(outcome.seconds.get(entrant.name, 0.0) + spent, 1)
    return outcome


def rounds_of(contest: Contest, rounds: int) -> int:
    """Return the number of rounds of a contest."""
    return rounds if contest.most_rounds is None else min(rounds, contest.most_rounds)


def _rotated(entrants: Sequence[Entrant], by: int) -> list[Entrant]:
    """Rotate the entrants, so that each round begins with another one on the cold machine."""
    by %= len(entrants)
    return [*entrants[by:], *entrants[:by]]
