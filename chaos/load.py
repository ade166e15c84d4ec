"""The load: flows that behave as their plans define, whichever process executes them and however often.

A plan is made from a seed and a number, so every process and the checker know it. What an attempt does depends only on
the plan and on the attempt's number: one that was killed and is repeated does the same again.
"""

from __future__ import annotations

import functools
import json
import os
import random
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import text
from tenacity import Retrying, retry_if_exception_type, wait_fixed

import aft
from aft.store import Store
from chaos.ledger import Ledger, What

#: Seconds that a step waits after its first, second, … failure.
LADDER = (0.05,) * 3 + (0.2,) * 3 + (2.0,)
#: The same, as activities declare it.
LEVELS = [aft.Level("50ms", tries=3), aft.Level("200ms", tries=3), aft.Level("2s")]

#: Kinds of steps that have a compensator, and what runs it: having completed, or having started.
UNDOABLE = ("plain", "slow", "started", "booked", "doomed")
#: Kinds of steps that fail for good, without an effect.
FATAL = ("fatal", "doomed")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step: how often it and its undo fail before they succeed, and how long it takes.

    ========  ============================================================================================
    kind      what it is
    ========  ============================================================================================
    plain     has a compensator
    slow      the same, and takes its time
    bare      has none; only in plans where it stands
    started   its compensator is owed from its start (``when="started"``)
    booked    transactional: its effect is a row in aft's own database; so is its undo
    fatal     fails for good, without an effect
    doomed    the same, with a compensator that is owed from its start
    ========  ============================================================================================
    """

    kind: str
    failures: int = 0
    undo_failures: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does and how it must end; ``savepoint``: the steps [from, to) that fail, caught, and are undone."""

    name: str
    steps: tuple[StepPlan, ...]
    end: str
    savepoint: tuple[int, int] | None = None

    def stands(self, index: int) -> bool:
        """Whether a step's effect must remain at the end."""
        return self.end == "completed" and not self.is_inside(index) and self.steps[index].kind not in FATAL

    def is_inside(self, index: int) -> bool:
        """Whether a step is under the savepoint."""
        return self.savepoint is not None and self.savepoint[0] <= index < self.savepoint[1]

    def path(self, index: int) -> str:
        """Return the path that aft gives a step: the savepoint takes a number, and numbers its own steps."""
        if self.savepoint is None or index < self.savepoint[0]:
            return str(index + 1)
        first, after = self.savepoint
        return f"{first + 1}.{index - first + 1}" if index < after else str(index + 1 - (after - first) + 1)

    def encode(self) -> str:
        """Encode it as the flow's argument."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def decode(spelt: str) -> Plan:
        """Decode what ``encode`` wrote."""
        given = json.loads(spelt)
        steps = tuple(StepPlan(**step) for step in given["steps"])
        savepoint = given["savepoint"]
        return Plan(given["name"], steps, given["end"], None if savepoint is None else (savepoint[0], savepoint[1]))


def plan_of(seed: int, number: int, *, slow: float = 0.03) -> Plan:
    """Make the plan of a number, mostly a few quick steps; ``slow`` is the share of plans with a slow one."""
    draw = random.Random(f"{seed}/{number}")
    compensated = draw.random() < 0.3
    steps = [_step(draw, bare=not compensated) for _ in range(draw.choice((1, 2, 2, 3, 3, 4, 5, 6)))]
    if draw.random() < slow:
        place = draw.randrange(len(steps))
        steps[place] = StepPlan("slow", 0, steps[place].undo_failures, round(draw.uniform(0.05, 3.0), 3))
    savepoint = None
    if len(steps) >= 3 and draw.random() < 0.2:
        savepoint = (1, len(steps) - 1)
        steps[1:-1] = [_undoable(step) for step in steps[1:-2]] + [_fatal(draw)]
    if compensated:
        steps[-1] = _fatal(draw)
        steps[:-1] = [_undoable(step) for step in steps[:-1]]
    return Plan(f"{seed}-{number}", tuple(steps), "compensated" if compensated else "completed", savepoint)


def _step(draw: random.Random, *, bare: bool) -> StepPlan:
    kind = draw.choice(("plain", "plain", "plain", "started", "booked", "bare" if bare else "plain"))
    failures = draw.choice((1, 1, 1, 2, 2, 4)) if draw.random() < 0.12 else 0
    undo_failures = draw.choice((1, 1, 2, 4)) if draw.random() < 0.15 else 0
    return StepPlan(kind, failures, undo_failures, draw.choice((0.0, 0.0, 0.002, 0.005)))


def _undoable(step: StepPlan) -> StepPlan:
    return replace(step, kind="plain") if step.kind == "bare" else step


def _fatal(draw: random.Random) -> StepPlan:
    kind = draw.choice(("fatal", "fatal", "doomed"))
    return StepPlan(kind, draw.choice((0, 0, 0, 1)), draw.choice((0, 0, 1)) if kind == "doomed" else 0)


# What a run executes --------------------------------------------------------------------------------------------


class Busy(Exception):
    """Raised by an attempt that is to be retried."""


class Doomed(Exception):
    """Raised by a step that fails for good."""


@functools.lru_cache(maxsize=4)
def _ledger_at(path: str) -> Ledger:
    return Ledger(path)


def ledger() -> Ledger:
    """Return the ledger of this process, which its environment names."""
    return _ledger_at(os.environ["AFT_TEST_LEDGER"])


def _note(load: str, step: str, what: What) -> None:
    here = aft.current()
    ledger().append(load, step, what, here.key, here.attempt)


def _forward(load: str, step: str, failures: int, seconds: float) -> None:
    _note(load, step, "begin")
    if aft.current().attempt <= failures:
        _note(load, step, "raised")
        raise Busy(f"{load} {step}")
    if seconds:
        time.sleep(seconds)


def _backward(load: str, step: str, undo_failures: int) -> None:
    _note(load, step, "undoing")
    if aft.current().attempt <= undo_failures:
        _note(load, step, "undo_raised")
        raise Busy(f"{load} {step}")


_as_planned: dict[str, Any] = {"levels": LEVELS, "recoverable": (Busy,), "unrecoverable": (Doomed,)}


def undo(load: str, step: str, undo_failures: int) -> None:
    """Undo the effect of a plain step."""
    _backward(load, step, undo_failures)
    _note(load, step, "undone")


@aft.compensate_with(undo)
@aft.activity(**_as_planned)
def plain(load: str, step: str, failures: int, undo_failures: int, seconds: float) -> str:
    """Record an effect that its compensator can undo."""
    _forward(load, step, failures, seconds)
    _note(load, step, "done")
    return step


@aft.activity(**_as_planned)
def bare(load: str, step: str, failures: int, undo_failures: int, seconds: float) -> str:
    """Record an effect that has no compensator."""
    _forward(load, step, failures, seconds)
    _note(load, step, "done")
    return step


@aft.compensate_with(undo, when="started")
@aft.activity(**_as_planned)
def started(load: str, step: str, failures: int, undo_failures: int, seconds: float) -> str:
    """Record an effect whose undo is owed from the start of its attempt."""
    _forward(load, step, failures, seconds)
    _note(load, step, "done")
    return step


@aft.activity(transactional=True, **_as_planned)
def unbook(load: str, step: str, undo_failures: int) -> None:
    """Undo a booking in aft's own transaction."""
    _backward(load, step, undo_failures)
    _write(load, step, "unbook")
    _note(load, step, "undone")


@aft.compensate_with(unbook)
@aft.activity(transactional=True, **_as_planned)
def booked(load: str, step: str, failures: int, undo_failures: int, seconds: float) -> str:
    """Book in aft's own transaction; the line in the ledger is written before the commit."""
    _forward(load, step, failures, seconds)
    _write(load, step, "book")
    _note(load, step, "done")
    return step


@aft.activity(**_as_planned)
def fatal(load: str, step: str, failures: int, undo_failures: int, seconds: float) -> str:
    """Fail for good."""
    _forward(load, step, failures, seconds)
    _note(load, step, "raised")
    raise Doomed(f"{load} {step}")


@aft.compensate_with(undo, when="started")
@aft.activity(**_as_planned)
def doomed(load: str, step: str, failures: int, undo_failures: int, seconds: float) -> str:
    """Fail for good, although the undo is owed."""
    _forward(load, step, failures, seconds)
    _note(load, step, "raised")
    raise Doomed(f"{load} {step}")


_ACTIVITIES: dict[str, aft.Activity[Any, str]] = {
    "plain": plain,
    "slow": plain,
    "bare": bare,
    "started": started,
    "booked": booked,
    "fatal": fatal,
    "doomed": doomed,
}


@aft.flow
def chaos_flow(plan: str) -> str:
    """Execute the plan."""
    given = Plan.decode(plan)
    first, after = given.savepoint or (len(given.steps), len(given.steps))
    _walk(given, 0, first)
    if given.savepoint is not None:
        try:
            with aft.savepoint("caught"):
                _walk(given, first, after)
        except Doomed:
            pass
    _walk(given, after, len(given.steps))
    return given.name


def _walk(plan: Plan, first: int, after: int) -> None:
    for index in range(first, after):
        step = plan.steps[index]
        _ACTIVITIES[step.kind](plan.name, str(index), step.failures, step.undo_failures, step.seconds)


def _write(load: str, step: str, what: str) -> None:
    aft.session().execute(
        text("INSERT INTO chaos_booked (run_id, load, step, what) VALUES (:run, :load, :step, :what)"),
        {"run": aft.current().run_id, "load": load, "step": step, "what": what},
    )


@aft.activity
def answer(load: str, sent: float) -> None:
    """Record that the signal has arrived."""
    _note(load, "0", "begin")


@aft.flow
def patient(load: str) -> float:
    """Wait for a signal."""
    sent: float = aft.wait_for("verdict", float)
    answer(load, sent)
    return sent


# Setting it going -----------------------------------------------------------------------------------------------


def prepare(store: Store) -> None:
    """Create the table that transactional steps write to; it has no unique key, so that duplicates show."""
    with store.write() as connection:
        connection.execute(
            text(
                "CREATE TABLE IF NOT EXISTS chaos_booked "
                "(run_id VARCHAR(64) NOT NULL, load TEXT NOT NULL, step TEXT NOT NULL, what TEXT NOT NULL)"
            )
        )


def submit(app: aft.Aft, plans: Iterable[Plan]) -> int:
    """Submit a run of each plan with its name as key, retrying while the database is away; return how many."""
    count = 0
    again = Retrying(retry=retry_if_exception_type(aft.StoreError), wait=wait_fixed(0.1))
    for plan in plans:
        again(app.submit, chaos_flow.options(key=plan.name), plan.encode())
        count += 1
    return count
