"""How evenly are runs spread over shards? By the hash of each run's id, or by whom they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Customers, of whom each has less to do than the one before: its share falls with this power of its rank.
CUSTOMERS, POWER = 1_000, 1.0


@dataclass(frozen=True)
class Spread:
    """The busiest shard against the average, and so: how much of the cluster can be used."""

    how: str
    busiest: float

    @property
    def usable(self) -> float:
        return 1 / self.busiest


def spreads(shards: int, seed: int) -> list[Spread]:
    """Both ways, and what moving the biggest customer to a shard of its own makes of the second."""
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
    """Put each customer, the biggest first, where there is least; tells what the fullest shard has."""
    full = np.zeros(shards)
    for weight in weights:
        full[int(full.argmin())] += weight
    return float(full.max())
