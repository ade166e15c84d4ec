"""Checks every promise: replays the ledger against the plans and against aft's own records of its runs.

A violation names the promise of ``semantics.md`` that it breaks. What is allowed: an attempt or an undo that happens
again after a crash, with the same key; an effect that arrives late and is then undone. What a flag takes back:

- ``schedule``: waits are not looked at, where clocks jump or messages are sent out of turn on purpose;
- ``stale``: there were owners that went on without knowing that they had lost their run (pauses, partitions), so
  a step may begin again although its outcome is recorded; nothing of that is kept; and a run that was overtaken in the
  same attempt again and again is parked by right;
- ``database_away``: what was not recorded while the database was away, or was lost with its transaction, is executed
  again by nobody's death;
- ``deaths``: when which process was killed. What one did late, without living to tell, nobody can undo; what it was
  killed in is executed again; and a run on which so many were killed in a row is parked by right;
- ``still``: seconds for which a run may lie still, beyond what its plan wants: longer is stuck, though it went on
  later. Not looked at unless it is given.

Executed again, without a death that caused it, is a broken promise, too, unless owners may be stale or the database was
away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aft.dispatcher.route import MOST_DEATHS_ALONE
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.ownership.rescue import MOST_LAPSES
from chaos.facts import Facts, RunFacts, read_facts
from chaos.ledger import Entry
from chaos.ledger_lines import DYING, by_load, executions, killed_in, longest_still
from chaos.load import FATAL, LADDER, UNDOABLE, Plan

__all__ = ["Facts", "Violation", "check", "read_facts"]

#: Seconds by which a retry may seem early: a line is written a little after what it tells of.
TOLERANCE = 0.005
#: Processes that are killed on one step, none of which finished it, before its run may be parked for that.
CRASH_LOOP = MOST_SHARED_DEATHS + MOST_DEATHS_ALONE
#: Of them, those that may have been killed where the ledger is silent: between two steps, or before they began it.
UNSEEN = 1
#: How the reason begins for which such a run is parked.
CRASH_LOOP_REASON = "its worker died "
#: Seconds within which a living process has told of an effect that came late.
TELLING = 2.0
ENDS = ("completed", "compensated", "failed", "cancelled")
FORWARD = ("begin", "done", "raised")
#: What was recorded of a step, by whether it fails for good.
RECORDED = {True: "failed", False: "ok"}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: its number and what is wrong, the plan's name, and the evidence."""

    promise: str
    load: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.load}: {self.text}"


@dataclass(frozen=True, slots=True)
class Case:
    """One plan, with its ledger lines and its run."""

    plan: Plan
    lines: Sequence[Entry]
    run: RunFacts
    facts: Facts
    schedule: bool
    stale: bool
    database_away: bool
    deaths: Mapping[int, float]
    still: float | None

    def of(self, index: int, *whats: str) -> list[Entry]:
        """Return the lines of a step that are of one of these kinds."""
        return [line for line in self.lines if line.step == str(index) and line.what in whats]

    def broken(self, promise: str, text: str) -> Violation:
        return Violation(promise, self.plan.name, text)


def check(
    plans: Iterable[Plan],
    entries: Iterable[Entry],
    facts: Facts,
    *,
    schedule: bool = True,
    stale: bool = False,
    database_away: bool = False,
    deaths: Mapping[int, float] | None = None,
    still: float | None = None,
) -> list[Violation]:
    """Return every broken promise. Pure."""
    lines = by_load(entries)
    found: list[Violation] = []
    for plan in plans:
        run = facts.runs.get(plan.name)
        if run is None:
            found.append(Violation("1 lost", plan.name, "there is no such run"))
            continue
        case = Case(plan, lines[plan.name], run, facts, schedule, stale, database_away, deaths or {}, still)
        found += [violation for look in _LOOKS for violation in look(case)]
    if facts.outbox:
        found.append(Violation("1 lost", "", f"{facts.outbox} messages were left in the outbox"))
    return found


# Promise 1 ------------------------------------------------------------------------------------------------------


def _ended(case: Case) -> Iterator[Violation]:
    run = case.run
    if run.status == "parked":
        if not _is_crash_loop(case):
            yield case.broken("1 parked", f"run {run.id}: {run.reason}")
    elif run.status not in ENDS:
        yield case.broken("1 stuck", f"run {run.id} is {run.status}, epoch {run.epoch}")
    elif run.status != case.plan.end:
        yield case.broken("2 wrong end", f"run {run.id} is {run.status}, not {case.plan.end}")


def _is_crash_loop(case: Case) -> bool:
    """Whether the run was parked as a crash loop, and enough processes died in the same unrecorded attempt.

    One may have been killed between the effect and its record: then its line says that it was done. Owners that may be
    stale are overtaken instead: some times without being counted, then as if they had died.
    """
    if not (case.run.reason or "").startswith(CRASH_LOOP_REASON):
        return False
    recorded = {row.path for row in case.run.journal}
    for (_, step, begun, _), places in executions(case.lines).items():
        path = case.plan.path(int(step))
        unsettled = path not in recorded if begun == "begin" else path in case.run.owed
        seen = sum(killed_in(case.lines, place, case.deaths) for place in places)
        before = case.lines[places[0] - 1].at - DYING if places[0] else 0.0
        killed = sum(at >= before for at in case.deaths.values())
        looped = seen >= CRASH_LOOP - UNSEEN and killed >= CRASH_LOOP
        overtaken = case.stale and len(places) >= MOST_LAPSES + CRASH_LOOP - UNSEEN
        if unsettled and (looped or overtaken):
            return True
    return False


def _went_on(case: Case) -> Iterator[Violation]:
    """Yield a violation if the run made no progress for too long, whatever its end."""
    longest = longest_still(case.plan, case.lines, case.deaths, case.run)
    if case.still is not None and longest > case.still:
        yield case.broken("1 stuck", f"run {case.run.id} lay still for {longest:.1f} s, not {case.still:.1f} s at most")


# Promise 2 ------------------------------------------------------------------------------------------------------


def _whole(case: Case) -> Iterator[Violation]:
    """Yield violations of an ended run: kept steps are done and not undone, all others are done and undone."""
    if case.run.status != case.plan.end:
        return
    for index in range(len(case.plan.steps)):
        yield from (_standing if case.plan.stands(index) else _undone)(case, index)
    if case.run.status == "compensated" and case.run.owed:
        yield case.broken("2 half", f"run {case.run.id} is compensated, and owes the undo of {case.run.owed}")
    if case.run.late:
        yield case.broken("2 half", f"run {case.run.id} has {case.run.late} late effects that nobody settled")
    if case.run.faults:
        yield case.broken("2 half", f"run {case.run.id} has ended with {case.run.faults} faults open or waiting")


def _standing(case: Case, index: int) -> Iterator[Violation]:
    if not case.of(index, "done"):
        yield case.broken("2 half", f"step {index} stands, and was never done")
    if case.of(index, "undone"):
        yield case.broken("2 both", f"step {index} stands in a run that is {case.run.status}, and was undone")


def _undone(case: Case, index: int) -> Iterator[Violation]:
    kind = case.plan.steps[index].kind
    if kind == "doomed" and not case.of(index, "undone"):
        yield case.broken("2 half", f"step {index} was started, and its undo is owed for that, but never ran")
    if kind in FATAL:
        return
    told = [line for line in case.of(index, "done", "undone") if not _died_late(case, index, line)]
    if not any(line.what == "done" for line in told):
        yield case.broken("2 half", f"step {index} was never done, but the run went past it")
    elif kind != "booked" and told[-1].what == "done":
        yield case.broken("2 half", f"step {index} was done by process {told[-1].pid} and never undone after that")


def _died_late(case: Case, index: int, line: Entry) -> bool:
    """Whether a line is of a late effect whose process was killed before it could record the effect."""
    death = case.deaths.get(line.pid)
    if line.what != "done" or death is None or not line.at - DYING <= death <= line.at + TELLING:
        return False
    return any(other.at < line.at for other in case.of(index, "undone"))


# Promise 3 ------------------------------------------------------------------------------------------------------


def _in_order(case: Case) -> Iterator[Violation]:
    """Yield violations of the undo order: a step's undo begins when the undos of all later steps have ended."""
    for later, earlier in pairwise(_unwinding(case.plan)):
        first = next(iter(case.of(later, "undone")), None)
        begun = next(iter(case.of(earlier, "undoing", "undone")), None)
        if begun is None:
            continue
        if first is None or case.lines.index(begun) < case.lines.index(first):
            yield case.broken("3 order", f"step {earlier} was being undone before step {later} was undone")


def _unwinding(plan: Plan) -> list[int]:
    """Return the steps that have an undo, in undo order: those under the savepoint before all others."""
    owed = [index for index, step in enumerate(plan.steps) if step.kind in UNDOABLE and not plan.stands(index)]
    inside = [index for index in owed if plan.is_inside(index)]
    outside = [index for index in owed if not plan.is_inside(index)]
    return inside[::-1] + outside[::-1]


# Promise 4 ------------------------------------------------------------------------------------------------------


def _keys(case: Case) -> Iterator[Violation]:
    """Yield violations of idempotency keys: one for each step, one for each undo, and none shared."""
    users: dict[str, str] = {}
    for index in range(len(case.plan.steps)):
        for name, whats in ((f"step {index}", FORWARD), (f"undo {index}", ("undoing", "undone", "undo_raised"))):
            keys = {line.key for line in case.of(index, *whats)}
            if len(keys) > 1:
                yield case.broken("4 key", f"{name} was called with {len(keys)} keys: {sorted(keys)}")
            for key in keys:
                if key in users:
                    yield case.broken("4 key", f"{name} has the key of {users[key]}: {key}")
                users[key] = name


def _once(case: Case) -> Iterator[Violation]:
    """Yield violations of single recording: of outcomes, of transactional effects, and of recorded steps."""
    paths = [row.path for row in case.run.journal]
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        yield case.broken("4 outcome", f"step {path} was recorded {paths.count(path)} times")
    if case.run.status != case.plan.end:
        return
    outcomes = {row.path: row.outcome for row in case.run.journal}
    for index, step in enumerate(case.plan.steps):
        recorded = outcomes.get(case.plan.path(index))
        if recorded != RECORDED[step.kind in FATAL]:
            yield case.broken("4 outcome", f"step {index} was recorded as {recorded}")
        if step.kind == "booked":
            yield from _booked(case, index)
        if not case.stale:
            yield from _again(case, index)


def _booked(case: Case, index: int) -> Iterator[Violation]:
    place = (case.plan.name, str(index))
    found = case.facts.booked[place], case.facts.unbooked[place]
    wanted = (1, 0) if case.plan.stands(index) else (1, 1)
    if found != wanted:
        yield case.broken("4 transactional", f"step {index} was booked and unbooked {found} times, not {wanted}")


def _again(case: Case, index: int) -> Iterator[Violation]:
    """Yield a violation if a step begins after a later one had begun: its outcome was recorded before that."""
    passed = False
    for line in case.lines:
        passed = passed or (line.what == "begin" and int(line.step) > index)
        if passed and line.what == "begin" and line.step == str(index):
            yield case.broken("4 outcome", f"step {index} began again after a later step had begun")
            return


def _caused(case: Case) -> Iterator[Violation]:
    """Yield violations for repeated executions whose process was not killed, and that undo no late effect."""
    if case.stale or case.database_away:
        return
    for (_, step, begun, attempt), places in executions(case.lines).items():
        for before, after in pairwise(places):
            between = [line.what for line in case.lines[before:after] if line.step == step]
            late = begun == "undoing" and "done" in between
            if not late and not killed_in(case.lines, before, case.deaths):
                pids = f"processes {case.lines[before].pid} and {case.lines[after].pid}"
                text = f"step {step} {begun}: {pids} executed attempt {attempt}, and nobody was killed in it"
                yield case.broken("4 repeated", text)


# Promise 5 ------------------------------------------------------------------------------------------------------


def _counted(case: Case) -> Iterator[Violation]:
    """Yield violations of attempt counts: at most the plan's failures plus one."""
    for index, step in enumerate(case.plan.steps):
        for what, failures in (("begin", step.failures), ("undoing", step.undo_failures)):
            attempts = [line.attempt for line in case.of(index, what)]
            if attempts and max(attempts) > failures + 1:
                yield case.broken("5 attempts", f"step {index} {what}: attempt {max(attempts)}, {failures} failures")


def _in_time(case: Case) -> Iterator[Violation]:
    """Yield violations for retries that begin before the wait of their level is over."""
    if not case.schedule:
        return
    for index in range(len(case.plan.steps)):
        for raised, begun in (("raised", "begin"), ("undo_raised", "undoing")):
            yield from _waited(case, index, raised, begun)


def _waited(case: Case, index: int, raised: str, begun: str) -> Iterator[Violation]:
    failed: dict[int, float] = {}
    for line in case.of(index, raised):
        failed.setdefault(line.attempt, line.at)
    for line in case.of(index, begun):
        since = failed.get(line.attempt - 1)
        if since is None or line.attempt - 1 > len(LADDER):
            continue
        wait = LADDER[line.attempt - 2]
        if line.at - since < wait - TOLERANCE:
            text = (
                f"step {index} {begun} attempt {line.attempt}: {line.at - since:.3f} s, not {wait} s, after its failure"
            )
            yield case.broken("5 early", text)


# Promise 6 ------------------------------------------------------------------------------------------------------


def _fenced(case: Case) -> Iterator[Violation]:
    """Yield violations of fencing: epochs never decrease along the journal."""
    rows = sorted(case.run.journal, key=lambda row: row.seq)
    for before, after in pairwise(rows):
        if after.epoch < before.epoch:
            text = f"step {after.path} of epoch {after.epoch} was recorded after {before.path} of epoch {before.epoch}"
            yield case.broken("6 stale", text)
    if rows and rows[-1].epoch > case.run.epoch:
        yield case.broken("6 stale", f"step {rows[-1].path} has epoch {rows[-1].epoch}, its run {case.run.epoch}")


_LOOKS = (_ended, _went_on, _whole, _in_order, _keys, _once, _caused, _counted, _in_time, _fenced)
