"""A deterministic world for model-based tests: aft's real code, its events in an order that the test chooses.

The code is the real one: runner, intake, sweeper, orders, on a real database. What is chosen is when: which message
arrives, twice, late or never; which worker takes a run, what each of its steps comes to, whether it dies, sleeps or
wakes up again; what the clocks say. An execution is a thread that only moves while the world waits for it, until it
asks the world what its next step shall come to. So a worker can be stopped in the middle of an activity for as long as
one likes, and nothing ever happens at the same time.

``next_ask`` is the whole model of a flow: what is asked next, given what was recorded and what is owed.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from sqlalchemy import Table, delete, select, update

import aft
from aft import envelope, errors, names
from aft.app.components import Components
from aft.config import Settings
from aft.dispatcher.sweep.sweeper import Sweeper
from aft.envelope import Message
from aft.flows.declare import registry
from aft.flows.replay.runner import Runner
from aft.flows.worker.heartbeat_tasks import HeartbeatTasks
from aft.ids import RunId
from aft.recovery.relay import Relay
from aft.recovery.takeover import Takeover
from aft.runs.ownership import claims
from aft.runs.ownership.executing_runs import Expect
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.run_rows import RunRow
from aft.runs.states import ENDS
from aft.store import schema
from aft.store.outbox import OutboxRow
from aft.store.tables import faults, frames, journal, late_effects, outbox, runs, workers
from tests.storing import HandClock

#: Seconds of a lease, and of grace: long, so that only the world's own clocks end them.
LEASE, GRACE = 3600.0, 600.0
#: How often a step may fail for a while before that is final.
TRIES = 2

Outcome = Literal["ok", "busy", "fatal", "die"]
#: What an execution asks: a step forward or its undo, by path.
Ask = tuple[Literal["do", "undo"], str]


# --- a flow that asks -----------------------------------------------------------------------------------------------


class Busy(Exception):
    """A recoverable failure."""


class Nope(Exception):
    """An unrecoverable failure."""


class Killed(KeyboardInterrupt):
    """Ends an execution at once: aft does not catch it, and nothing is written."""


_here = threading.local()


class _Threads:
    """Replaces aft's view of threads: one that executes a run is its own process's main thread."""

    current_thread = staticmethod(threading.current_thread)

    @staticmethod
    def main_thread() -> threading.Thread:
        return threading.current_thread() if hasattr(_here, "execution") else threading.main_thread()


# Only Ctrl-C in a main thread is nobody's failure.
setattr(errors, "threading", _Threads)  # noqa: B010


def _ask(what: Literal["do", "undo"]) -> None:
    path = aft.current().key.rsplit("/", 2 if what == "undo" else 1)[1]
    execution: Execution = _here.execution
    outcome = execution.ask((what, path))
    if outcome == "busy":
        raise Busy
    if outcome == "fatal":
        raise Nope
    if outcome == "die":
        raise Killed


_policy: dict[str, Any] = {"levels": [aft.Level("1s", tries=TRIES)], "recoverable": (Busy,), "unrecoverable": (Nope,)}


def machine_undo() -> None:
    """Undo a step."""
    _ask("undo")


@aft.compensate_with(machine_undo)
@aft.activity(**_policy)
def machine_plain() -> None:
    """A step that can be undone."""
    _ask("do")


@aft.compensate_with(machine_undo, when="started")
@aft.activity(**_policy)
def machine_started() -> None:
    """A step whose undo is owed from its start."""
    _ask("do")


@aft.activity(**_policy)
def machine_bare() -> None:
    """A step that nothing undoes."""
    _ask("do")


_STEPS: dict[str, aft.Activity[[], None]] = {"p": machine_plain, "s": machine_started, "b": machine_bare}


@aft.flow
def machine_flow(plan: str) -> str:
    """Execute the plan, one step for each letter; brackets enclose a savepoint whose failure is caught."""
    before, _, rest = plan.partition("(")
    inside, _, after = rest.partition(")")
    for item in before:
        _STEPS[item]()
    if inside:
        try:
            with aft.savepoint():
                for item in inside:
                    _STEPS[item]()
        except Nope:
            pass
        except Busy:
            pass
    for item in after:
        _STEPS[item]()
    return plan


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan: its path and its savepoint."""

    path: str
    item: str
    scope: str


def steps_of(plan: str) -> list[Step]:
    """Return a plan's steps with the paths that aft gives them."""
    found: list[Step] = []
    outer, inner, scope = 0, 0, ""
    for item in plan:
        if item == "(":
            outer, inner = outer + 1, 0
            scope = str(outer)
        elif item == ")":
            scope = ""
        elif scope:
            inner += 1
            found.append(Step(f"{scope}.{inner}", item, scope))
        else:
            outer += 1
            found.append(Step(str(outer), item, ""))
    return found


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """The expected state of a run. ``owed`` is its stack, the top last; ``final``: steps that failed for good."""

    plan: str
    recorded: dict[str, str] = field(default_factory=dict)
    owed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    failures: Counter[Ask] = field(default_factory=Counter)
    final: set[str] = field(default_factory=set)
    #: The fault that awaits a decision, or the wake that lets it go on.
    open: str | None = None
    wake: str | None = None
    parked: bool = False
    parked_for: str | None = None
    skipped: bool = False
    ended: str | None = None
    owner: Execution | None = None
    orders: list[str] = field(default_factory=list)
    #: What really happened, as far as the world knows: +path and -path.
    effects: list[str] = field(default_factory=list)

    def next(self) -> Ask | str:
        """Return the owner's next request, or the run's end; records what is recorded on the way there."""
        if self.ended is not None:
            return ("undo", self.late[-1]) if self.late else self.ended
        for step in steps_of(self.plan):
            if step.scope and self.recorded.get(step.scope) == "undone":
                continue
            if self.recorded.get(step.path) == "ok":
                continue
            if step.path not in self.final:
                if self.late:
                    return ("undo", self.late[-1])
                if step.item == "s" and step.path not in self.owed:
                    self.owed.append(step.path)
                return ("do", step.path)
            self.recorded[step.path] = "failed"
            if self.late:
                return ("undo", self.late[-1])  # before the flow hears of the failure
            if step.path in self.owed:
                return ("undo", step.path)
            if not step.scope:
                return ("undo", self.owed[-1]) if self.owed else ("failed" if self.skipped else "compensated")
            if under := [path for path in self.owed if path.startswith(f"{step.scope}.")]:
                return ("undo", under[-1])
            self.recorded[step.scope] = "undone"
        return ("undo", self.late[-1]) if self.late else "completed"

    def done(self, ask: Ask) -> None:
        """Update the model for a step that has succeeded."""
        what, path = ask
        self.failures.pop(ask, None)
        if what == "undo":
            (self.late if path in self.late else self.owed).remove(path)
            return
        self.recorded[path] = "ok"
        if path in self.owed:
            self.owed.remove(path)
        if next(step.item for step in steps_of(self.plan) if step.path == path) != "b":
            self.owed.append(path)

    def obey(self) -> None:
        """Update the model for a new owner that reads the orders."""
        for verb in self.orders:
            ask: Ask = ("undo", self.parked_for or "")
            self.failures.pop(ask, None)
            if verb != "retry" and self.parked_for is not None:
                (self.late if self.parked_for in self.late else self.owed).remove(self.parked_for)
                self.skipped = self.skipped or verb == "skip_frame"
        if self.orders:
            self.parked_for = None
        self.orders.clear()


# --- executions -----------------------------------------------------------------------------------------------------


class Execution:
    """A worker executing a run, on a thread that runs only while ``begin`` or ``answer`` waits for it."""

    def __init__(self, worker: Worker, row: RunRow, wake: str | None = None) -> None:
        self.worker = worker
        self.row = row
        self.wake = wake
        self.since = datetime.now(UTC)
        self.asked: Ask | None = None
        self.error: BaseException | None = None
        self._answers: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._moved = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="machine", daemon=True)

    @property
    def gone(self) -> bool:
        return self.asked is None

    def begin(self) -> None:
        """Run it until it requests a step, or ends."""
        self._thread.start()
        self._wait()

    def answer(self, outcome: Outcome) -> None:
        """Set the outcome of its step, and run it until it requests another one, or ends."""
        self.asked = None
        self._answers.put(outcome)
        self._wait()

    def ask(self, ask: Ask) -> Outcome:
        """Request a step, and wait for its outcome; called on the execution's own thread."""
        self.asked = ask
        self._moved.release()
        return self._answers.get()

    def _wait(self) -> None:
        assert self._moved.acquire(timeout=60), f"run {self.row.id} neither asks nor ends"
        if self.gone:
            self._thread.join(10)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        _here.execution = self
        try:
            Runner(self.worker.deps).run(self.row, wake=self.wake)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.worker.deps.executing.unregister(self.row.id)
            self.asked = None
            self._moved.release()


class Worker:
    """A process that executes runs, with a clock of its own."""

    def __init__(self, parts: Components) -> None:
        self.clock = JumpyClock()
        self.parts = parts
        lease = type(parts.make_lease())(
            parts.store, parts.namespace, timedelta(seconds=LEASE), self.clock, parts.telemetry
        )
        self.deps = parts.make_deps(lease)
        lease.begin(roles=["work"], flows=[f"{flow}@{version}" for flow, version in self.deps.registry.known])

    @property
    def leased(self) -> bool:
        """Whether its lease is valid by its own clock."""
        return self.deps.lease.is_valid(self.deps.lease.worker)

    def claim(self, wakes: Sequence[tuple[RunId, str]]) -> list[Execution]:
        """Claim the runs that these wakes name; return their executions, which have not begun."""

        def claim(expect: Expect) -> list[RunRow]:
            expect({run for run, _ in wakes})
            with self.deps.store.write() as connection:
                return claims.claim(
                    connection, self.deps.namespace, self.deps.lease.worker, wakes, self.deps.registry.known
                )

        called = dict(wakes)
        claimed = self.deps.executing.claim(claim) if self.leased else []
        return [Execution(self, row, called[row.id]) for row in claimed]

    def claim_due(self) -> list[Execution]:
        """Claim a due run; one that must be alone only if there is no other."""
        for alone in (False, True):
            found = self.deps.executing.claim(partial(self._claim_due, alone)) if self.leased else []
            if found:
                return [Execution(self, row) for row in found]
        return []

    def _claim_due(self, alone: bool, expect: Expect) -> list[RunRow]:
        deps, known = self.deps, self.deps.registry.known
        with deps.store.write() as connection:
            due = claims.find_due(connection, deps.namespace, known, 1, alone=alone)
            expect({run for run, _ in due})
            return claims.claim(connection, deps.namespace, deps.lease.worker, due, known, alone=alone) if due else []

    def beat(self) -> None:
        """Send a heartbeat, and run the checks that follow it."""
        self.deps.lease.renew()
        HeartbeatTasks(self.deps).run()


class JumpyClock(HandClock):
    """A clock whose wall time may be wrong, too."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.wrong


class _Kept(Relay):
    """Leaves all rows in the outbox, for the world to publish."""

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        pass


# --- the world ------------------------------------------------------------------------------------------------------

#: One look at a namespace: its tables' rows, by table and key.
Look = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class World:
    """A namespace with its workers, its dispatcher, its network and its clock."""

    def __init__(self, database: str) -> None:
        namespace = f"m{secrets.token_hex(6)}"
        settings = Settings.load(
            database_url=database, broker_url="embedded", namespace=namespace, lease=LEASE, grace=GRACE
        )
        self.parts = parts = Components(settings, registry.declared, JumpyClock())
        schema.check(parts.store)
        delays = parts.delays()
        delays.declare([timedelta(seconds=1)])
        relay = _Kept(parts.store, parts.broker, namespace, delays.topology, parts.telemetry, parts.clock, parts.seal)
        self.intake = parts.make_intake(delays, relay)
        takeover = Takeover(namespace, parts.store, parts.clock, parts.telemetry, self.intake.decide)
        self.sweeper = Sweeper(parts.make_dispatcher_deps(), self.intake, takeover, lease=settings.lease)
        self.workers = [Worker(parts) for _ in range(3)]
        self.leases = [worker.deps.lease for worker in self.workers]
        self.executions: list[Execution] = []
        self.models: dict[str, Model] = {}
        self.flight: list[tuple[str, Message]] = []
        self.seen: list[str] = []

    def close(self) -> None:
        """End every execution and every worker."""
        for execution in self.executions:
            if not execution.gone:
                execution.answer("die")
        for lease in self.leases:
            lease.end()
        self.parts.close()

    # Looking ----------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """Read every row of the namespace."""
        mine = select(runs.c.id).where(runs.c.namespace == self.parts.namespace)
        found: Look = {}
        with self.parts.store.read() as connection:
            for table, key in ((runs, "id"), (journal, "run_id"), (frames, "run_id"), (faults, "run_id")):
                found[table.name] = {
                    _key(table, row._mapping): dict(row._mapping)
                    for row in connection.execute(select(table).where(table.c[key].in_(mine)))
                }
            statement = select(late_effects).where(late_effects.c.run_id.in_(mine))
            found[late_effects.name] = {(row.id,): dict(row._mapping) for row in connection.execute(statement)}
        return found

    def row(self, run_id: str) -> dict[str, Any]:
        with self.parts.store.read() as connection:
            return dict(connection.execute(select(runs).where(runs.c.id == run_id)).one()._mapping)

    # The network ------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Move the messages in the outbox to the simulated network."""
        mine = outbox.c.namespace == self.parts.namespace
        with self.parts.store.read() as connection:
            found = connection.execute(select(outbox).where(mine).order_by(outbox.c.id)).all()
        if not found:
            return
        self.flight += [(row.queue, envelope.decode(row.body.encode())) for row in found]
        with self.parts.store.write() as connection:
            connection.execute(delete(outbox).where(mine))

    def deliver(self, place: str, message: Message, worker: Worker) -> None:
        """Deliver a message to the dispatcher or to a worker, a delayed one like any other."""
        if place == names.faults(self.parts.namespace):
            self.decide([str(message.fault)])
        else:
            self.executed(worker.claim([(message.run, message.wake)]))

    # The dispatcher ---------------------------------------------------------------------------------------------

    def decide(self, ids: Sequence[str]) -> None:
        """Decide about faults, and update the models."""
        self.intake.decide(ids)
        for model in self.models.values():
            if model.open is not None and model.open in ids:
                self._decided(model)

    def _decided(self, model: Model) -> None:
        fault, model.open = str(model.open), None
        with self.parts.store.read() as connection:
            row = connection.execute(select(faults).where(faults.c.id == fault)).one()
        assert row.state != "open", f"fault {fault} is not decided about"
        ask: Ask = ("undo" if row.kind == "compensator" else "do", str(row.path).removesuffix("/undo"))
        hopeless = row.type.endswith("Nope") or model.failures[ask] > TRIES
        if row.kind == "abort":
            model.parked = row.state == "parked"
        elif hopeless and ask[0] == "undo":
            model.parked, model.parked_for = True, ask[1]
        elif hopeless:
            model.final.add(ask[1])
        model.wake = None if model.parked else fault

    def sweep(self) -> None:
        """Run one round of the sweeper, and update the models."""
        before = self.look()[runs.name]
        expired = self._expired()
        rescued = [key for key, row in before.items() if row["worker_id"] in expired]
        old = [model.open for model in self.models.values() if model.open is not None]
        self.sweeper.step()
        for (run_id,) in rescued:
            self.rescued(run_id)
        for model in self.models.values():
            if model.open in old and model.open is not None and self._state(model.open) != "open":
                self._decided(model)
        self._learn_late()

    def rescued(self, run_id: str) -> None:
        """Update the model of a run that was taken from its owner: an open fault is left."""
        model = self.models[run_id]
        model.owner = None
        row = self.row(run_id)
        assert row["worker_id"] is None, f"run {run_id} was not rescued"
        with self.parts.store.read() as connection:
            found = select(faults.c.id).where(faults.c.run_id == run_id, faults.c.epoch == row["epoch"])
            (model.open,) = connection.execute(found).scalars().all()
        if self._state(str(model.open)) != "open":
            self._decided(model)

    def _state(self, fault: str) -> str:
        with self.parts.store.read() as connection:
            return str(connection.execute(select(faults.c.state).where(faults.c.id == fault)).scalar_one())

    def _expired(self) -> set[str]:
        with self.parts.store.read() as connection:
            found = connection.execute(select(workers).where(workers.c.namespace == self.parts.namespace)).all()
        return {row.id for row in found if row.expires_at <= datetime.now(UTC)}

    def _learn_late(self) -> None:
        """Copy the sweeper's decisions about late effects into the models."""
        for (run_id,), row in self.look()[runs.name].items():
            model = self.models[run_id]
            if model.ended is None or model.owner is not None:
                continue
            model.late = self._late_frames(run_id)
            if row["wake_id"] is not None and model.open is None:
                model.wake = row["wake_id"]
            model.parked = row["status"] == "parked"

    def _late_frames(self, run_id: str) -> list[str]:
        """Return the steps whose late effects are to be undone, the lowest frame first."""
        owed = select(frames.c.path).where(frames.c.run_id == run_id, frames.c.state == "late")
        with self.parts.store.read() as connection:
            return list(connection.execute(owed.order_by(frames.c.seq)).scalars())

    # Workers ----------------------------------------------------------------------------------------------------

    def executed(self, begun: Sequence[Execution]) -> None:
        """Begin these executions, run each to its first step, and compare that with its model."""
        for execution in begun:
            self.executions.append(execution)
            model = self.models[execution.row.id]
            model.owner, model.wake, model.parked = execution, None, False
            model.obey()
            execution.begin()
            self.moved(execution)

    def answer(self, execution: Execution, outcome: Outcome) -> None:
        """Set the outcome of a step; the model follows only if the execution still owns its run."""
        model, ask = self.models[execution.row.id], execution.asked
        assert ask is not None
        owns = model.owner is execution
        if outcome == "ok":
            model.effects.append(("+" if ask[0] == "do" else "-") + ask[1])
        execution.answer(outcome)
        if not owns:
            assert execution.gone, f"run {execution.row.id}: an owner that lost it goes on"
        elif outcome == "ok":
            model.done(ask)
            self.moved(execution)
        elif outcome == "die":
            model.owner = None
        else:
            model.failures[ask] += 1
            self._raised(model, execution)

    def moved(self, execution: Execution) -> None:
        """Compare the position of an execution with that of its model."""
        model = self.models[execution.row.id]
        row = self.row(execution.row.id)
        if execution.gone and _was_handed_back(execution, row):
            model.owner, model.wake = None, row["wake_id"]
            return
        if model.ended is None:
            model.late = self._late_frames(execution.row.id)  # the owner judges those that it finds, too
        # Only asked for what can have been written: an execution whose lease is over stops before its next step.
        expected = model.next()
        if not execution.gone:
            assert execution.asked == expected, f"run {execution.row.id} asks {execution.asked}, not {expected}"
        elif isinstance(expected, tuple) and self._is_early(execution, expected, row):
            model.owner, model.wake = None, row["wake_id"]
        elif isinstance(expected, tuple):
            assert not execution.worker.deps.lease.is_valid(execution.row.worker_id), (
                f"run {execution.row.id} went away"
            )
            model.owner = None
        else:
            if model.ended == "compensated" and model.skipped:
                expected = "failed"
            assert row["status"] == expected, f"run {execution.row.id} is {row['status']}, not {expected}"
            model.ended, model.owner = expected, None

    def _is_early(self, execution: Execution, ask: Ask, row: Mapping[str, Any]) -> bool:
        """Whether something else than its message woke the run before its next try was due, so that it waits on."""
        path = ask[1] + ("/undo" if ask[0] == "undo" else "")
        with self.parts.store.read() as connection:
            mine = (faults.c.run_id == row["id"], faults.c.path == path, faults.c.state == "waiting")
            fault = connection.execute(select(faults.c.id, faults.c.due_at).where(*mine)).one_or_none()
        if fault is None or fault.id == execution.wake or fault.due_at <= execution.since:
            return False
        return row["worker_id"] is None and row["wake_id"] is not None and row["due_at"] == fault.due_at

    def _raised(self, model: Model, execution: Execution) -> None:
        row = self.row(execution.row.id)
        assert row["worker_id"] is None
        with self.parts.store.read() as connection:
            found = select(faults).where(faults.c.run_id == row["id"], faults.c.state == "open")
            (fault,) = connection.execute(found).all()
        path = str(fault.path).removesuffix("/undo")
        ask: Ask = ("undo" if fault.kind == "compensator" else "do", path)
        assert fault.attempt == model.failures[ask], f"{ask} failed {model.failures[ask]} times, not {fault.attempt}"
        model.open, model.owner = fault.id, None

    def kill(self, worker: Worker) -> None:
        """End a process, and start another in its place; its lease is left as it is."""
        for execution in self.executions:
            if execution.worker is worker and not execution.gone:
                if self.models[execution.row.id].owner is execution:
                    self.models[execution.row.id].owner = None
                execution.answer("die")
        worker.deps.lease._liveness_lock.release()  # the kernel does that
        another = Worker(self.parts)
        self.workers[self.workers.index(worker)] = another
        self.leases.append(another.deps.lease)

    def beat(self, worker: Worker) -> None:
        """Send a heartbeat; runs that its process owns and does not execute are rescued."""
        before = self.look()[runs.name]
        worker.beat()
        after = self.look()[runs.name]
        for key, row in before.items():
            if row["worker_id"] is not None and after[key]["worker_id"] is None:
                self.rescued(key[0])

    # Time -------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Advance the database's clock: make every stored time that much older."""
        timed = (
            (runs, ("sweep_at", "due_at", "updated_at", "created_at", "started_at", "ended_at")),
            (faults, ("due_at", "raised_at")),
            (workers, ("expires_at", "started_at")),
            (late_effects, ("at",)),
        )
        with self.parts.store.write() as connection:
            for table, columns in timed:
                mine = table.c.namespace == self.parts.namespace
                for row in connection.execute(select(table).where(mine)).all():
                    older = {name: _earlier(getattr(row, name), seconds) for name in columns}
                    connection.execute(update(table).where(table.c.id == row.id).values(**older))

    def expire(self, worker: Worker) -> None:
        """Expire a worker's lease in the database, without the worker's knowledge."""
        with self.parts.store.write() as connection:
            past = datetime.now(UTC) - timedelta(seconds=1)
            this = workers.c.id == worker.deps.lease.worker
            connection.execute(update(workers).where(this).values(expires_at=past))

    # The end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Advance time and deliver messages, without any failure, until everything is at rest."""
        for _ in range(40):
            self.finish()
            self.collect()
            if self._is_still():
                return
            self.pass_time(LEASE + 1)
            for worker in self.workers:
                worker.clock.wrong = timedelta(0)
                self.beat(worker)
            self.sweep()
            self.collect()
            for place, message in [self.flight.pop() for _ in list(self.flight)]:
                self.deliver(place, message, self.workers[0])
                self.finish()
            while begun := self.workers[0].claim_due():
                self.executed(begun)
                self.finish()
        raise AssertionError(f"it does not come to rest: {list(self._restless())}")

    def finish(self) -> None:
        """Run every execution to its end."""
        for execution in self.executions:
            while not execution.gone:
                self.answer(execution, "ok")
        self.executions = []

    def _restless(self) -> Iterator[tuple[str, str]]:
        for (run_id,), row in self.look()[runs.name].items():
            resting = row["status"] in (*(status.value for status in ENDS), "parked")
            if not resting or row["worker_id"] is not None or row["wake_id"] is not None:
                yield run_id, row["status"]

    def _is_still(self) -> bool:
        parked = {run_id for run_id, model in self.models.items() if model.parked}
        open_late = [row for row in self.look()[late_effects.name].values() if row["state"] == "open"]
        late = [row for row in open_late if row["run_id"] not in parked]
        return not self.flight and not any(self._restless()) and not late and all(e.gone for e in self.executions)


def _was_handed_back(execution: Execution, row: Mapping[str, Any]) -> bool:
    """Whether a run that had to be alone has recorded progress, and was released for any worker."""
    alone = execution.row.deaths >= MOST_SHARED_DEATHS and row["deaths"] == 0
    return alone and row["worker_id"] is None and row["ended_as"] is None and row["wake_id"] is not None


def _earlier(value: datetime | None, seconds: float) -> datetime | None:
    return None if value is None else value - timedelta(seconds=seconds)


def _key(table: Table, row: Any) -> tuple[Any, ...]:
    if table is journal:
        return (row["run_id"], row["path"])
    if table is frames:
        return (row["run_id"], row["path"], row["pushed_at"])
    return (row["id"],)
