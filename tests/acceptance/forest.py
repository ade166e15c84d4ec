"""Random flows drawn as trees, and what happens to them; ``forest_checks`` tells what must be true in the end.

A flow walks its tree. Its activities keep a ledger; its own code writes down what it sees, one list for each pass over
it. ``Fates`` lets the process die before or after a write of a run's owner, lets the answer to a COMMIT be lost, and
sends something at the worst moment; nobody is really killed: the dead owner writes nothing more, and when all its
branches have come to rest its run is rescued as an orphan.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, text

import aft
from aft.errors import OrderRefused, StoreError
from aft.flows.replay.runner import Runner
from aft.ids import RunId
from aft.runs.ownership.held_writes import HeldWrite
from aft.runs.ownership.owner import Owner, SharedWrite
from aft.runs.ownership.owner_writes import Recording
from aft.runs.ownership.rescue import rescue_orphans
from aft.runs.run_rows import RunRow
from aft.store import Store


class Nope(Exception):
    """For good."""


#: What a flow's code may catch: for good, or for longer than its ladder.
FAILURES = (Nope, ConnectionError, aft.Recoverable)

#: What becomes of one write of an owner.
Fate = Literal["die before", "die after", "refused", "answer lost", "signal", "suspend", "yield"]


class Act(BaseModel):
    """An activity: how often it and its undo fail for a while, and whether it fails for good; -1: for ever."""

    plan: str = ""
    number: int = 0
    undo: Literal["none", "plain", "started"] = "plain"
    how: Literal["plain", "async", "transactional"] = "plain"
    busy: int = 0
    on_signal: bool = False
    fatal: bool = False
    undo_busy: int = 0
    pause: int = 0  # milliseconds
    blocking: bool = False  # in an async flow: called, not awaited
    sends: list[str] = []

    @property
    def fails(self) -> bool:
        return self.fatal or self.busy < 0


class Tree(BaseModel):
    """A part of a flow."""

    kind: Literal["act", "wait", "perhaps", "sleep", "savepoint", "try", "parallel", "map", "gather", "group", "child"]
    number: int = 0
    act: Act = Act()
    branches: list[list[Tree]] = []
    caught: bool = True
    sent: Literal["early", "during", "late"] = "late"
    most: int = 2
    is_async: bool = False  # of a child

    def fails(self) -> bool:
        """Whether it raises."""
        if self.kind == "act":
            return self.act.fails
        failing = any(fails(branch) for branch in self.branches)
        return failing and not (self.kind in ("savepoint", "try") and self.caught)


def fails(trees: Sequence[Tree]) -> bool:
    """Whether a sequence raises."""
    return any(tree.fails() for tree in trees)


def everything(trees: Sequence[Tree]) -> Iterator[Tree]:
    """All parts, from the outside in."""
    for tree in trees:
        yield tree
        for branch in tree.branches:
            yield from everything(branch)


def in_own_flow(trees: Sequence[Tree]) -> Iterator[Tree]:
    """All parts that are not a child's."""
    for tree in trees:
        yield tree
        if tree.kind != "child":
            for branch in tree.branches:
                yield from in_own_flow(branch)


def prepare(trees: Sequence[Tree], plan: str) -> list[Tree]:
    """Number the parts, and let a first activity of each flow send the signals that come while it is executed."""
    copied = [tree.model_copy(deep=True) for tree in trees]
    for number, tree in enumerate(everything(copied), start=1):
        tree.number = tree.act.number = number
        tree.act.plan = plan
    for flow in (copied, *(tree.branches[0] for tree in everything(copied) if tree.kind == "child")):
        acts = [tree.act for tree in in_own_flow(flow) if tree.kind == "act" and tree.act.how != "transactional"]
        during = [f"s{tree.number}" for tree in in_own_flow(flow) if tree.kind == "wait" and tree.sent == "during"]
        if acts:
            acts[0].sends = during
    return copied


# --- what happens ----------------------------------------------------------------------------------------------------

#: What, in which run, at which step, for which number.
Event = tuple[str, str, str, int]


class Killed(BaseException):
    """Ends an execution on the spot: nothing more is written by it."""


@dataclass
class Pass:
    """What a run's code saw in one pass over it."""

    seen: list[Any] = field(default_factory=list)
    #: How much it had seen before it got an outcome that was held back, and lost with its process.
    before_lost: int | None = None

    @property
    def certain(self) -> list[Any]:
        """What it saw that every later pass sees, too: an outcome that was never recorded may be another one."""
        return self.seen[: self.before_lost]


@dataclass
class World:
    """One plan's ledger, what its flows saw, and the fates of its owners' writes."""

    plan: str
    fates: dict[int, Fate]
    app: aft.Aft
    ledger: list[Event] = field(default_factory=list)
    #: The passes over each run's code.
    passes: dict[str, list[Pass]] = field(default_factory=lambda: defaultdict(list))
    #: How much a run's code had seen when it got the outcome that is held back.
    held_at: dict[str, int] = field(default_factory=dict)
    left: dict[tuple[str, int], int] = field(default_factory=dict)
    writes: int = 0
    dead: set[tuple[str, int]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, *events: Event) -> None:
        with self.lock:
            self.ledger.extend(events)

    def fate(self, owner: Owner) -> Fate | None:
        """What becomes of this write; a dead owner writes no more."""
        with self.lock:
            if (owner.run_id, owner.epoch) in self.dead:
                raise Killed
            self.writes += 1
            return self.fates.get(self.writes)

    def note_held(self, owner: Owner) -> None:
        """Note that the code is about to get an outcome that is held back."""
        for last in self.passes[owner.run_id][-1:]:
            self.held_at[owner.run_id] = len(last.seen)

    def kill_before(self, owner: Owner) -> None:
        """Let it die before a write: what it holds back is lost."""
        if owner._last_outcome.held is not None:
            for last in self.passes[owner.run_id][-1:]:
                last.before_lost = self.held_at[owner.run_id]
        self.kill(owner)

    def kill(self, owner: Owner) -> None:
        with self.lock:
            self.dead.add((owner.run_id, owner.epoch))
        raise Killed


worlds: dict[str, World] = {}
_local = threading.local()


@dataclass
class Write:
    """A transaction that is under way on this thread."""

    owner: Owner | None = None
    fate: Fate | None = None
    notes: list[Event] = field(default_factory=list)


def _of(owner: Owner) -> World | None:
    return worlds.get(json.loads(owner.run.args).get("plan", ""))


@contextmanager
def fates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the writes of owners come to what their worlds say."""
    real_write, real_write_in, real_run = Store.write, Owner.write_in, Runner.run
    real_share, real_take, real_end = Owner._share, Owner.take_overdue, Owner.end_overdue
    real_hold = Owner.hold

    @contextmanager
    def write(store: Store, **more: Any) -> Iterator[Connection]:
        outer, _local.write = getattr(_local, "write", None), Write()
        mine: Write = _local.write
        try:
            with real_write(store, **more) as connection:
                yield connection
        finally:
            _local.write = outer
        owner = mine.owner
        if owner is None or (world := _of(owner)) is None:
            return
        world.note(*mine.notes)
        if mine.fate == "die after":
            world.kill(owner)
        if mine.fate == "answer lost":
            raise StoreError("the answer was lost", transient=True)
        _disturb(world, owner, mine.fate)

    def write_in(owner: Owner, connection: Connection, recording: Any) -> None:
        world = _of(owner)
        if world is None:
            return real_write_in(owner, connection, recording)
        fate = world.fate(owner)
        if fate == "die before":
            world.kill_before(owner)
        if fate == "refused":
            raise StoreError("refused", transient=True)
        _local.write.owner, _local.write.fate = owner, fate
        real_write_in(owner, connection, recording)
        if isinstance(recording, Recording) and recording.write.entry is not None:
            _local.write.notes.append(("recorded", owner.run_id, recording.write.entry["path"], 0))

    def share(owner: Owner, write: Any, *more: Any) -> SharedWrite | None:
        world = _of(owner)
        if world is None:
            return real_share(owner, write, *more)
        fate = world.fate(owner)
        if fate == "die before":
            world.kill_before(owner)
        if fate == "refused" or (shared := real_share(owner, write, *more)) is None:
            return None
        if write.entry is not None:
            world.note(("recorded", owner.run_id, write.entry["path"], 0))
        if fate == "die after":
            world.kill(owner)
        if fate == "answer lost":
            owner.seq, owner._unsure = owner.seq - 1, True
            raise StoreError("the answer was lost", transient=True)
        _disturb(world, owner, fate)
        return shared

    def hold(owner: Owner, held: HeldWrite) -> None:
        if (world := _of(owner)) is not None:
            world.note_held(owner)
        real_hold(owner, held)

    def take_overdue(owner: Owner, held: HeldWrite) -> Any:
        world = _of(owner)
        is_dead = world is not None and (owner.run_id, owner.epoch) in world.dead
        return None if is_dead else real_take(owner, held)

    def end_overdue(owner: Owner, held: HeldWrite, answer: Any, *, known: bool) -> None:
        """On the thread of all runs: nothing is raised there."""
        world = _of(owner)
        if world is not None and answer is not None and held.write.entry is not None:
            world.note(("recorded", owner.run_id, held.write.entry["path"], 0))
            fate = world.fate(owner)
            if fate in ("die before", "die after"):
                world.dead.add((owner.run_id, owner.epoch))
            elif fate == "answer lost":
                answer, known = None, False
        real_end(owner, held, answer, known=known)

    def run(runner: Runner, row: RunRow, **more: Any) -> None:
        deps = runner._deps
        try:
            real_run(runner, row, **more)
        except Killed:
            assert row.worker_id is not None
            with deps.store.write() as connection:
                rescue_orphans(connection, deps.namespace, deps.clock.now(), row.worker_id, [(row.id, row.epoch)])
        finally:
            deps.making_room.clear()

    def _disturb(world: World, owner: Owner, fate: Fate | None) -> None:
        handle = world.app.run(owner.run_id)
        try:
            if fate == "signal":
                handle.signal("noise", 0)
            elif fate == "suspend":
                handle.suspend()
        except OrderRefused:
            pass  # it has ended
        if fate == "yield":
            _runner_tools[0].making_room.set()

    _runner_tools: list[Any] = []
    real_init = Runner.__init__

    def init(runner: Runner, deps: Any) -> None:
        real_init(runner, deps)
        _runner_tools[:] = [deps]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        patch.setattr(Owner, "write_in", write_in)
        patch.setattr(Owner, "_share", share)
        patch.setattr(Owner, "hold", hold)
        patch.setattr(Owner, "take_overdue", take_overdue)
        patch.setattr(Owner, "end_overdue", end_overdue)
        patch.setattr(Runner, "run", run)
        patch.setattr(Runner, "__init__", init)
        yield


# --- activities -------------------------------------------------------------------------------------------------------


def _fail_for_a_while(world: World, what: str, act: Act, times: int) -> None:
    with world.lock:
        remaining = world.left.setdefault((what, act.number), times)
        if remaining:
            world.left[what, act.number] = remaining - 1
    if remaining and what == "do" and act.on_signal:
        raise aft.Recoverable("when somebody says so", on_signal=f"f{act.number}")
    if remaining:
        raise ConnectionError("busy")


def _do(act: Act) -> int:
    world, run, path = _where(act)
    world.note(("try", run, path, act.number))
    if act.pause:
        time.sleep(act.pause / 1000)
    for name in act.sends:
        world.app.run(RunId(run)).signal(name, int(name[1:]), key="one")
    if act.undo == "started":
        world.note(("do", run, path, act.number))  # it may have had its effect, whatever it says
    _fail_for_a_while(world, "do", act, act.busy)
    if act.fatal:
        raise Nope(act.number)
    if act.how == "transactional":
        key = f"{run}/{path}"
        aft.session().execute(text("INSERT INTO forest (id) VALUES (:id)"), {"id": key})
        _local.write.notes.append(("do", run, path, act.number))
    elif act.undo == "plain":
        world.note(("do", run, path, act.number))
    return act.number


def _undo(act: Act) -> None:
    world, run, path = _where(act)
    _fail_for_a_while(world, "undo", act, act.undo_busy)
    world.note(("undo", run, path.removesuffix("/undo"), act.number))


def _undo_started(act: Act, result: Any) -> None:
    _undo(act)


def _where(act: Act) -> tuple[World, str, str]:
    here = aft.current()
    run, _, path = here.key.split("/", 2)
    assert run == here.run_id
    return worlds[act.plan], run, path


_policy: dict[str, Any] = {"levels": [aft.Level("1ms", tries=3)], "unrecoverable": (Nope,)}


@aft.activity(name="forest_none", **_policy)
def act_none(act: Act) -> int:
    return _do(act)


@aft.compensate_with(_undo)
@aft.activity(name="forest_plain", **_policy)
def act_plain(act: Act) -> int:
    return _do(act)


@aft.compensate_with(_undo_started, when="started")
@aft.activity(name="forest_started", **_policy)
def act_started(act: Act) -> int:
    return _do(act)


@aft.compensate_with(_undo)
@aft.activity(name="forest_transactional", transactional=True, **_policy)
def act_transactional(act: Act) -> int:
    return _do(act)


@aft.compensate_with(_undo)
@aft.activity(name="forest_async", **_policy)
async def act_async(act: Act) -> int:
    return await asyncio.to_thread(_do, act)


def _activity(act: Act) -> aft.Activity[[Act], Any]:
    if act.how == "transactional":
        return act_transactional
    if act.how == "async":
        return act_async
    return {"none": act_none, "plain": act_plain, "started": act_started}[act.undo]


# --- flows ------------------------------------------------------------------------------------------------------------


class Eyes:
    """What the code of one run sees in one pass."""

    def __init__(self, plan: str) -> None:
        self.current_pass = Pass()
        worlds[plan].passes[str(aft.current().run_id)].append(self.current_pass)

    def see(self, what: str, number: int, value: Any = None) -> None:
        """Write something down; while the run leaves this raises, as everything of aft does."""
        moment, unique, chance = aft.now(), aft.uuid(), aft.random().random()
        self.current_pass.seen.append((what, number, value, moment, unique, chance))

    @contextmanager
    def at(self, tree: Tree) -> Iterator[None]:
        """Write down how a part is left, if it does not return."""
        try:
            yield
        except FAILURES as error:
            self.see(f"{tree.kind} raised", tree.number, repr(error))
            raise
        except asyncio.CancelledError:
            self.see(f"{tree.kind} cancelled", tree.number)
            raise


@aft.flow(name="forest_flow")
def plain_flow(plan: str, trees: list[Tree]) -> int:
    return _walk(trees, Eyes(plan), plan)


def _walk(trees: Sequence[Tree], eyes: Eyes, plan: str) -> int:
    for tree in trees:
        try:
            with eyes.at(tree):
                value = _go(tree, eyes, plan)
        except FAILURES:
            if tree.kind not in ("savepoint", "try") or not tree.caught:
                raise
            value = "caught"
        eyes.see(f"{tree.kind} returned", tree.number, value)
    return len(trees)


def _go(tree: Tree, eyes: Eyes, plan: str) -> Any:
    if tree.kind == "act":
        return _activity(tree.act)(tree.act)
    if tree.kind == "wait":
        return aft.wait_for(f"s{tree.number}", int)
    if tree.kind == "perhaps":
        return aft.wait_for(f"s{tree.number}", int, timeout="10ms", default=None)
    if tree.kind == "sleep":
        return aft.sleep("5ms")
    if tree.kind == "savepoint":
        with aft.savepoint(f"savepoint {tree.number}"):
            return _walk(tree.branches[0], eyes, plan)
    if tree.kind == "try":
        return _walk(tree.branches[0], eyes, plan)
    if tree.kind == "parallel":
        return list(aft.parallel(*(_call(branch[0], plan) for branch in tree.branches)))
    if tree.kind == "map":
        return aft.map(act_plain, [branch[0].act for branch in tree.branches], concurrency=tree.most)
    assert tree.kind == "child"
    return (async_flow if tree.is_async else plain_flow)(plan, tree.branches[0])


def _call(tree: Tree, plan: str) -> aft.Call[Any]:
    if tree.kind == "act":
        return _activity(tree.act).call(tree.act)
    flow: Any = async_flow if tree.is_async else plain_flow
    call: aft.Call[Any] = flow.call(plan, tree.branches[0])
    return call


@aft.flow(name="forest_async_flow")
async def async_flow(plan: str, trees: list[Tree]) -> int:
    return await _walk_async(trees, Eyes(plan), plan)


async def _walk_async(trees: Sequence[Tree], eyes: Eyes, plan: str) -> int:
    for tree in trees:
        try:
            with eyes.at(tree):
                value = await _go_async(tree, eyes, plan)
        except FAILURES:
            if tree.kind not in ("savepoint", "try") or not tree.caught:
                raise
            value = "caught"
        eyes.see(f"{tree.kind} returned", tree.number, value)
    return len(trees)


async def _go_async(tree: Tree, eyes: Eyes, plan: str) -> Any:
    if tree.kind == "act" and tree.act.blocking and tree.act.how != "async":
        return _activity(tree.act)(tree.act)
    if tree.kind in ("act", "child"):
        return await _call(tree, plan)
    if tree.kind == "savepoint":
        with aft.savepoint(f"savepoint {tree.number}"):
            return await _walk_async(tree.branches[0], eyes, plan)
    if tree.kind == "try":
        return await _walk_async(tree.branches[0], eyes, plan)
    if tree.kind == "gather":
        return await asyncio.gather(*(_walk_async(branch, eyes, plan) for branch in tree.branches))
    if tree.kind == "group":
        return await _grouped(tree, eyes, plan)
    waiting = _go(tree, eyes, plan)
    return await waiting if tree.kind in ("wait", "perhaps", "sleep") else waiting


async def _grouped(tree: Tree, eyes: Eyes, plan: str) -> list[int]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_walk_async(branch, eyes, plan)) for branch in tree.branches]
    except BaseExceptionGroup as failed:
        eyes.see("group failed", tree.number, [repr(error) for error in failed.exceptions])
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
