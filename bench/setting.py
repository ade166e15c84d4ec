"""What a workload needs to set up its contests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import jobs
from bench.contests import Answer, Entrant
from bench.places import Places


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how thoroughly to measure, and with which interpreters."""

    places: Places
    quick: bool
    #: The interpreter of each peer that is there.
    peers: dict[str, Path]

    def pick(self, quick: Any, full: Any) -> Any:
        """Return one value for a quick run, another for a full one."""
        return quick if self.quick else full

    @property
    def loop(self) -> float:
        """The seconds that a closed loop lasts."""
        return 1.0 if self.quick else 4.0

    @property
    def most(self) -> float:
        """The seconds after which a drain is cut off."""
        return 2.0 if self.quick else 15.0

    def ours(self, name: str, module: str, **job: Any) -> Entrant:
        """Make an entrant of aft, or of a limit: its own process, on a database with aft's tables."""
        database = job.pop("database", "aft")
        return Entrant(name, self._play(Path(sys.executable), module, self.places.migrated, database, job))

    def peer(self, name: str, peer: str, **job: Any) -> list[Entrant]:
        """Make an entrant of a peer in its environment, on its own database; empty if it is not to take part."""
        if peer not in self.peers:
            return []
        play = self._play(self.peers[peer], f"bench.peers.on_{peer}", self.places.database, peer, job)
        return [Entrant(name, play)]

    def _play(
        self, python: Path, module: str, make: Callable[[str], str], database: str, job: dict[str, Any]
    ) -> Callable[[], Answer]:
        def play() -> Answer:
            where = {"database": make(database), "broker": self.places.broker, "file": self.places.file()}
            return jobs.run(python, module, {**where, **job}, job.get("patience", jobs.PATIENCE))

        return play
