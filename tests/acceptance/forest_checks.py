"""What must be true of a random flow (``forest``) in the end, whatever has happened to it."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, text

import aft
from aft.errors import OrderRefused
from aft.ids import RunId
from aft.runs.run_rows import COLUMNS, RunRow, from_row
from aft.runs.states import Status
from aft.runs.waits import WaitKind
from aft.store.tables import frames, journal, runs
from tests.acceptance.forest import (
    Fate,
    Tree,
    World,
    act_transactional,
    async_flow,
    everything,
    fails,
    in_own_flow,
    plain_flow,
    prepare,
    worlds,
)

#: Seconds within which a run has to come to its end.
BOUND = 60.0


def execute(app: aft.Aft, trees: Sequence[Tree], fates: dict[int, Fate], plan: str, *, is_async: bool) -> World:
    """Let a flow come to its end, whatever happens, and check what must be true then."""
    trees = prepare(trees, plan)
    world = worlds[plan] = World(plan, fates, app)
    flow: Any = async_flow if is_async else plain_flow
    run = app.submit(flow, plan, trees)
    for tree in in_own_flow(trees):
        if tree.kind == "wait" and tree.sent == "early":
            run.signal(f"s{tree.number}", tree.number, key="one")
    try:
        _await_end(world, run)
        Check(world, run, trees).all()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{describe(world, run)}") from None
    finally:
        del worlds[plan]
    return world


def _await_end(world: World, run: aft.Run) -> None:
    """Send what is awaited, let go on what was suspended, until everything has ended."""
    deadline = time.monotonic() + BOUND
    while True:
        rows = family(world.app, run.id)
        if all(row.status.ended for row in rows) and run.status.ended:
            return
        for row in rows:
            assert row.status is not Status.PARKED, f"run {row.id} is parked: {row.reason}"
            _help(world.app, row)
        assert time.monotonic() < deadline, f"not ended within {BOUND} s"
        time.sleep(0.005)


def _help(app: aft.Aft, row: RunRow) -> None:
    handle = app.run(row.id)
    try:
        if row.status is Status.SUSPENDED:
            handle.resume()
        for wait in row.waits:
            if wait.kind is WaitKind.SIGNAL:
                handle.signal(wait.name, int(wait.name[1:]), key="one")
            elif wait.kind is WaitKind.FAULT:
                handle.signal(wait.name, 0, key=f"{wait.path} {wait.since}")
    except OrderRefused:
        pass  # it has gone on


def family(app: aft.Aft, root: RunId) -> list[RunRow]:
    """A run and its children."""
    with app.store.read() as connection:
        return [from_row(row) for row in connection.execute(select(*COLUMNS).where(runs.c.root_id == root))]


class Check:
    """What must be true of a family of runs that has ended."""

    def __init__(self, world: World, run: aft.Run, trees: Sequence[Tree]) -> None:
        self.world = world
        self.root = run.id
        self.trees = trees
        self.rows = {str(row.id): row for row in family(world.app, run.id)}
        with world.app.store.read() as connection:
            ids = list(self.rows)
            self.frames = connection.execute(select(frames).where(frames.c.run_id.in_(ids))).all()
            self.journal = connection.execute(select(journal).where(journal.c.run_id.in_(ids))).all()
            self.committed = set(connection.execute(text("SELECT id FROM forest")).scalars())
        self.last = {(run, number): what for what, run, _, number in world.ledger if what in ("do", "undo")}
        self.by_number = {number: what for (_, number), what in self.last.items()}

    def all(self) -> None:
        """Everything."""
        expected = Status.COMPENSATED if fails(self.trees) else Status.COMPLETED
        assert self.rows[self.root].status is expected
        self.outcomes_once()
        self.same_keys()
        self.same_view()
        self.all_or_nothing()
        self.last_in_first_out()

    def outcomes_once(self) -> None:
        """No outcome is recorded twice, and nothing is executed again once its outcome is recorded."""
        recorded: set[tuple[str, str]] = set()
        for what, run, path, number in self.world.ledger:
            if what == "recorded":
                assert (run, path) not in recorded, f"recorded twice: {run} {path}"
                recorded.add((run, path))
            if what == "try":
                assert (run, path) not in recorded, f"step {path} of {run} (number {number}) executed after its outcome"
        for what, run, path, number in self.world.ledger:
            if what == "do":
                assert (run, path) in recorded, f"step {path} of {run} (number {number}) has no outcome"
        transactional = {
            f"{entry.run_id}/{entry.path}"
            for entry in self.journal
            if entry.name == act_transactional.name and entry.outcome == "ok"
        }
        there = {key for key in self.committed if key.split("/")[0] in self.rows}
        assert there == transactional

    def same_keys(self) -> None:
        """Every attempt of a step has the same key, and no other step has it."""
        keys: dict[int, set[tuple[str, str]]] = defaultdict(set)
        numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
        for what, run, path, number in self.world.ledger:
            if what != "recorded":
                keys[number].add((run, path))
                numbers[run, path].add(number)
        assert all(len(found) == 1 for found in keys.values()), f"several keys: {keys}"
        assert all(len(found) == 1 for found in numbers.values()), f"several steps: {numbers}"

    def same_view(self) -> None:
        """The code of a run sees the same in each pass, as far as each goes; the last one goes furthest."""
        for run, passes in self.world.passes.items():
            furthest = passes[-1].seen
            for nth, seen in enumerate((one.certain for one in passes), start=1):
                for place, (then, now) in enumerate(zip(seen, furthest, strict=False)):
                    assert then == now, f"pass {nth} of {run} saw at {place}: {then}\nthe last: {now}"
                assert len(seen) <= len(furthest), f"pass {nth} of {run} went further: {seen[len(furthest) :]}"

    def all_or_nothing(self) -> None:
        """It stands as the flow's code thinks, or all of it was undone."""
        if self.rows[self.root].status is Status.COMPENSATED:
            standing = [number for number, what in self.by_number.items() if what == "do"]
            assert not standing, f"not undone: {standing}"
        else:
            self._stands(self.trees, self.root)

    def _stands(self, trees: Sequence[Tree], run: str) -> None:
        passes = self.world.passes.get(run)
        seen = {(what, number): value for what, number, value, *_ in passes[-1].seen} if passes else {}
        for tree in trees:
            caught = seen.get(("savepoint returned", tree.number)) == "caught"
            if tree.kind == "savepoint" and (caught or ("savepoint raised", tree.number) in seen):
                self._fell(tree)
            elif tree.kind == "child":
                child = self._child_of(tree)
                if child is None or child.status is Status.COMPENSATED:
                    self._fell(tree)
                else:
                    self._stands(tree.branches[0], str(child.id))
            elif tree.kind == "act":
                what = self.by_number.get(tree.number)
                if tree.act.fails:
                    assert what in (None, "undo"), f"failed, and not undone: {tree.number}"
                elif what is not None:
                    assert what == "do", f"undone, though it should stand: {tree.number}"
                elif tree.act.undo != "none" and tree.act.how == "plain":
                    assert ("act returned", tree.number) not in seen, f"never happened: {tree.number}"
            else:
                for branch in tree.branches:
                    self._stands(branch, run)

    def _fell(self, tree: Tree) -> None:
        inside = {part.number for part in everything([tree])}
        standing = [number for number in inside if self.by_number.get(number) == "do"]
        assert not standing, f"stands, though {tree.kind} {tree.number} was undone: {standing}"

    def _child_of(self, tree: Tree) -> RunRow | None:
        numbers = {part.number for part in in_own_flow(tree.branches[0])}
        for row in self.rows.values():
            if row.id != self.root and any(part["number"] in numbers for part in json.loads(row.args)["trees"]):
                return row
        return None

    def last_in_first_out(self) -> None:
        """What one unwinding undoes, it undoes in the reverse order of its completion."""
        at = {event: place for place, event in enumerate(self.world.ledger)}
        first: dict[tuple[str, str], int] = {}
        for place, (what, run, path, _) in enumerate(self.world.ledger):
            if what == "undo":
                first.setdefault((run, path), place)
        last = {(run, path): at[what, run, path, number] for what, run, path, number in at if what == "undo"}
        pushed = {(run, path): at[what, run, path, number] for what, run, path, number in at if what == "recorded"}
        for run in self.rows:
            entries = [entry for entry in self.journal if entry.run_id == run]
            failed = {entry.path for entry in entries if entry.outcome == "failed"}
            scopes = [entry.path for entry in entries if entry.kind == "savepoint"]
            groups: dict[str, list[tuple[int, int, int, int, int, str]]] = defaultdict(list)
            for frame in self.frames:
                if frame.run_id != run or frame.path in failed:
                    continue
                spans = [(first[key], last[key]) for key in self._keys(frame) if key in first]
                if spans:
                    scope = max((one for one in scopes if frame.path.startswith(f"{one}.")), key=len, default="")
                    span = min(start for start, _ in spans), max(end for _, end in spans)
                    was_pushed = pushed[run, frame.path]
                    done = self._last_step(frame.child_id, was_pushed) if frame.child_id else was_pushed
                    groups[scope].append((frame.seq, *span, done, was_pushed, frame.path))
            for group in groups.values():
                group.sort()
                for place, (_, start, _, _, recorded, path) in enumerate(group):
                    for _, _, end, done, was_pushed, later in group[place + 1 :]:
                        # A child ends by itself, somewhere between its last step and what its parent records of it.
                        either = done < recorded or was_pushed > start
                        assert end < start or either, f"{run}: {path} undone before {later}: {group}"

    def _last_step(self, child: str, before: int) -> int:
        """The place in the ledger of a child's last step before its parent recorded its end."""
        steps = (place for place, event in enumerate(self.world.ledger[:before]) if event[:2] == ("recorded", child))
        return max(steps, default=before)

    def _keys(self, frame: Any) -> list[tuple[str, str]]:
        if frame.child_id is None:
            return [(frame.run_id, frame.path)]
        scopes = [entry.path for entry in self.journal if entry.run_id == frame.child_id and entry.kind == "savepoint"]
        failed = {e.path for e in self.journal if e.run_id == frame.child_id and e.outcome == "failed"}
        return [
            key
            for inner in self.frames
            if inner.run_id == frame.child_id
            and inner.path not in failed
            and not any(inner.path.startswith(f"{scope}.") for scope in scopes)
            for key in self._keys(inner)
        ]


def describe(world: World, run: aft.Run) -> str:
    """Everything that is known of a family of runs, for a person who looks into a failure."""
    lines = [f"writes: {world.writes}, fates: {world.fates}"]
    for row in family(world.app, run.id):
        lines.append(f"run {row.id} {row.flow} {row.status.value} epoch={row.epoch} worker={row.worker_id}")
        lines.append(f"  wake={row.wake_id} due={row.due_at} waits={[*map(str, row.waits)]} reason={row.reason}")
        with world.app.store.read() as connection:
            for table in (journal, frames):
                for found in connection.execute(select(table).where(table.c.run_id == row.id).order_by(table.c.seq)):
                    shown = {k: v for k, v in found._mapping.items() if k in _SHOWN and v is not None}
                    lines.append(f"  {table.name}: {shown}")
            for fault in connection.execute(
                text(f"SELECT {_OF_FAULTS} FROM aft_faults WHERE run_id = :run"), {"run": row.id}
            ):
                lines.append(f"  fault: {tuple(fault)}")
            for item in connection.execute(
                text(f"SELECT {_OF_INBOX} FROM aft_inbox WHERE run_id = :run"),
                {"run": row.id},
            ):
                lines.append(f"  inbox: {tuple(item)}")
        for nth, one in enumerate(world.passes.get(str(row.id), ()), start=1):
            lines.append(f"  pass {nth}: {[(what, number, value) for what, number, value, *_ in one.seen]}")
    lines += [f"  {event}" for event in world.ledger]
    return "\n".join(lines)


_SHOWN = ("seq", "path", "kind", "name", "outcome", "state", "activity", "epoch", "child_id")
_OF_FAULTS = "id, path, name, kind, state, epoch, attempt, type, message, due_at"
_OF_INBOX = "seq, kind, payload, actor, read_epoch, note"
