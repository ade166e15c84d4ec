"""Executes plans (``plans``) and checks what must be true in the end; ``oracle`` says what that is."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck
from sqlalchemy import select, text

import aft
from aft.errors import OrderRefused
from aft.ids import RunId
from aft.runs.run_rows import COLUMNS, RunRow, from_row
from aft.runs.states import Status
from aft.runs.waits import WaitKind
from aft.store.tables import runs
from tests.acceptance import forest
from tests.acceptance.forest import Fate
from tests.acceptance.oracle import Event, Seen, Verdict, foretell, match
from tests.acceptance.plans import (
    TRIES,
    Line,
    Part,
    Plan,
    act_named,
    async_flow,
    everything,
    in_own_flow,
    ledger,
    note,
    plain_flow,
    prepare,
)
from tests.world import apps

#: How long an example takes says more of the machine than of the claim.
UNHURRIED = (
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
)
#: Seconds within which a run has to come to its end.
BOUND = float(os.environ.get("AFT_TEST_BOUND", "60"))
#: How long a run with a deadline has.
DEADLINE = "250ms"


def execute(app: aft.Aft, plan: Plan, file: Path) -> None:
    """Let a plan come to its end, whatever happens to its run, and check what must be true then."""
    plan, name = prepare(plan), str(file)
    world = forest.worlds[name] = forest.World(name, cast(dict[int, Fate], plan.fates), app)
    apps[name] = app
    run: aft.Run | None = None
    try:
        run = submit(app, plan, name)
        Helper(app, plan, name, run).await_end()
        if plan.undone and run.status is Status.COMPLETED and not has_pivot(plan):
            run.compensate()
            Helper(app, plan, name, run).await_end(undone=True)
        Check(app, plan, name, run, deaths=len(world.dead)).all()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{plan!r}\n{describe(app, name, run)}") from None
    finally:
        del forest.worlds[name], apps[name]
        file.unlink(missing_ok=True)


def submit(app: aft.Aft, plan: Plan, name: str) -> aft.Run:
    """Start a plan's run; signals that come early are there before anybody asks for them."""
    flow: Any = async_flow if plan.is_async else plain_flow
    run = app.submit(flow.options(deadline=DEADLINE) if plan.deadline else flow, name, plan.generations)
    for part in in_own_flow(plan.generations):
        if part.kind == "wait" and part.sent == "early":
            run.signal(f"s{part.number}", part.number, key="one")
    return run


def has_pivot(plan: Plan) -> bool:
    return any(part.kind == "pivot" for part in everything(plan.generations))


class Helper:
    """Does what people do: sends what is awaited, lets go on what was suspended, heals compensators and retries."""

    def __init__(self, app: aft.Aft, plan: Plan, name: str, run: aft.Run) -> None:
        self.app = app
        self.name = name
        self.run = run
        self.parts = {part.number: part for part in everything(plan.generations)}
        self.deadline = plan.deadline
        #: The epoch in which a run was parked when it was retried: until the next owner it looks as if it still were.
        self.retried: dict[str, int] = {}

    def await_end(self, *, undone: bool = False) -> None:
        """Help until nothing more happens by itself; with ``undone`` until a completed run was undone."""
        limit, pause = time.monotonic() + BOUND, 0.005
        while self.help(undone=undone):
            assert time.monotonic() < limit, f"not ended within {BOUND} s"
            time.sleep(pause)
            pause = min(pause * 1.2, 0.05)

    def help(self, *, undone: bool = False) -> bool:
        """Help where somebody has to; tells whether anything may still happen, an undo of a completed run included."""
        rows = family(self.app, self.run.id)
        if self.is_over(rows):
            return undone and any(row.id == self.run.id and row.status is Status.COMPLETED for row in rows)
        for row in rows:
            self._help(row)
        return True

    def is_over(self, rows: Sequence[RunRow]) -> bool:
        """Whether every run has ended, is parked for good, or waits for a child that is."""
        parked = {
            str(row.id)
            for row in rows
            if row.status is Status.PARKED and row.epoch != self.retried.get(row.id) and not self._ailing(row)
        }
        resting = {str(row.id) for row in rows if row.status.ended} | parked
        while True:
            stuck = {
                str(row.id)
                for row in rows
                if row.status in (Status.WAITING, Status.COMPENSATING)
                and row.worker_id is None
                and {wait.name for wait in row.waits if wait.kind is WaitKind.CHILD}
                & (parked | (resting - _ended(rows)))
                and all(wait.kind is WaitKind.CHILD and wait.name in resting for wait in row.waits)
            }
            if stuck <= resting:
                return bool(rows) and all(str(row.id) in resting for row in rows)
            resting |= stuck

    def _ailing(self, row: RunRow) -> list[Line]:
        lines = ledger(self.name)
        healed = {line.number for line in lines if line.what == "healed"}
        return [line for line in lines if line.what == "ails" and line.run == row.id and line.number not in healed]

    def _help(self, row: RunRow) -> None:
        handle = self.app.run(row.id)
        try:
            if row.status is Status.SUSPENDED:
                handle.resume()
            elif row.status is Status.PARKED:
                for line in self._ailing(row):
                    note(self.name, "healed", line.run, line.key, line.number)
                    self.retried[row.id] = row.epoch
                    handle.retry()
            for wait in row.waits:
                if wait.kind is WaitKind.SIGNAL and self._is_time(int(wait.name[1:])):
                    handle.signal(wait.name, int(wait.name[1:]), key="one")
        except OrderRefused:
            pass  # it has gone on

    def _is_time(self, number: int) -> bool:
        """Whether a signal may be sent: one that is overdue only if its wait began after the deadline was raised."""
        part = self.parts[number]
        if part.kind == "perhaps":
            return False
        if part.sent != "overdue" or not self.deadline:
            return True
        for line in ledger(self.name):
            if line.what == "saw" and line.more[:2] == ["raised", "DeadlineExceeded"]:
                return True
            if line.what == "saw" and line.number == number and line.more[0] == "begins":
                return False
        return False


def _ended(rows: Sequence[RunRow]) -> set[str]:
    return {str(row.id) for row in rows if row.status.ended}


def family(app: aft.Aft, root: RunId) -> list[RunRow]:
    """A run and its children."""
    with app.store.read() as connection:
        return [from_row(row) for row in connection.execute(select(*COLUMNS).where(runs.c.root_id == root))]


class Check:
    """What must be true of a plan's runs when nothing more happens by itself."""

    def __init__(self, app: aft.Aft, plan: Plan, name: str, run: aft.Run, deaths: int) -> None:
        self.plan = plan
        self.lines = ledger(name)
        self.deaths = deaths
        self.parts = {part.number: part for part in everything(plan.generations)}
        rows = family(app, run.id)
        self.rows = {str(row.id): row for row in rows}
        self.root = self.rows[run.id]
        with app.store.read() as connection:
            found = connection.execute(text(_FRAMES), {"id": run.id})
            self.frames = found.all()
            self.committed = Counter(
                key
                for key in connection.execute(text("SELECT id FROM plan_effects")).scalars()
                if key.split("/")[0] in self.rows
            )
        self.numbers = {line.key: line.number for line in self.lines if line.what in ("try", "do")}
        self.events = self._events()

    def _events(self) -> list[Event]:
        """Effects and undos as the other side sees them: the same key again changes nothing."""
        state: dict[int, str] = {}
        events: list[Event] = []
        for line in self.lines:
            if line.what in ("do", "undo") and state.get(line.number) != line.what:
                state[line.number] = line.what
                events.append(Event("do" if line.what == "do" else "undo", line.number))
        return events

    def all(self) -> None:
        """Check everything."""
        self._unordered_once()
        if self._has_diverged():
            self._keys()
            return
        verdict = foretell(self.plan, self._seen())
        self._ends(verdict)
        wrong = match(verdict.trace, self.events, verdict.cut)
        assert wrong is None, (
            f"{wrong}\nexpected: {verdict.status} {verdict.why}: {verdict.trace}\nfound: {self.events}"
        )
        self._stopped(verdict)
        self._keys()
        self._attempts(verdict)
        self._recorded_once()
        self._same_view()

    def _has_diverged(self) -> bool:
        """Whether another process took the parts of a set in another order, and the run was parked for that."""
        reasons = [row.reason or "" for row in self.rows.values() if row.status is Status.PARKED]
        return bool(self.deaths) and any(
            "ReplayDiverged" in reason and f"{act_named.name!r}" in reason for reason in reasons
        )

    def _unordered_once(self) -> None:
        """Nothing is done twice, or left out unseen, where the code takes a set in another order."""
        for part in self.parts.values():
            if part.kind != "unordered":
                continue
            lines = [line for line in self.lines if line.number == part.number]
            done = {(line.more, line.key) for line in lines if line.what == "do named"}
            undone = {line.more for line in lines if line.what == "undo named"}
            names = Counter(name for name, _ in done)
            assert all(count == 1 for count in names.values()), f"done twice, under several keys: {sorted(done)}"
            assert undone <= names.keys(), f"undone, though never done: {undone - names.keys()}"
            if not self._has_diverged() and any(line.what == "saw" and line.more[0] == "returned" for line in lines):
                assert len(names) == part.most, f"left out: only {sorted(names)} of {part.most}"
                whole = {row.status for row in self.rows.values()} == {Status.COMPENSATED}
                assert undone == (set(names) if whole else undone), f"not undone: {set(names) - undone}"

    def _seen(self) -> Seen:
        ranks: dict[int, int] = {}
        for run_id, seq, path, generation, child_id in self.frames:
            if child_id is not None:
                number = self._child(child_id)
            else:
                number = self.numbers.get(f"{run_id}/{generation}/{path}")
            if number is not None:
                assert number not in ranks, f"two frames for {number}"
                ranks[number] = seq
        return Seen(
            ranks,
            frozenset(event.number for event in self.events if event.what == "do"),
            frozenset(line.number for line in self.lines if line.what == "try"),
            frozenset(
                line.number
                for line in self.lines
                if line.what == "saw" and line.more[:2] == ["raised", "DeadlineExceeded"]
            ),
        )

    def _child(self, run_id: str) -> int | None:
        numbers = {line.number for line in self.lines if line.run == run_id}
        for part in self.parts.values():
            if part.kind == "child" and numbers & {inner.number for inner in in_own_flow(part.branches)}:
                return part.number
        return None

    def _ends(self, verdict: Verdict) -> None:
        """A run ends as it must; one that waits for a parked child is as good as parked."""
        status = self.root.status.value
        if status in ("waiting", "compensating"):
            status = "parked"
        reason = [row.reason for row in self.rows.values() if row.reason]
        assert status == verdict.status, f"{status} {reason}, expected {verdict.status}: {verdict.why}"

    def _stopped(self, verdict: Verdict) -> None:
        """Children that were stopped are undone; what a dead worker may have done there, nobody knows."""
        state = {event.number: event.what for event in self.events}
        framed = {self.numbers.get(f"{run_id}/{generation}/{path}") for run_id, _, path, generation, _ in self.frames}
        for number in verdict.cut:
            if self.parts[number].kind == "act" and self.parts[number].undo != "none" and state.get(number) == "do":
                unknown = bool(self.deaths) and number not in framed
                assert unknown, f"{number} stands, though its flow was stopped"

    def _keys(self) -> None:
        """Every attempt of a step has the same key, and no other step has it."""
        for what in ("try", "undo try"):
            keys: dict[int, set[str]] = defaultdict(set)
            numbers: dict[str, set[int]] = defaultdict(set)
            for line in self.lines:
                if line.what == what:
                    keys[line.number].add(line.key)
                    numbers[line.key].add(line.number)
            assert all(len(found) == 1 for found in keys.values()), f"several keys: {dict(keys)}"
            assert all(len(found) == 1 for found in numbers.values()), f"several steps: {dict(numbers)}"
        assert not {line.key for line in self.lines if line.what == "try"} & {
            line.key for line in self.lines if line.what == "undo try"
        }

    def _attempts(self, verdict: Verdict) -> None:
        """Every failure is counted: nothing is tried more often than its ladder allows, but for deaths."""
        tries = Counter(line.number for line in self.lines if line.what == "try")
        again = self.deaths + sum(fate in ("refused", "answer lost") for fate in self.plan.fates.values())
        for number, count in tries.items():
            part = self.parts[number]
            most = 1 + TRIES if part.fails == "exhausts" else 1 + part.busy
            least = 1 if again or self.plan.deadline else most
            if number in verdict.cut:
                continue
            assert least <= count <= most + again, f"{number} was tried {count} times, not {least} to {most + again}"
        undone = Counter(line.number for line in self.lines if line.what == "undo try")
        for number, count in undone.items():
            part = self.parts[number]
            most = 1 + part.undo_busy + (1 + TRIES if part.undo_fails else 0) + again
            assert count <= most, f"the undo of {number} was tried {count} times, not {most}"

    def _recorded_once(self) -> None:
        """A transactional effect is there once for each step that had it."""
        there = {self.numbers[key] for key in self.committed}
        done = {event.number for event in self.events if event.what == "do" and self._is_transactional(event.number)}
        assert there <= done, f"committed, though never executed: {there - done}"
        missing = done - there
        assert not missing or self.deaths or self.plan.deadline, f"executed, but not committed: {missing}"

    def _is_transactional(self, number: int) -> bool:
        part = self.parts.get(number, Part())
        return part.how == "transactional"

    def _same_view(self) -> None:
        """The code of a run sees the same in each pass over a generation, as far as each goes."""
        passes: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for line in self.lines:
            if line.what == "saw":
                generation = line.key.partition("/")[0]
                passes[line.run, generation][line.key].append((line.number, *line.more))
        for (run, _), found in passes.items():
            views = list(found.values())
            furthest = max(views, key=len)
            for view in views:
                # The last outcome that a process had got when it died may have been held back, and lost.
                certain = _before_last_outcome(view) if self.deaths and view is not furthest else view
                assert certain == furthest[: len(certain)], f"two passes of {run} saw\n{view}\n{furthest}"


def _before_last_outcome(view: list[Any]) -> list[Any]:
    """Leave out what was seen after the last outcome: all of that has the outcome's time."""
    if not view:
        return []
    *_, moment, _, _ = view[-1]
    return [seen for seen in view if seen[3] != moment]


_FRAMES = """
SELECT f.run_id, f.seq, f.path, f.key_generation, f.child_id
FROM aft_frames AS f JOIN aft_runs AS r ON r.id = f.run_id WHERE r.root_id = :id
"""


def describe(app: aft.Aft, name: str, run: aft.Run | None) -> str:
    """Everything that is known of a plan's runs, for a person who looks into a failure."""
    out: list[str] = []
    for row in family(app, run.id) if run is not None else ():
        out.append(f"run {row.id} {row.flow} {row.status.value} epoch={row.epoch} worker={row.worker_id}")
        out.append(f"  wake={row.wake_id} due={row.due_at} waits={[*map(str, row.waits)]} reason={row.reason}")
        with app.store.read() as connection:
            for table, columns in _SHOWN.items():
                query = text(f"SELECT {columns} FROM {table} WHERE run_id = :run")
                out += [f"  {table}: {tuple(found)}" for found in connection.execute(query, {"run": row.id})]
    return "\n".join([*out, *(f"  {tuple(line)}" for line in ledger(name))])


_SHOWN = {
    "aft_journal": "seq, path, kind, name, outcome",
    "aft_frames": "seq, path, key_generation, activity, state, child_id, note",
    "aft_faults": "id, path, name, kind, state, epoch, attempt, type, message, due_at",
    "aft_inbox": "seq, kind, payload, actor, read_epoch, note",
}
