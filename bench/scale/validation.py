"""Checks the simulations: the fluid one against the exact one, and the exact one against theory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.scale.erlang import mean_wait
from bench.scale.events import Outcome, Simulation, births
from bench.scale.fluid import Fluid, Numbers
from bench.scale.shape import Shape

#: A shard that is small enough to be followed run by run; its figures are round ones near those that were measured.
SMALL = Shape(4, 2.0, 8, 4, 0.02, 0.006, 0.02, 0.005, 0.05, ladder=(10.0, 10.0, 30.0))
#: Seconds in which runs arrive, and between which every attempt fails.
SECONDS, BEGAN, OVER = 120.0, 20.0, 50.0
#: Utilisation by what arrives, before anything fails.
SHARE = 0.6


@dataclass(frozen=True)
class Agreement:
    """One figure, by both simulations."""

    what: str
    fluid: float
    exact: float

    @property
    def apart(self) -> float:
        """The relative difference of the two."""
        return abs(self.fluid - self.exact) / max(self.exact, 1e-9)


def agreement(seed: int) -> list[Agreement]:
    """Compare both simulations of an outage: runs ended and waiting at certain times, and failed attempts."""
    rate = SMALL.capacity() * SHARE
    exact = Simulation(SMALL, lambda at, _: BEGAN <= at < OVER, seed).run(births(rate, SECONDS, seed))
    fluid = _flow(rate)
    ended = np.cumsum([float(each.sum()) for each in fluid.trace.ended])
    found = [
        Agreement(f"ended by {at:.0f} s", float(ended[int(at / fluid.step) - 1]), _ended_by(exact, at))
        for at in (30.0, 60.0, 75.0, 90.0, 110.0)
    ]
    ready, delayed = (max(row[column] for row in exact.waiting) for column in (1, 2))
    return [
        *found,
        Agreement("most ready", max(fluid.trace.ready), ready),
        Agreement("most in delay queues", max(fluid.trace.delayed), delayed),
        Agreement("attempts that failed", fluid.trace.failed, exact.attempts - len(exact.ended)),
    ]


def _ended_by(outcome: Outcome, at: float) -> float:
    return float(sum(1 for ended in outcome.ended if ended <= at))


def _flow(rate: float) -> Fluid:
    fluid = Fluid(SMALL, 1, step=0.5)
    arrivals: Numbers = np.array([rate * fluid.step])
    at = 0.0
    while at < SECONDS or fluid.inside > 0.5:
        failing = 1.0 if BEGAN <= at < OVER else 0.0
        fluid.advance(arrivals if at < SECONDS else arrivals * 0, failing, failing)
        at += fluid.step
    return fluid


def erlang(seed: int) -> tuple[float, float]:
    """Return the mean wait at four servers and 80 % load: by the exact simulation, and by the formula."""
    shape = Shape(1, 4.0, 100_000, 1, 1e-9, 0.1, 1e-9, 0.1, 0.0)
    outcome = Simulation(shape, seed=seed).run(births(32.0, 1_500.0, seed))
    return float(np.mean(outcome.took)) - shape.database, mean_wait(4, shape.database, 32.0)
