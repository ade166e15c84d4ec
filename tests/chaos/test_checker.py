"""The checker finds each broken promise in a ledger that was made by hand, and nothing in one that is clean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import Violation, check
from chaos.facts import Facts, JournalRow, RunFacts
from chaos.ledger import Entry, Ledger
from chaos.ledger_lines import figures, longest_still
from chaos.load import FATAL, Plan, StepPlan, plan_of

COMPLETED = Plan("good", (StepPlan("plain"), StepPlan("booked"), StepPlan("bare", failures=1)), "completed")
COMPENSATED = Plan(
    "bad",
    (StepPlan("plain"), StepPlan("started", undo_failures=1), StepPlan("booked"), StepPlan("doomed")),
    "compensated",
)
CAUGHT = Plan(
    "caught",
    (StepPlan("plain"), StepPlan("plain"), StepPlan("plain"), StepPlan("fatal"), StepPlan("plain")),
    "completed",
    savepoint=(1, 4),
)


@dataclass
class World:
    """A ledger and facts in the making; the clock goes on by a second with each line."""

    plan: Plan
    lines: list[Entry] = field(default_factory=list)
    facts: Facts = field(default_factory=lambda: Facts({}))

    def say(self, index: int, *whats: str, attempt: int = 1, pid: int = 1, key: str = "") -> None:
        for what in whats:
            undo = "/undo" if what.startswith("und") else ""
            key_ = key or f"{self.plan.name}/{index}{undo}"
            self.lines.append(Entry(float(len(self.lines)), pid, self.plan.name, str(index), what, key_, attempt))

    def change(self, **changes: object) -> None:
        self.facts.runs[self.plan.name] = replace(self.facts.runs[self.plan.name], **changes)  # type: ignore[arg-type]

    def move(self, line: int, to: int) -> None:
        self.lines.insert(to, self.lines.pop(line))

    def find(self, what: str, index: int) -> int:
        return next(n for n, line in enumerate(self.lines) if (line.what, line.step) == (what, str(index)))

    def broken(self, **flags: Any) -> list[str]:
        return [violation.promise for violation in self.violations(**flags)]

    def violations(self, **flags: Any) -> list[Violation]:
        return check([self.plan], self.lines, self.facts, **flags)


def clean(plan: Plan) -> World:
    """What a run does to which nothing happens."""
    world = World(plan)
    rows: list[JournalRow] = []
    for index, step in enumerate(plan.steps):
        for attempt in range(1, step.failures + 1):
            world.say(index, "begin", "raised", attempt=attempt)
        world.say(index, "begin", "raised" if step.kind in FATAL else "done", attempt=step.failures + 1)
        rows.append(JournalRow(plan.path(index), len(rows) + 1, 1, "failed" if step.kind in FATAL else "ok"))
        if plan.savepoint is not None and index == plan.savepoint[1] - 1:
            unwind(world, [i for i in range(len(plan.steps)) if plan.is_inside(i)])
    if plan.end == "compensated":
        unwind(world, [i for i in range(len(plan.steps)) if not plan.is_inside(i)])
    world.facts.runs[plan.name] = RunFacts("run", plan.end, journal=tuple(rows))
    for index, step in enumerate(plan.steps):
        if step.kind == "booked":
            world.facts.booked[plan.name, str(index)] = 1
            world.facts.unbooked[plan.name, str(index)] = int(not plan.stands(index))
    return world


def unwind(world: World, indexes: list[int]) -> None:
    for index in reversed(indexes):
        step = world.plan.steps[index]
        if step.kind in ("bare", "fatal"):
            continue
        for attempt in range(1, step.undo_failures + 1):
            world.say(index, "undoing", "undo_raised", attempt=attempt)
        world.say(index, "undoing", "undone", attempt=step.undo_failures + 1)


@pytest.mark.parametrize("plan", [COMPLETED, COMPENSATED, CAUGHT])
def test_a_clean_ledger_has_no_violation(plan: Plan) -> None:
    assert clean(plan).violations() == []


def test_no_plan_at_all_is_a_violation_by_itself() -> None:
    worlds = [clean(plan_of(7, number)) for number in range(500)]
    assert [violation for world in worlds for violation in world.violations()] == []


def repeat(world: World, what: str, index: int) -> None:
    """Have an attempt begun once more, by process 9 before everybody else."""
    place = world.find(what, index)
    world.lines.insert(place, replace(world.lines[place], pid=9))


@pytest.mark.parametrize(("what", "index"), [("begin", 1), ("undoing", 2), ("begin", 3), ("undoing", 1)])
def test_what_is_executed_again_was_in_the_hands_of_somebody_who_was_killed(what: str, index: int) -> None:
    world = clean(COMPENSATED)
    repeat(world, what, index)
    at = world.lines[world.find(what, index)].at
    assert world.broken(deaths={9: at}) == []
    assert world.broken() == ["4 repeated"]
    assert world.broken(deaths={9: at - 1}) == ["4 repeated"]  # of another one who had that number
    assert world.broken(deaths={9: at + 1}) == ["4 repeated"]  # it was overtaken before
    assert world.broken(stale=True) == world.broken(database_away=True) == []


@pytest.mark.parametrize("ended", ["done", "raised"])
def test_what_was_killed_before_it_could_tell_is_executed_again(ended: str) -> None:
    world = World(COMPLETED)
    world.say(2, "begin", ended, pid=9)
    world.say(2, "begin", "done")
    world.facts.runs[COMPLETED.name] = RunFacts("run", "running")
    assert world.broken(deaths={9: 1.5}) == ["1 stuck"]
    assert world.broken() == ["1 stuck", "4 repeated"]


@pytest.mark.parametrize(("index", "broken"), [(0, []), (2, ["4 repeated"])])
def test_whoever_went_on_was_not_killed_in_what_it_did_before(index: int, broken: list[str]) -> None:
    world = clean(COMPENSATED)
    died = world.lines[-1].at  # having undone step 0
    world.say(index, "undoing", "undone", pid=2)
    assert world.broken(deaths={1: died + 0.5}) == broken


def test_an_undo_that_is_executed_again_for_a_late_effect_needs_no_death() -> None:
    world = clean(COMPENSATED)
    world.say(0, "done", "undoing", "undone", pid=2)
    assert world.broken() == []
    world.say(0, "undoing", "undone", pid=2)
    assert world.broken() == ["4 repeated"]


def test_an_effect_that_arrived_late_and_was_undone_is_no_violation() -> None:
    world = clean(COMPENSATED)
    world.say(0, "done", "undoing", "undone", pid=2)
    world.say(1, "done", pid=3)
    world.say(1, "undoing", "undone", attempt=1)
    assert world.violations() == []


def test_a_late_effect_of_a_process_that_was_killed_is_nobodys() -> None:
    world = clean(COMPENSATED)
    world.say(0, "done", pid=2)
    at = world.lines[-1].at
    assert world.broken() == ["2 half"]
    assert world.broken(deaths={2: at + 0.1}) == []
    assert world.broken(deaths={2: at + 60}) == ["2 half"]  # it had the time to tell
    assert world.broken(deaths={2: at - 60}) == ["2 half"]


CRASH_LOOP = "its worker died 5 times in a row, 3 times while it executed nothing else"


def crash_loop(*whats: str, attempt: int = 1, reason: str = CRASH_LOOP) -> tuple[World, dict[int, float]]:
    """A run that is parked after five processes began its first step; tells when each was killed: in it."""
    world, deaths = World(COMPLETED), {}
    for pid in range(1, 6):
        world.say(0, *whats, pid=pid, attempt=attempt)
        deaths[pid] = world.lines[-1].at + 0.5
    world.facts.runs[COMPLETED.name] = RunFacts("r", "parked", reason)
    return world, deaths


def test_a_park_is_no_violation_only_if_five_processes_were_killed_on_one_step() -> None:
    world, deaths = crash_loop("begin")
    assert world.broken(deaths=deaths) == []
    assert "1 parked" in world.broken(deaths={pid: at for pid, at in deaths.items() if pid < 5})
    assert "1 parked" in world.broken()


def test_stale_owners_are_overtaken_five_times_more_before_that_parks() -> None:
    world, _ = crash_loop("begin")
    world.lines += [replace(line, at=line.at + 5) for line in world.lines[1:]]
    assert "1 parked" not in world.broken(stale=True)
    assert "1 parked" in world.broken()
    world.lines.pop()
    assert "1 parked" in world.broken(stale=True)


def test_one_of_them_may_have_been_killed_between_two_steps() -> None:
    world, deaths = crash_loop("begin")
    world.lines[0] = replace(world.lines[0], step="1", what="done")
    assert "1 parked" not in world.broken(deaths=deaths)
    assert "1 parked" in world.broken(deaths={**deaths, 1: world.lines[0].at - 1})  # before all that
    world.lines[1] = replace(world.lines[1], step="1", what="done")
    assert "1 parked" in world.broken(deaths=deaths)


def test_a_park_for_anything_else_is_a_violation_whoever_was_killed() -> None:
    world, deaths = crash_loop("begin", reason="aft could not write: boom")
    assert world.broken(deaths=deaths) == ["1 parked"]


def test_killed_later_is_not_killed_on_it() -> None:
    world, deaths = crash_loop("begin")
    assert "1 parked" in world.broken(deaths=dict.fromkeys(deaths, 99.0))


def test_killed_in_different_attempts_is_not_in_a_row() -> None:
    world, deaths = crash_loop("begin")
    world.lines[:2] = [replace(line, attempt=2) for line in world.lines[:2]]
    assert "1 parked" in world.broken(deaths=deaths)


def test_killed_after_the_step_was_recorded_is_not_killed_on_it() -> None:
    world, deaths = crash_loop("begin", "done")
    assert world.broken(deaths=deaths) == []
    world.change(journal=(JournalRow("1", 1, 1, "ok"),))
    assert world.broken(deaths=deaths) == ["1 parked"]


def test_killed_after_the_undo_was_recorded_is_not_killed_on_it() -> None:
    world, deaths = crash_loop("undoing", "undone")
    world.change(owed=("1",))
    assert world.broken(deaths=deaths) == []
    world.change(owed=())
    assert world.broken(deaths=deaths) == ["1 parked"]


def test_a_run_that_lay_still_for_too_long_was_stuck_though_it_went_on() -> None:
    world = clean(COMPLETED)
    gone_on = world.find("begin", 1)
    world.lines[gone_on:] = [replace(line, at=line.at + 30) for line in world.lines[gone_on:]]
    assert world.broken() == world.broken(still=31.0) == []
    assert world.broken(still=30.0) == ["1 stuck"]


@pytest.mark.parametrize("times", [{"made": -30.0, "ended": 20.0}, {"made": -1.0, "ended": 39.0}])
def test_a_run_that_began_or_ended_late_was_stuck(times: dict[str, float]) -> None:
    world = clean(COMPLETED)
    world.change(**times)
    assert world.lines[-1].at == 7.0
    assert world.broken(still=32.5) == []
    assert world.broken(still=29.5) == ["1 stuck"]


@pytest.mark.parametrize(
    ("plan", "what", "index", "planned"),
    [
        (Plan("slow", (StepPlan("slow", seconds=2.5),), "completed"), "done", 0, 2.5),
        (Plan("ladder", (StepPlan("plain", failures=7),), "completed"), "done", 0, 2.0),
        (COMPENSATED, "undone", 1, 0.05),
    ],
)
def test_what_a_plan_wants_is_not_lying_still(plan: Plan, what: str, index: int, planned: float) -> None:
    world = clean(plan)
    place = world.find(what, index) - (0 if what == "done" and planned == 2.5 else 1)
    world.lines[place:] = [replace(line, at=line.at + planned) for line in world.lines[place:]]
    assert longest_still(plan, world.lines, {}, None) == pytest.approx(1.0, abs=0.001)


def test_a_run_lies_still_from_the_death_of_its_worker() -> None:
    plan = Plan("slow", (StepPlan("slow", seconds=3.0),), "completed")
    world = clean(plan)
    world.lines = [replace(world.lines[0], pid=9), *(replace(line, at=line.at + 10) for line in world.lines)]
    assert longest_still(plan, world.lines, {}, None) == 7.0
    assert longest_still(plan, world.lines, {9: 1.0}, None) == 9.0
    assert longest_still(plan, world.lines, {9: 9.0}, None) == 6.0


def test_what_was_executed_more_than_once_is_counted() -> None:
    world = clean(COMPENSATED)
    for what, index in (("begin", 1), ("begin", 1), ("undoing", 2)):
        repeat(world, what, index)
    attempts = figures([world.plan], world.lines, world.facts, {})["attempts executed more than once"]
    assert attempts == {"count": 2, "of": 9, "share in %": 22.2222}


def _lose(world: World) -> None:
    world.facts.runs.clear()


def _leave_in_outbox(world: World) -> None:
    world.facts = replace(world.facts, outbox=3)


def _forget_done(world: World) -> None:
    del world.lines[world.find("done", 0)]


def _forget_undo(world: World) -> None:
    world.lines = [line for line in world.lines if not (line.step == "0" and line.what.startswith("und"))]


def _forget_doomed(world: World) -> None:
    world.lines = [line for line in world.lines if not (line.step == "3" and line.what.startswith("und"))]


def _swap_undos(world: World) -> None:
    world.move(world.find("undoing", 0), world.find("undone", 1))


def _double_journal(world: World) -> None:
    rows = world.facts.runs[world.plan.name].journal
    world.change(journal=(*rows, replace(rows[0], seq=99)))


def _stale_journal(world: World) -> None:
    first, *rest = world.facts.runs[world.plan.name].journal
    world.change(journal=(replace(first, epoch=2), *rest), epoch=2)


def _hurry(world: World) -> None:
    failed, again = world.lines[world.find("raised", 2)], world.find("raised", 2) + 1
    world.lines[again] = replace(world.lines[again], at=failed.at + 0.04)


def _hurry_undo(world: World) -> None:
    failed, again = world.lines[world.find("undo_raised", 1)], world.find("undo_raised", 1) + 1
    world.lines[again] = replace(world.lines[again], at=failed.at + 0.04)


def _book(world: World, booked: int, unbooked: int) -> None:
    index = next(str(i) for i, step in enumerate(world.plan.steps) if step.kind == "booked")
    world.facts = replace(
        world.facts,
        booked=Counter({(world.plan.name, index): booked}),
        unbooked=Counter({(world.plan.name, index): unbooked}),
    )


Harm = Callable[[World], object]

HARMS: list[tuple[str, Plan, Harm]] = [
    ("1 lost", COMPLETED, _lose),
    ("1 lost", COMPLETED, _leave_in_outbox),
    ("1 stuck", COMPLETED, lambda world: world.change(status="running")),
    ("1 stuck", COMPENSATED, lambda world: world.change(status="compensating")),
    ("1 parked", COMPLETED, lambda world: world.change(status="parked", reason="help")),
    ("2 wrong end", COMPLETED, lambda world: world.change(status="compensated")),
    ("2 wrong end", COMPENSATED, lambda world: world.change(status="failed")),
    ("2 half", COMPLETED, _forget_done),
    ("2 half", COMPENSATED, _forget_done),
    ("2 half", COMPENSATED, _forget_undo),
    ("2 half", COMPENSATED, _forget_doomed),
    ("2 half", CAUGHT, lambda world: world.say(1, "done", pid=2)),
    ("2 half", COMPENSATED, lambda world: world.say(0, "done", pid=2)),
    ("2 half", COMPENSATED, lambda world: world.change(owed=("1",))),
    ("2 half", COMPENSATED, lambda world: world.change(late=1)),
    ("2 half", COMPLETED, lambda world: world.change(faults=1)),
    ("2 both", COMPLETED, lambda world: world.say(0, "undoing", "undone")),
    ("2 both", CAUGHT, lambda world: world.say(4, "undoing", "undone")),
    ("3 order", COMPENSATED, _swap_undos),
    ("3 order", COMPENSATED, _forget_doomed),
    ("4 key", COMPLETED, lambda world: world.say(0, "begin", "done", key="another")),
    ("4 key", COMPENSATED, lambda world: world.say(0, "undone", key="bad/0")),
    ("4 outcome", COMPLETED, _double_journal),
    ("4 outcome", COMPLETED, lambda world: world.change(journal=())),
    ("4 outcome", COMPLETED, lambda world: world.say(0, "begin", "done")),
    ("4 repeated", COMPLETED, lambda world: world.say(2, "begin", "done", attempt=2)),
    ("4 repeated", COMPLETED, lambda world: world.say(2, "begin", "raised", attempt=1)),
    ("4 repeated", COMPENSATED, lambda world: world.say(0, "undoing", "undone")),
    ("4 transactional", COMPLETED, lambda world: _book(world, 0, 0)),
    ("4 transactional", COMPLETED, lambda world: _book(world, 2, 0)),
    ("4 transactional", COMPLETED, lambda world: _book(world, 2, 1)),
    ("4 transactional", COMPENSATED, lambda world: _book(world, 1, 0)),
    ("4 transactional", COMPENSATED, lambda world: _book(world, 2, 2)),
    ("5 attempts", COMPLETED, lambda world: world.say(0, "begin", attempt=2)),
    ("5 attempts", COMPENSATED, lambda world: world.say(0, "undoing", "undone", attempt=2)),
    ("5 early", COMPLETED, _hurry),
    ("5 early", COMPENSATED, _hurry_undo),
    ("6 stale", COMPLETED, _stale_journal),
    ("6 stale", COMPLETED, lambda world: world.change(epoch=0)),
]


@pytest.mark.parametrize(("promise", "plan", "harm"), HARMS)
def test_each_broken_promise_is_found(promise: str, plan: Plan, harm: Harm) -> None:
    world = clean(plan)
    harm(world)
    assert promise in world.broken()


def test_flags_take_back_only_their_own_promise() -> None:
    early, again, counted = clean(COMPLETED), clean(COMPLETED), clean(COMPLETED)
    _hurry(early)
    again.say(0, "begin", "done")
    counted.say(1, "begin", attempt=2)
    assert (early.broken(), early.broken(schedule=False)) == (["5 early"], [])
    assert (again.broken(), again.broken(stale=True)) == (["4 outcome", "4 repeated"], [])
    assert counted.broken(stale=True, database_away=True) == ["5 attempts"]


def test_a_ledger_survives_a_torn_last_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.append("a", "0", "begin", "k", 1)
    ledger.append("a", "0", "done", "k", 1)
    with ledger.path.open("ab") as file:
        file.write(b'{"at": 1.0, "pi')
    assert [(line.what, line.load) for line in ledger.read()] == [("begin", "a"), ("done", "a")]


def test_plans_are_the_same_in_every_process_and_cover_every_kind() -> None:
    assert plan_of(3, 14) == plan_of(3, 14) == Plan.decode(plan_of(3, 14).encode())
    plans = [plan_of(3, number) for number in range(2000)]
    assert {step.kind for plan in plans for step in plan.steps} == {
        *("plain", "slow", "bare", "started", "booked", "fatal", "doomed")
    }
    assert 0.2 < sum(plan.end == "compensated" for plan in plans) / len(plans) < 0.4
    assert any(plan.savepoint for plan in plans)
    assert all(1 <= len(plan.steps) <= 6 for plan in plans)
