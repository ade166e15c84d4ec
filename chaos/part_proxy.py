"""A part: database connections are cut, slow, silent for longer than the lease, or lose a commit or its answer."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from chaos.checker import read_facts
from chaos.conclude import conclude
from chaos.drive import Driver
from chaos.fleet import Fleet, Hit
from chaos.load import plan_of
from chaos.proxies import CommitProxy
from chaos.results import Context, Result
from chaos.setups import Site, private
from chaos.wire import Kind, Write

#: Each can rescue: two lines may be silent at once, and were one of them the only rescuer's, it would be waited for.
ROLES = (["work", "intake", "sweep"], ["work", "relay", "intake", "sweep"], ["relay", "intake", "sweep", "work"])
RUNS, FAULTS = 6_000, 600
LEASE = "3s"
#: How the report names what was lost.
_KINDS: dict[Kind, str] = {"COMMIT": "COMMIT", "statement": "statements that commit by themselves"}


class Lines:
    """The proxied connections: one proxy for each seat; the last one is the submitter's."""

    def __init__(self, proxies: list[CommitProxy], fleet: Fleet, lease: float, draw: random.Random) -> None:
        self._proxies = proxies
        self._fleet = fleet
        self._lease = lease
        self._draw = draw
        self._held: dict[int, float] = {}
        self._done: Counter[str] = Counter()
        self.partitions: list[Hit] = []

    @property
    def faults(self) -> Counter[str]:
        """The faults that were injected so far, by kind."""
        return self._done + self._losses(lambda write: _KINDS[write.kind])

    @property
    def count(self) -> int:
        """The number of faults that were injected so far."""
        return self.faults.total()

    def trouble(self) -> None:
        """Inject a fault into a connection that is not held already."""
        free = [index for index in range(len(self._proxies)) if index not in self._held]
        if not free:
            return
        # The submitter's line has nothing but commits: it would be struck more often than all others.
        index = self._draw.choices(free, [2 if index < len(self._fleet.seats) else 1 for index in free])[0]
        what = self._draw.choices(("answer", "request", "cut", "slow", "silent"), (5, 3, 3, 2, 6))[0]
        if what in ("answer", "request"):
            self._lose(index, carried_out=what == "answer")
        elif what == "cut":
            self._proxies[index].cut()
            self._done["connections cut"] += 1
        elif what == "slow":
            self._hold(index, self._draw.uniform(0.05, 0.5))
            self._done["line held for less than half a second"] += 1
        elif len(self._held) < len(self._proxies) - 2 and index < len(self._fleet.seats):
            self._partition(index)

    def losses(self) -> dict[str, int]:
        """What was lost, by the statement that wrote it."""
        return dict(sorted(self._losses(lambda write: write.words).items()))

    def _losses(self, name: Callable[[Write], str]) -> Counter[str]:
        found: Counter[str] = Counter()
        for proxy in self._proxies:
            for what, losses in (("answers to", proxy.answers_lost), ("requests for", proxy.requests_lost)):
                for write, count in losses.copy().items():
                    found[f"{what} {name(write)} lost"] += count
        return found

    def _lose(self, index: int, *, carried_out: bool) -> None:
        # Statements that commit by themselves come so much more often that a COMMIT has to be asked for; whoever
        # submits has none.
        kinds: tuple[Kind, ...] = ("COMMIT", "statement") if index < len(self._fleet.seats) else ("statement",)
        if not self._proxies[index].is_armed:
            self._proxies[index].lose_commit(carried_out=carried_out, kind=self._draw.choice(kinds))

    def _partition(self, index: int) -> None:
        pid = self._fleet.seats[index].pid
        if pid is not None:
            self.partitions.append(Hit(time.monotonic(), pid, index))
            self._hold(index, self._lease * self._draw.uniform(2.5, 4.0))
            self._done["silent for longer than the lease"] += 1

    def _hold(self, index: int, seconds: float) -> None:
        self._proxies[index].hold()
        self._held[index] = time.monotonic() + seconds

    def release(self, *, everything: bool = False) -> None:
        """Release connections whose time is over, or all of them for good."""
        for proxy in self._proxies if everything else ():
            proxy.disarm()
        for index in [index for index, until in self._held.items() if everything or until <= time.monotonic()]:
            self._proxies[index].release()
            del self._held[index]


def run(ctx: Context, combination: str = "postgresql+rabbitmq") -> Result:
    """Run the part on private servers."""
    begun = time.monotonic()
    plans = [plan_of(ctx.seed, number, slow=0.1) for number in range(ctx.size(RUNS, 200))]
    wanted = ctx.size(FAULTS, 30)
    with ExitStack() as stack:
        site = stack.enter_context(private(combination, ctx.directory, lease=LEASE))
        assert site.postgres is not None
        proxies = [stack.enter_context(CommitProxy(site.postgres.port)) for _ in range(len(ROLES) + 1)]
        fleet = stack.enter_context(Fleet(site.environ(), [], site.log))
        lines = Lines(proxies, fleet, site.lease, random.Random(f"proxy {ctx.seed}"))
        entrance = replace(site, database=_through(site, proxies[-1]))
        driver = stack.enter_context(Driver(site, plans, progress=ctx.progress, entrance=entrance))
        for roles, proxy in zip(ROLES, proxies, strict=False):
            fleet.add(roles, {"AFT_DATABASE_URL": _through(site, proxy)})
        fleet.wait_ready()

        def inject(done: float) -> bool:
            lines.release()
            due = min(wanted, int(wanted * min(1.0, done / 0.95)) + 1)
            if lines.count < due:
                lines.trouble()
            return due - lines.count < 10

        driver.under_fire(inject)
        lines.release(everything=True)
        settled = driver.settle(calm=2 * site.lease)
        facts = read_facts(driver.store, site.namespace)
        fleet.stop()
        return conclude(
            f"proxy, {combination}",
            ctx.seed,
            site,
            plans,
            facts,
            fleet,
            lines.faults,
            begun,
            hits=lines.partitions,
            wanted={"takeover": {"p99": site.lease + 5}},
            figures={"seconds to rest": round(settled, 1), "lease": site.lease, **lines.losses()},
            stale=True,
            database_away=True,
        )


def _through(site: Site, proxy: CommitProxy) -> str:
    assert site.postgres is not None
    return site.database.replace(f":{site.postgres.port}/", f":{proxy.port}/")
