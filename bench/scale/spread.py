"""Computes how evenly runs spread over shards, by the hash of each run's id, or by customer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Customers, of whom each has less to do than the one before: its share falls with this power of its rank.
CUSTOMERS, POWER = 1_000, 1.0


@dataclass(frozen=True)
class Spread:
    """The load of the busiest shard, relative to the average."""

    how: str
    busiest: float

    @property
    def usable(self) -> float:
        return 1 / self.busiest


def spreads(shards: int, seed: int) -> list[Spread]:
    """Return the spread by run id, by customer, and with each customer placed by hand, the biggest first."""
    source = np.random.default_rng(seed)
    ids = source.multinomial(10_000_000, [1 / shards] * shards) / 10_000_000
    weights = np.arange(1, CUSTOMERS + 1, dtype=np.float64) ** -POWER
    homes = source.integers(0, shards, CUSTOMERS)
    customers = np.bincount(homes, weights=weights / weights.sum(), minlength=shards)
    placed = _place(weights / weights.sum(), shards)
    return [
        Spread("by the hash of the run's id", float(ids.max() * shards)),
        Spread("by the hash of its customer", float(customers.max() * shards)),
        Spread("by customer, each placed by hand", float(placed * shards)),
    ]


def _place(weights: np.ndarray[tuple[int], np.dtype[np.float64]], shards: int) -> float:
    """Assign each customer, the biggest first, to the emptiest shard; return the load of the fullest one."""
    full = np.zeros(shards)
    for weight in weights:
        full[int(full.argmin())] += weight
    return float(full.max())
