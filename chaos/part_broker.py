"""A part: a RabbitMQ cluster of three nodes repeatedly loses nodes, or their connections, under load.

Each configuration has a cluster of its own: what one broke must not be blamed on the next. A strike is held for a
while, repaired, and followed by another, until the time is over; then every run has to end, as after any other fault.
Classic queues may lose what they hold; the runs may not. Before all that ``check_cluster`` has to find that cuts cut.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Literal

from aft import names
from aft.app.views import health
from aft.store import Store
from chaos import load
from chaos.checker import check, read_facts
from chaos.cluster import NODES, Cluster, Handling
from chaos.drive import Driver
from chaos.fleet import ROOT, Fleet
from chaos.ledger import Entry
from chaos.load import Plan, plan_of
from chaos.results import Context, Progress, Result, silent
from chaos.setups import Site, private
from tests.servers import ServerFailed
from tests.setups import eventually

#: Who sits where: each kind of process twice, so that one that waits for a node does not hold up all.
ROLES = (["work", "relay"], ["intake", "sweep"], ["relay", "intake", "sweep", "work"])
#: Seconds under fire, at least, and strikes in that time, at least.
SECONDS, STRIKES = 60, 2
#: Runs that are submitted in a second.
RATE = 10
#: Seconds between a repair and the next strike: the load shall also meet a cluster that is well.
BREATH = 3.0
#: Seconds that strikes last.
SHORT, LONG = 5, 20
#: Seconds that a cluster has to come together by itself; RabbitMQ sometimes never does when all its nodes were apart.
PATIENCE = 45.0
#: What is checked first: strikes at a network that lets everything through would prove nothing.
CHECKS = Path(__file__).with_name("check_cluster.py")
#: Configurations in a small version of this part.
FEW = 2

Shape = Literal[
    "leader killed",
    "follower killed",
    "majority killed",
    "leader cut off",
    "node cut off",
    "clients with the minority",
    "all cut off",
    "rolling restart",
]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fault, its duration, the type of queue, and how the cluster handles partitions.

    ``delays`` tells whether messages wait in queues whose time to live runs out; ``silent``, whether packets vanish or
    connections break.
    """

    shape: Shape
    seconds: int
    queue_type: Literal["quorum", "classic"]
    delays: bool
    handling: Handling = "pause_minority"
    silent: bool = True

    @property
    def name(self) -> str:
        """Its name in the report."""
        cuts = f", {'silent' if self.silent else 'told'}" if "cut" in self.shape or "minority" in self.shape else ""
        delays = "with delays" if self.delays else "no delays"
        return f"{self.shape} {self.seconds} s{cuts}, {self.queue_type}, {delays}, {self.handling}"


CONFIGURATIONS = (
    Configuration("leader killed", SHORT, "quorum", delays=True),
    Configuration("leader killed", LONG, "quorum", delays=True),
    Configuration("leader killed", SHORT, "classic", delays=True),
    Configuration("leader killed", LONG, "classic", delays=False),
    Configuration("follower killed", SHORT, "quorum", delays=False),
    Configuration("majority killed", LONG, "quorum", delays=True),
    Configuration("leader cut off", SHORT, "quorum", delays=True),
    Configuration("leader cut off", LONG, "quorum", delays=True, silent=False),
    Configuration("leader cut off", LONG, "classic", delays=True, handling="autoheal"),
    Configuration("node cut off", LONG, "quorum", delays=True),
    Configuration("node cut off", SHORT, "quorum", delays=False, handling="ignore", silent=False),
    Configuration("clients with the minority", LONG, "quorum", delays=True, handling="ignore"),
    Configuration("all cut off", LONG, "quorum", delays=True),
    Configuration("rolling restart", SHORT, "quorum", delays=True),
)


def run(ctx: Context) -> Result:
    """Run every configuration in turn; skips those that were completed before an interruption."""
    begun = time.monotonic()
    chosen = CONFIGURATIONS[: ctx.size(len(CONFIGURATIONS), FEW)]
    found: list[Result] = []
    passed, said = check_network()
    if not passed:
        return Result("broker", ctx.seed, 0, {}, [f"the network does not do what it is told: {said}"], 0.0)
    with private("postgresql+embedded", ctx.directory / "broker") as site:
        for number, configuration in enumerate(chosen):
            kept = _kept(ctx, number)
            result = Result.load(kept)
            if result is None or result.name != configuration.name or not result.is_of(ctx.seed):
                progress = _part_of(ctx.progress, number, len(chosen), configuration.name)
                result = endure(site, configuration, ctx.seed, ctx.size(SECONDS, 20), progress)
                result.save(kept)
            found.append(result)
    for number in range(len(chosen)):
        _kept(ctx, number).unlink(missing_ok=True)
    return _sum(found, ctx, time.monotonic() - begun, {"checks of the network": said})


def check_network(checks: Path = CHECKS) -> tuple[bool, str]:
    """Return whether cuts block exactly what they name, and the output of that check."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    return done.returncode == 0, said.splitlines()[-1].partition(" in ")[0] if done.returncode == 0 else said[-2000:]


def endure(site: Site, configuration: Configuration, seed: int, seconds: float, progress: Progress = silent) -> Result:
    """Run one configuration for ``seconds`` on its own cluster, and check every promise."""
    begun = time.monotonic()
    with Cluster(handling=configuration.handling) as cluster:
        here = replace(site.another(queue_type=configuration.queue_type), broker=cluster.url)
        make = partial(_plan, seed, delays=configuration.delays)
        with Fleet(here.environ(), ROLES, here.log) as fleet:
            fleet.start()
            with Stream(here, make=make, progress=progress) as stream:
                queue = partial(_wake_queue, stream.store, here.namespace)
                strikes = Strikes(cluster, configuration, queue, random.Random(seed))
                under_fire = _fire(strikes, seconds, progress)
                stream.end()
                settled = stream.settle()
                facts = read_facts(stream.store, here.namespace)
            fleet.stop()
    entries = here.ledger.read()
    violations = check(stream.plans, entries, facts)
    figures = {
        "configuration": asdict(configuration),
        "seconds under fire": round(under_fire, 1),
        "seconds to rest": round(settled, 1),
        "longest without progress": round(longest_gap(entries), 2),
        "cuts that nodes noticed": strikes.noticed,
        "processes that fell by themselves": dict(fleet.fell),
    }
    told = [*map(str, violations), *fleet.crashes]
    taken = time.monotonic() - begun
    return Result(configuration.name, seed, len(stream.plans), dict(strikes.faults), told, taken, figures)


def _fire(strikes: Strikes, seconds: float, progress: Progress) -> float:
    """Strike until the time is over; return how many seconds that took."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds or strikes.number < STRIKES:
        progress(min(time.monotonic() - begun, seconds), seconds, "under fire")
        strikes.strike()
    return time.monotonic() - begun


@dataclass
class Stream(Driver):
    """Submits runs at a steady rate until it is stopped."""

    plans: list[Plan] = field(default_factory=list)
    make: Callable[[int], Plan] = lambda number: plan_of(0, number)

    def end(self) -> None:
        """Stop submitting."""
        assert self._thread.is_alive(), "the load ended by itself: what came after that was not under fire"
        self._stop.set()
        self._thread.join()
        self._stop.clear()

    def _submit(self) -> None:
        begun = time.monotonic()
        for number in count():
            if self._stop.wait(max(0.0, begun + number / RATE - time.monotonic())):
                return
            plan = self.make(number)
            load.submit(self._app, [plan])
            self.plans.append(plan)


def _wake_queue(store: Store, namespace: str) -> str:
    """Return the queue through which the fleet's runs are woken: that of its workers' flows."""
    with store.read() as connection:
        pools = {frozenset(worker.flows) for worker in health.live_workers(connection, namespace)} - {frozenset()}
    return names.pool(names.resume(namespace), next(iter(pools), frozenset()))


class Strikes:
    """Strikes a cluster as its configuration defines, and repairs it; counts the injected faults."""

    def __init__(
        self, cluster: Cluster, configuration: Configuration, queue: Callable[[], str], draw: random.Random
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.noticed = 0
        self.number = 0
        self._cluster = cluster
        self._configuration = configuration
        self._queue = queue
        self._draw = draw

    def strike(self) -> None:
        """Strike once: find the leader, strike, wait, repair, and wait until the cluster is complete."""
        leader = eventually(self._leader, within=60)[0]
        followers = [node for node in range(NODES) if node != leader]
        self._draw.shuffle(followers)
        for _ in self._struck(leader, followers):
            time.sleep(self._configuration.seconds)
        self._come_together()
        self.number += 1
        time.sleep(BREATH)

    def _come_together(self) -> None:
        """Wait until the cluster is complete; if it is not in time, restart nodes as an operator would."""
        deadline = time.monotonic() + PATIENCE
        while unwell := self._cluster.unwell():
            if time.monotonic() > deadline:
                # One stays as it is: the others take its word.
                self._restart_by_hand(unwell if len(unwell) < NODES else unwell[1:])
                deadline = time.monotonic() + PATIENCE
            time.sleep(0.2)

    def _struck(self, leader: int, followers: Sequence[int]) -> Iterator[None]:
        """Strike and repair; yields whenever the fault is to last for a while."""
        match self._configuration.shape:
            case "leader killed":
                yield from self._killed(leader)
            case "follower killed":
                yield from self._killed(followers[0])
            case "majority killed":
                yield from self._killed(leader, followers[0])
            case "leader cut off":
                yield from self._cut(leader, clients=True)
            case "node cut off":
                yield from self._cut(followers[0])
            case "clients with the minority":
                self._cluster.prefer(followers[0])
                yield from self._cut(followers[0])
                self._cluster.prefer(None)
            case "all cut off":
                yield from self._cut(*range(NODES))
            case "rolling restart":
                yield from self._rolled()

    def _killed(self, *nodes: int) -> Iterator[None]:
        self._cluster.kill(*nodes)
        self.faults["SIGKILL of a node"] += len(nodes)
        yield
        self._cluster.restart(*nodes)

    def _cut(self, *nodes: int, clients: bool = False) -> Iterator[None]:
        for node in nodes:
            self._cluster.cut(node, clients=clients, silent=self._configuration.silent)
        self.faults["node cut off"] += len(nodes)
        yield
        self._note_whether_noticed(nodes)
        self._cluster.heal(*nodes)
        if self._configuration.handling == "ignore":  # then somebody has to make it good, by a restart
            self._restart_by_hand(nodes)

    def _restart_by_hand(self, nodes: Sequence[int]) -> None:
        self._cluster.kill(*nodes)
        self._cluster.restart(*nodes)
        self.faults["node restarted by hand"] += len(nodes)

    def _rolled(self) -> Iterator[None]:
        for node in range(NODES):
            self._cluster.shut_down(node)
            self.faults["node shut down"] += 1
            yield
            self._cluster.restart(node)
            self._come_together()

    def _leader(self) -> list[int]:
        """Return a list of the leading node; empty if it cannot be determined now."""
        try:
            return [self._cluster.leader_of(self._queue())]
        except ServerFailed:
            return []

    def _note_whether_noticed(self, nodes: Sequence[int]) -> None:
        witness = next((node for node in range(NODES) if node not in nodes), nodes[0])
        unseen = set(range(NODES)) - self._cluster.sees(witness)
        self.noticed += sum(node in unseen for node in nodes)


def longest_gap(entries: Sequence[Entry]) -> float:
    """Return the longest time, in seconds, between two lines of any process."""
    times = sorted(entry.at for entry in entries)
    return max((after - before for before, after in pairwise(times)), default=0.0)


def _plan(seed: int, number: int, *, delays: bool) -> Plan:
    """Make a plan; without ``delays`` its steps succeed, or fail for good, at once."""
    plan = plan_of(seed, number)
    if delays:
        return plan
    return replace(plan, steps=tuple(replace(step, failures=0, undo_failures=0) for step in plan.steps))


def _kept(ctx: Context, number: int) -> Path:
    """Return the file of a configuration's result."""
    return ctx.directory / f"broker-{'quick-' if ctx.quick else ''}{number}.json"


def _part_of(progress: Progress, number: int, total: int, name: str) -> Progress:
    """Return a callback that reports one configuration's progress as a share of all."""
    return lambda done, full, text: progress(number + done / max(full, 1), total, f"{name}: {text}")


def _sum(found: Sequence[Result], ctx: Context, seconds: float, figures: dict[str, Any]) -> Result:
    faults: Counter[str] = Counter()
    for result in found:
        faults.update(result.faults)
    lines: dict[str, Any] = {
        result.name: {"runs": result.runs, "faults": result.faults, "violations": len(result.violations)}
        | result.figures
        for result in found
    }
    violations = [f"{result.name}: {violation}" for result in found for violation in result.violations]
    runs = sum(result.runs for result in found)
    return Result("broker", ctx.seed, runs, dict(faults), violations, seconds, figures | lines, ctx.quick)
