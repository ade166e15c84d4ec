"""Drives a load: submits runs, injects faults at their pace, and waits until every run is at rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from sqlalchemy import func, select, update

import aft
from aft.errors import StoreError
from aft.runs.states import ENDS, Status
from aft.store import Store
from aft.store.db_time import now
from aft.store.tables import late_effects, outbox, runs
from chaos import load
from chaos.load import Plan
from chaos.results import Progress, silent
from chaos.setups import Site

#: Leases after the last fault by which a run that has neither ended nor is parked is stuck.
STUCK_AFTER = 3
#: The same in seconds, if leases are short: a message that a dead process held is published after ten seconds, the
#: longest step takes three, and the ladders of a plan's six steps and undos, one after the other, not quite seven.
STUCK_AT_LEAST = 20.0
#: Seconds, and leases, without any progress at all, after which no more faults are injected: something is stuck.
HOPELESS = (60.0, 10)
#: Seconds between two looks.
LOOK = 0.1
_RESTING = [status.value for status in (*ENDS, Status.PARKED)]


def stuck_after(lease: float) -> float:
    """Return the seconds after the last fault by which every run must be at rest, given the lease in seconds."""
    return max(STUCK_AFTER * lease, STUCK_AT_LEAST)


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a namespace at one time: runs made, runs at rest, and the work that is left."""

    made: int
    resting: int
    messages: int
    late: int

    @property
    def quiet(self) -> bool:
        """Whether no work is left."""
        return self.resting == self.made and not self.messages and not self.late


def count(store: Store, namespace: str) -> Count:
    """Count a namespace in one statement: between two, work could move from one table to another."""
    made = select(func.count()).select_from(runs).where(runs.c.namespace == namespace)
    resting = made.where(runs.c.status.in_(_RESTING), runs.c.worker_id.is_(None), runs.c.wake_id.is_(None))
    messages = select(func.count()).select_from(outbox).where(outbox.c.namespace == namespace)
    late = select(func.count()).where(late_effects.c.namespace == namespace, late_effects.c.state == "open")
    with store.read() as connection:
        looks = (each.scalar_subquery() for each in (made, resting, messages, late))
        return Count(*connection.execute(select(*looks)).one())


@dataclass
class Driver:
    """Submits plans on a thread of its own, never more than ``backlog`` ahead of what has ended.

    A backlog below the fleet's slots keeps its queues empty: then a takeover is not behind others in a queue.
    """

    site: Site
    plans: Sequence[Plan]
    backlog: int = 24
    progress: Progress = silent
    #: Seconds between two submissions at the least.
    pause: float = 0.0
    #: Where runs are submitted, if that leads to the same database another way.
    entrance: Site | None = None
    seen: Count = field(default_factory=lambda: Count(0, 0, 0, 0))

    def __enter__(self) -> Self:
        self._app: aft.Aft = self.site.app()
        self._entrance: aft.Aft = (self.entrance or self.site).app()
        self._stop = threading.Event()
        self._held = threading.Event()
        self._submitted = 0
        self._thread = threading.Thread(target=self._submit, name="submit", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._app.close()
        self._entrance.close()

    @property
    def store(self) -> Store:
        """The store through which this driver observes the namespace."""
        return self._app.store

    @property
    def done(self) -> float:
        """The share of the plans whose runs are at rest."""
        return self.seen.resting / len(self.plans)

    def hold(self, held: bool) -> None:
        """Pause or continue the load: faults may not be injected as fast as runs end."""
        (self._held.set if held else self._held.clear)()

    def submitted(self) -> None:
        """Wait until every plan has been submitted."""
        self._thread.join()

    def look(self) -> Count:
        """Count the namespace; return the last counts while the database is unreachable."""
        try:
            self.seen = count(self.store, self.site.namespace)
        except StoreError:
            pass
        return self.seen

    def under_fire(self, inject: Callable[[float], bool], text: str = "under fire") -> None:
        """Call ``inject`` with the share of runs at rest until all are; it returns whether it keeps up."""
        quiet_since, before = time.monotonic(), self.seen
        while self.look().resting != len(self.plans):
            self.hold(not inject(self.done))
            self.progress(self.seen.resting, len(self.plans), text)
            if (self.seen.resting, self._submitted) != (before.resting, before.made):
                quiet_since, before = time.monotonic(), Count(self._submitted, self.seen.resting, 0, 0)
            if time.monotonic() - quiet_since > HOPELESS[0] + HOPELESS[1] * self.site.lease:
                break  # ``settle`` tells what is stuck
            self._stop.wait(LOOK)

    def settle(self, *, lapse: bool = False, calm: float = 0.0) -> float:
        """Wait after the last fault until all runs are at rest, or should be; return the seconds that took.

        With ``lapse`` the hold of dead processes on their messages is over at once, instead of in some seconds. It must
        stay quiet for ``calm`` seconds, where somebody who was cut off or paused may still tell of a late effect.
        """
        begun = time.monotonic()
        quiet_at = self._come_to_rest(lapse)
        while quiet_at is not None and time.monotonic() - quiet_at < calm:
            self._stop.wait(LOOK)
            if not self.look().quiet:
                quiet_at = self._come_to_rest(lapse)
        return (quiet_at or time.monotonic()) - begun

    def _come_to_rest(self, lapse: bool) -> float | None:
        """Wait until all runs are at rest; return since when, or None if something is stuck."""
        deadline = time.monotonic() + stuck_after(self.site.lease)
        self.hold(False)
        while not (self.look().quiet and self.seen.made == len(self.plans)):
            if time.monotonic() > deadline:
                return None
            if lapse and self.seen.resting == len(self.plans):
                self._let_holds_lapse()
            self.progress(self.seen.resting, len(self.plans), "coming to rest")
            self._stop.wait(LOOK)
        return time.monotonic()

    def _let_holds_lapse(self) -> None:
        with self.store.write() as connection:
            held = update(outbox).where(outbox.c.namespace == self.site.namespace)
            connection.execute(held.values(taken_until=now()))

    def _submit(self) -> None:
        for plan in self.plans:
            while not self._stop.is_set() and (
                self._held.is_set() or self._submitted - self.seen.resting >= self.backlog
            ):
                self._stop.wait(LOOK / 4)
            if self._stop.is_set():
                return
            load.submit(self._entrance, [plan])
            self._submitted += 1
            self._stop.wait(self.pause)
