"""A part: measures how soon a run continues after its worker was killed, one worker at a time, all else at rest.

The other parts kill under load, where a takeover also waits for the processor. Here processes as ``aft dispatcher``
starts them do a little ordinary work, so that none is brand new; then one run is executed alone, its worker is killed
in the middle of a step, and the next round comes when all processes are there again.

On a machine that shares its processors with others, a round in which its host took them away says how long that took:
it is told apart, and there is another one. What was promised is checked of every round.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aft
from chaos import ledger_lines, load, takeover
from chaos.checker import check, read_facts
from chaos.drive import stuck_after
from chaos.fleet import Fleet
from chaos.ledger import Entry, Ledger
from chaos.load import Plan, StepPlan
from chaos.results import Context, Progress, Result, Wanted, silent
from chaos.setups import Site, private
from tests.setups import eventually

COMBINATIONS = ("postgresql+rabbitmq", "sqlite+embedded")
ROLES = (["relay", "intake", "sweep", "work"],) * 3
KILLS = 100
#: Rounds for each of them, at the most, where the host takes the processors away again and again.
MOST_ROUNDS = 3
#: The share of the processors' time that the host may take between a kill and the takeover.
UNDISTURBED = 0.1
#: Quick runs before each kill, with a fault each.
ORDINARY = 6
#: Seconds that a step takes which a message is not held for any more; a lock tells of such a worker's death.
LONG = 5.0
#: What takeovers may take at most, in seconds; and no kill may be without a round that was not disturbed.
WANTED: Wanted = {"steps under 3 s": {"p50": 0.1}, "all": {"p99": 3.0}, "rounds": {"missing": 0}}


def run(ctx: Context) -> Result:
    """Run the part on both set-ups: mostly steps under three seconds, and some longer ones."""
    begun, draw = time.monotonic(), random.Random(f"takeover {ctx.seed}")
    kills = ctx.size(KILLS, 8)
    plans = [plan(draw, number) for number in range(MOST_ROUNDS * kills)]
    parts = []
    for combination in COMBINATIONS:
        with private(combination, ctx.directory / combination) as site:
            parts.append(kill_each(site, plans, kills, ctx.seed, ctx.progress))
    result = Result(
        "takeover",
        ctx.seed,
        sum(part.runs for part in parts),
        {f"SIGKILL of the worker, {part.name}": part.faults["SIGKILL"] for part in parts},
        [violation for part in parts for violation in part.violations],
        round(time.monotonic() - begun, 1),
        {f"{name}, {part.name}": figure for part in parts for name, figure in part.figures.items()},
    )
    return result.compared({f"{name}, {part.name}": bounds for part in parts for name, bounds in WANTED.items()})


def plan(draw: random.Random, number: int) -> Plan:
    """Make a plan with one step that is long enough to be killed in, and one after it."""
    seconds = LONG if number % 5 == 4 else round(draw.uniform(0.3, 2.5), 3)
    return Plan(f"takeover-{number}", (StepPlan("slow", seconds=seconds), StepPlan("plain")), "completed")


def kill_each(site: Site, plans: Sequence[Plan], kills: int, seed: int, progress: Progress = silent) -> Result:
    """Execute plans and kill each one's worker in its first step, until ``kills`` rounds were undisturbed."""
    begun, draw = time.monotonic(), random.Random(f"takeover {seed}")
    shares: dict[str, float] = {}
    with Fleet(site.environ(), ROLES, site.log) as fleet, site.app() as app:
        seen = Following(site.ledger)
        fleet.start()
        for number, each in enumerate(plans):
            go_through(app, seen, [ordinary(number, place) for place in range(ORDINARY)])
            shares[each.name] = kill_once(app, fleet, seen, each, draw.uniform(0.1, 0.9))
            undisturbed = sum(share <= UNDISTURBED for share in shares.values())
            progress(undisturbed, kills, f"one kill at a time, {site.name}")
            if undisturbed == kills:
                break
        fleet.stop()
        facts = read_facts(app.store, site.namespace)
    entries, plans = site.ledger.read(), plans[: len(shares)]
    broken = check(plans, entries, facts, deaths=fleet.deaths, still=stuck_after(site.lease))
    figures = {
        **measure(plans, takeover.takeovers(plans, entries, fleet.kills), shares, kills),
        **ledger_lines.figures(plans, entries, facts, fleet.deaths),
    }
    violations, faults = [f"{site.name}: {each}" for each in broken], {"SIGKILL": len(fleet.kills)}
    return Result(site.name, seed, len(plans), faults, violations, time.monotonic() - begun, figures)


def kill_once(app: aft.Aft, fleet: Fleet, seen: Following, plan: Plan, moment: float) -> float:
    """Execute a plan, kill its worker in the first step, and return the share of CPU that the host took."""
    load.submit(app, [plan])
    first = eventually(lambda: next(iter(seen.lines(plan)), None))
    time.sleep(plan.steps[0].seconds * moment)
    before = Host.look()
    fleet.kill(next(index for index, seat in enumerate(fleet.seats) if seat.pid == first.pid))
    eventually(lambda: seen.ended(plan) or any(line.pid != first.pid for line in seen.lines(plan)))
    share = Host.look().share_since(before)
    go_through(app, seen, [plan])
    fleet.wait_ready()
    return share


def measure(
    plans: Sequence[Plan], found: Sequence[takeover.Takeover], shares: Mapping[str, float], kills: int
) -> dict[str, dict[str, float]]:
    """Return the times of takeovers, with the disturbed rounds counted apart."""
    seconds = {plan.name: plan.steps[0].seconds for plan in plans}
    quiet = [each for each in found if shares[each.load] <= UNDISTURBED]
    undisturbed = sum(share <= UNDISTURBED for share in shares.values())
    return {
        "steps under 3 s": takeover.percentiles(each.seconds for each in quiet if seconds[each.load] < LONG),
        "all": takeover.percentiles(each.seconds for each in quiet),
        "rounds": {
            "undisturbed": undisturbed,
            "disturbed by the host": len(shares) - undisturbed,
            "missing": kills - undisturbed,
        },
        "while disturbed": takeover.percentiles(each.seconds for each in found if each not in quiet),
    }


def ordinary(number: int, place: int) -> Plan:
    """Make a quick plan with one fault."""
    return Plan(f"ordinary-{number}-{place}", (StepPlan("plain"), StepPlan("plain", failures=1)), "completed")


def go_through(app: aft.Aft, seen: Following, plans: Sequence[Plan]) -> None:
    """Submit plans, unless they are there already, and wait until they have ended."""
    load.submit(app, plans)
    for each in plans:
        eventually(partial(seen.ended, each))


class Following:
    """Reads a ledger as it grows, so that observing costs neither queries nor a second reading."""

    def __init__(self, ledger: Ledger) -> None:
        self._path = ledger.path
        self._read = 0
        self._lines: dict[str, list[Entry]] = defaultdict(list)

    def lines(self, plan: Plan) -> list[Entry]:
        """Return the lines of a plan so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")  # one that is torn is read when it is whole
            self._read += len(whole) + len(end)
            for line in whole.splitlines():
                entry = Entry(**json.loads(line))
                self._lines[entry.load].append(entry)
        return self._lines[plan.name]

    def ended(self, plan: Plan) -> bool:
        """Whether the plan's last step is done."""
        return any((line.step, line.what) == ("1", "done") for line in self.lines(plan))


@dataclass(frozen=True, slots=True)
class Host:
    """The CPU ticks of the machine so far: all of them, and those that its host has stolen."""

    ticks: int
    taken: int

    @classmethod
    def look(cls) -> Host:
        """Read the ticks: user, nice, system, idle, iowait, irq, softirq, steal (proc(5))."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return cls(sum(ticks), ticks[-1])

    def share_since(self, before: Host) -> float:
        """Return the share of the ticks that the host has taken since then."""
        return (self.taken - before.taken) / max(1, self.ticks - before.ticks)
