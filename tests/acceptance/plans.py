"""Flows that are data: a plan says what a flow does and what fails in it; two flows, plain and async, execute any plan.

What happens is written to a ledger, a file of one JSON line for each event: it survives the process that writes it, and
``oracle`` compares it with what the plan says. Failures follow from the plan and the ledger alone, so that a plan has
the same failures whichever process executes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from sqlalchemy import text

import aft
from aft.ids import RunId
from tests.world import apps

#: Tries of an activity's ladder: with them, ``exhausts`` fails for good.
TRIES = 3
#: Seconds after which an activity stops waiting for what has to happen beside it.
PATIENCE = 30.0

#: How an activity, a compensator or the flow's own code fails for good.
Failure = Literal["", "nope", "value", "exhausts", "base", "exit", "generator", "cancelled", "group", "stop", "bug"]
Kind = Literal[
    "act",
    "wait",
    "perhaps",
    "sleep",
    "savepoint",
    "try",
    "child",
    "parallel",
    "map",
    "gather",
    "pivot",
    "raise",
    "die",
    "set",
    "unordered",
]


class Data(BaseModel):
    """Shows only what differs from the default."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.get_default():
                yield name, value


@dataclass(frozen=True)
class Thing:
    """Something that a set may hold."""

    name: str


class Part(Data):
    """One part of a flow; most fields are those of an activity."""

    kind: Kind = "act"
    number: int = 0
    undo: Literal["none", "plain", "started"] = "plain"
    how: Literal["plain", "async", "transactional"] = "plain"
    #: How often the activity fails for a while, and how it fails for good.
    busy: int = 0
    fails: Failure = ""
    #: The same of its compensator; one that fails for good parks the run, and is healed by hand.
    undo_busy: int = 0
    undo_fails: Failure = ""
    #: Milliseconds.
    pause: int = 0
    #: The process is killed at the first try, before or after the effect; only where processes may be killed.
    dies: Literal["", "before", "after"] = ""
    undo_dies: Literal["", "before", "after"] = ""
    #: The activity ends only when that one was begun: it has to be executed beside this one.
    gate: int = 0
    #: Signals that the activity sends to its own run when it begins.
    sends: list[int] = []
    #: In an async flow: called, not awaited.
    blocking: bool = False
    #: When a signal comes; ``overdue``: only after the deadline was told to the flow.
    sent: Literal["early", "during", "late", "overdue"] = "late"
    #: Sets that go with the part, wherever it is an argument. Set: the names of its parts, as texts and as things.
    texts: set[str] = set()
    things: set[Thing] = set()
    #: Which set its parts are taken from: one of the flow's own arguments, or one that an activity has returned.
    of: Literal["given texts", "given things", "returned texts", "returned things"] = "given texts"
    #: Savepoint, try, set: one branch. Child: its generations. Parallel, map, gather: side by side.
    branches: list[list[Part]] = []
    caught: bool = True
    is_async: bool = False
    most: int = 2


class Plan(Data):
    """A run: its generations, and what comes from outside."""

    generations: list[list[Part]]
    is_async: bool = False
    deadline: bool = False
    #: Undo it when it has completed.
    undone: bool = False
    #: What becomes of which write of the owners: ``forest.Fate``.
    fates: dict[int, str] = {}


def everything(generations: Iterable[Sequence[Part]]) -> Iterator[Part]:
    """All parts, in the order of the code."""
    for parts in generations:
        for part in parts:
            yield part
            yield from everything(part.branches)


def in_own_flow(generations: Iterable[Sequence[Part]]) -> Iterator[Part]:
    """All parts but those of children."""
    for parts in generations:
        for part in parts:
            yield part
            if part.kind != "child":
                yield from in_own_flow(part.branches)


def prepare(plan: Plan) -> Plan:
    """Number the parts; let each flow's first activity send what comes during it; open gates that cannot open."""
    plan = Plan.model_validate_json(plan.model_dump_json())  # no part is in it twice
    for number, part in enumerate(everything(plan.generations), start=1):
        part.number = number
    for part in everything(plan.generations):
        if part.kind == "set":
            part.texts = {f"{inner.number:04}" for inner in part.branches[0]}
            part.things = {Thing(name) for name in part.texts}
    for flow in (plan.generations, *(part.branches for part in everything(plan.generations) if part.kind == "child")):
        for parts in flow:  # a signal is for the generation that awaits it
            acts = [part for part in in_own_flow([parts]) if part.kind == "act" and part.how != "transactional"]
            waits = [part.number for part in in_own_flow([parts]) if part.kind == "wait" and part.sent == "during"]
            if acts:
                acts[0].sends = waits
    for part in everything(plan.generations):
        if (
            part.kind == "gather"
            and part.branches[0][0].kind in ("wait", "sleep")
            and not (plan.deadline or plan.fates)
        ):
            _gate(part.branches[0], part.branches[1][0])
    return plan


def _gate(waiting: Sequence[Part], working: Part) -> None:
    """Let an activity end only when the one after a wait beside it was begun."""
    later = next((part for part in waiting if part.kind == "act"), None)
    if later is None or working.kind != "act" or working.blocking or working.how == "transactional":
        return
    working.gate = later.number
    if waiting[0].sent == "during" and waiting[0].number in later.sends:
        later.sends.remove(waiting[0].number)
        working.sends.append(waiting[0].number)


# --- the ledger -------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One event: what, in which run, under which key or in which pass, for which part, and more."""

    what: str
    run: str
    key: str
    number: int
    more: Any = None


def note(plan: str, what: str, run: str, key: str, number: int, more: Any = None) -> None:
    """Append a line to a plan's ledger, in one write."""
    line = json.dumps([what, run, key, number, more]) + "\n"
    file = os.open(plan, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def ledger(plan: str) -> list[Line]:
    """Read a plan's ledger."""
    path = Path(plan)
    return [Line(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _die(plan: str, what: str, part: Part) -> None:
    """Kill this process, once for each part and moment."""
    if not any(line[:1] + line[3:] == ("dies", part.number, what) for line in ledger(plan)):
        note(plan, "dies", str(aft.current().run_id), "", part.number, what)
        os.kill(os.getpid(), signal.SIGKILL)


def _count(plan: str, what: str, number: int) -> int:
    return sum(line.what == what and line.number == number for line in ledger(plan))


# --- failures ---------------------------------------------------------------------------------------------------------


class Nope(Exception):
    """Fails for good."""


class Base(BaseException):
    """Fails for good, and is no Exception."""


def _raise(failure: Failure) -> None:
    if failure == "nope":
        raise Nope("nope")
    if failure == "value":
        raise ValueError("worthless")
    if failure == "exhausts":
        raise ConnectionError("away for good")
    if failure == "base":
        raise Base("base")
    if failure == "exit":
        raise SystemExit(3)
    if failure == "generator":
        raise GeneratorExit
    if failure == "cancelled":
        raise asyncio.CancelledError
    if failure == "group":
        raise BaseExceptionGroup("several", [Base("base"), Nope("nope")])
    if failure == "stop":
        raise StopIteration(7)
    if failure == "bug":
        raise AssertionError("a mistake of the code")


# --- activities -------------------------------------------------------------------------------------------------------


def _do(plan: str, part: Part) -> int:
    here = aft.current()
    run, key = str(here.run_id), here.key
    tried = _count(plan, "try", part.number)
    note(plan, "try", run, key, part.number)
    if part.dies == "before":
        _die(plan, "before", part)
    if part.pause:
        time.sleep(part.pause / 1000)
    for number in part.sends:
        (apps.get(plan) or _own_app()).run(RunId(run)).signal(f"s{number}", number, key="one")
    if part.gate:
        _await_try(plan, part.gate)
    if part.undo == "started":
        note(plan, "do", run, key, part.number)  # it may have had its effect, whatever it says
    if tried < part.busy:
        raise ConnectionError("busy")
    _raise(part.fails)
    if part.how == "transactional":
        aft.session().execute(text("INSERT INTO plan_effects (id) VALUES (:id)"), {"id": key})
    if part.undo != "started":
        note(plan, "do", run, key, part.number)
    if part.dies == "after":
        _die(plan, "after", part)
    return part.number


@cache
def _own_app() -> aft.Aft:
    return aft.Aft.from_env()


def _await_try(plan: str, number: int) -> None:
    limit = time.monotonic() + PATIENCE
    while not _count(plan, "try", number):
        assert time.monotonic() < limit, f"activity {number} was not begun beside this one within {PATIENCE} s"
        time.sleep(0.01)


def _undo(plan: str, part: Part, key: str) -> None:
    run = str(aft.current().run_id)
    tried = _count(plan, "undo try", part.number)
    note(plan, "undo try", run, key, part.number)
    if part.undo_dies == "before":
        _die(plan, "before undo", part)
    if tried < part.undo_busy:
        raise ConnectionError("busy")
    if part.undo_fails and not _count(plan, "healed", part.number):
        note(plan, "ails", run, key, part.number)
        _raise(part.undo_fails)
    note(plan, "undo", run, key, part.number)
    if part.undo_dies == "after":
        _die(plan, "after undo", part)


def _undo_started(plan: str, part: Part, key: str, result: Any) -> None:
    assert result in (part.number, aft.UNKNOWN)
    _undo(plan, part, key)


_policy: dict[str, Any] = {"levels": [aft.Level("1ms", tries=TRIES)], "unrecoverable": (Nope,)}


@aft.activity(name="plan_none", **_policy)
def act_none(plan: str, part: Part) -> int:
    return _do(plan, part)


@aft.compensate_with(_undo)
@aft.activity(name="plan_plain", **_policy)
def act_plain(plan: str, part: Part) -> int:
    return _do(plan, part)


@aft.compensate_with(_undo_started, when="started")
@aft.activity(name="plan_started", **_policy)
def act_started(plan: str, part: Part) -> int:
    return _do(plan, part)


@aft.compensate_with(_undo)
@aft.activity(name="plan_transactional", transactional=True, **_policy)
def act_transactional(plan: str, part: Part) -> int:
    return _do(plan, part)


@aft.compensate_with(_undo)
@aft.activity(name="plan_async", **_policy)
async def act_async(plan: str, part: Part) -> int:
    if part.fails in ("exit", "generator", "stop"):
        return _do(plan, part)  # a thread of asyncio's takes these for itself
    return await asyncio.to_thread(_do, plan, part)


class Job(Data):
    """What ``aft.map`` hands on: one argument."""

    plan: str
    part: Part


def _undo_mapped(job: Job, key: str) -> None:
    _undo(job.plan, job.part, key)


@aft.compensate_with(_undo_mapped)
@aft.activity(name="plan_mapped", **_policy)
def act_mapped(job: Job) -> int:
    return _do(job.plan, job.part)


@aft.activity(name="plan_texts", **_policy)
def give_texts(texts: set[str]) -> set[str]:
    return texts


@aft.activity(name="plan_things", **_policy)
def give_things(things: set[Thing]) -> set[Thing]:
    return things


class Named(Data):
    """One of several things whose order is that of a set."""

    plan: str
    number: int
    name: str
    dies: bool


def _undo_named(named: Named, key: str) -> None:
    note(named.plan, "undo named", str(aft.current().run_id), key, named.number, named.name)


@aft.compensate_with(_undo_named)
@aft.activity(name="plan_named", **_policy)
def act_named(named: Named) -> str:
    """Do something by its name; with ``dies`` the process is killed before the effect, once for each part."""
    run, key = str(aft.current().run_id), aft.current().key
    if named.dies and not _count(named.plan, "dies", named.number):
        note(named.plan, "dies", run, key, named.number, named.name)
        os.kill(os.getpid(), signal.SIGKILL)
    note(named.plan, "do named", run, key, named.number, named.name)
    return named.name


def _activity(part: Part) -> aft.Activity[[str, Part], Any]:
    if part.how == "transactional":
        return act_transactional
    if part.how == "async":
        return act_async
    return {"none": act_none, "plain": act_plain, "started": act_started}[part.undo]


# --- flows ------------------------------------------------------------------------------------------------------------


class Eyes:
    """Notes what the code of one run sees in one pass over one generation."""

    def __init__(self, plan: str, generations: list[list[Part]]) -> None:
        self.plan = plan
        self.run = str(aft.current().run_id)
        self.key = f"{generations[0][0].number}/{secrets.token_hex(4)}"

    def see(self, what: str, part: Part, value: Any = None) -> None:
        """Note something; while the run leaves this raises, as every call of aft does."""
        more = [what, value, aft.now().isoformat(), str(aft.uuid()), aft.random().random()]
        note(self.plan, "saw", self.run, self.key, part.number, more)

    @contextmanager
    def at(self, part: Part) -> Iterator[None]:
        """Note how a part is left, if it does not return."""
        if part.sent == "overdue":
            self.see("begins", part)
        try:
            yield
        except (Exception, asyncio.CancelledError, Base) as error:
            self.see("raised", part, type(error).__name__)
            raise


@aft.flow(name="plan_flow")
def plain_flow(plan: str, generations: list[list[Part]]) -> int:
    _walk(plan, generations[0], Eyes(plan, generations))
    if generations[1:]:
        aft.continue_as_new(plan, generations[1:])
    return len(generations[0])


def _walk(plan: str, parts: Sequence[Part], eyes: Eyes) -> int:
    for part in parts:
        try:
            with eyes.at(part):
                value = _go(plan, part, eyes)
        except Exception:
            if part.kind not in ("savepoint", "try") or not part.caught:
                raise
            value = "caught"
        eyes.see("returned", part, value)
    return len(parts)


def _go(plan: str, part: Part, eyes: Eyes) -> Any:
    if part.kind == "act":
        return _activity(part)(plan, part)
    if part.kind == "savepoint":
        with aft.savepoint(f"savepoint {part.number}"):
            return _walk(plan, part.branches[0], eyes)
    if part.kind == "try":
        return _walk(plan, part.branches[0], eyes)
    if part.kind == "set":
        things = aft.parallel(_call_for(part))[0] if part.of.startswith("returned") else _given(part)
        return [_walk(plan, [_named(part, thing)], eyes) for thing in things]
    if part.kind == "parallel":
        return list(aft.parallel(*(_call(plan, branch[0]) for branch in part.branches)))
    if part.kind == "map":
        return aft.map(act_mapped, [Job(plan=plan, part=branch[0]) for branch in part.branches], concurrency=part.most)
    if part.kind == "child":
        return (async_flow if part.is_async else plain_flow)(plan, part.branches)
    return _mark(plan, part)


def _mark(plan: str, part: Part) -> Any:
    """Do what is neither an activity nor has branches."""
    if part.kind == "wait":
        return aft.wait_for(f"s{part.number}", int)
    if part.kind == "perhaps":
        return aft.wait_for(f"s{part.number}", int, timeout="10ms", default=None)
    if part.kind == "sleep":
        return aft.sleep("5ms")
    if part.kind == "pivot":
        aft.pivot()
        return None
    if part.kind == "raise":
        _raise(part.fails)
        return None
    if part.kind == "die":
        _die(plan, "code", part)
        return None
    assert part.kind == "unordered"
    names = {f"{part.number}-{nth}" for nth in range(part.most)}  # a set of texts: another order in each process
    jobs = [Named(plan=plan, number=part.number, name=name, dies=nth == part.busy) for nth, name in enumerate(names)]
    return [act_named(job) for job in jobs] if part.caught else aft.map(act_named, jobs, concurrency=1)


def _given(part: Part) -> set[Any]:
    return part.texts if part.of == "given texts" else part.things


def _call_for(part: Part) -> aft.Call[Any]:
    """Ask for a set, by one of the flow's own making: its order is another one in each process."""
    return give_texts.call({*part.texts}) if part.of == "returned texts" else give_things.call({*part.things})


def _named(part: Part, thing: str | Thing) -> Part:
    number = int(thing if isinstance(thing, str) else thing.name)
    return next(inner for inner in part.branches[0] if inner.number == number)


def _call(plan: str, part: Part) -> aft.Call[Any]:
    if part.kind == "act":
        return _activity(part).call(plan, part)
    flow: Any = async_flow if part.is_async else plain_flow
    call: aft.Call[Any] = flow.call(plan, part.branches)
    return call


@aft.flow(name="plan_async_flow")
async def async_flow(plan: str, generations: list[list[Part]]) -> int:
    await _walk_async(plan, generations[0], Eyes(plan, generations))
    if generations[1:]:
        aft.continue_as_new(plan, generations[1:])
    return len(generations[0])


async def _walk_async(plan: str, parts: Sequence[Part], eyes: Eyes) -> int:
    for part in parts:
        try:
            with eyes.at(part):
                value = await _go_async(plan, part, eyes)
        except Exception:
            if part.kind not in ("savepoint", "try") or not part.caught:
                raise
            value = "caught"
        eyes.see("returned", part, value)
    return len(parts)


async def _go_async(plan: str, part: Part, eyes: Eyes) -> Any:
    if part.kind == "act" and part.blocking and part.how != "async":
        return _activity(part)(plan, part)
    if part.kind in ("act", "child"):
        return await _call(plan, part)
    if part.kind == "savepoint":
        with aft.savepoint(f"savepoint {part.number}"):
            return await _walk_async(plan, part.branches[0], eyes)
    if part.kind == "try":
        return await _walk_async(plan, part.branches[0], eyes)
    if part.kind == "set":
        things = await _call_for(part) if part.of.startswith("returned") else _given(part)
        return [await _walk_async(plan, [_named(part, thing)], eyes) for thing in things]
    if part.kind == "gather":
        return await _gather(plan, part, eyes)
    if part.kind in ("wait", "perhaps", "sleep"):
        return await _mark(plan, part)
    return _mark(plan, part)


async def _gather(plan: str, part: Part, eyes: Eyes) -> list[Any]:
    """Let all branches come to their end; then the first failure is raised, in the order of the branches."""
    walks = (_walk_async(plan, branch, eyes) for branch in part.branches)
    found = await asyncio.gather(*walks, return_exceptions=True)
    for failure in found:
        if isinstance(failure, BaseException):
            raise failure
    return list(found)
