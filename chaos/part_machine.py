"""A part: Hypothesis searches for an order of events that loses a run, and shrinks what it finds.

Each rule is one thing that may happen at any time; after each, what must always be true is looked at. What a run should
be like by then is the model's to say (``machine.Model``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aft.compensation.stack import PENDING
from aft.errors import OrderRefused
from aft.ids import RunId, new_id
from aft.runs import run_rows, submit
from aft.runs.new_runs import NewRun
from aft.runs.orders import by_hand
from aft.runs.orders.actor import Actor
from aft.runs.states import ENDS
from aft.store.tables import faults, frames, journal, late_effects, runs
from chaos.machine import GRACE, LEASE, Execution, Look, Model, Outcome, Worker, World, machine_flow, steps_of
from chaos.results import Context, Result
from chaos.setups import private

#: Some number; what it stands for is counted round.
picks = st.integers(0, 1_000_000)
plans = st.sampled_from(["p", "pp", "ppp", "sp", "ps", "bp", "p(p)p", "p(pp)b", "(sp)p", "b(ps)", "pspb"])
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["ok", "ok", "ok", "busy", "fatal"])
ORDERS: dict[str, Callable[..., None]] = {
    "retry": by_hand.retry,
    "skip_frame": by_hand.skip_frame,
    "frame_done": by_hand.frame_done,
}


#: What is done to a game on purpose; whatever else is counted is how it went.
FAULTS = ("message lost", "message again", "worker killed", "lease over", "execution ended silently", "clock jumped")


class Rules(RuleBasedStateMachine):
    """The rules of the state machine. ``database`` and ``happened`` belong to a subclass made by ``rules_on``."""

    database: ClassVar[str]
    happened: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.database)
        self.before: Look = self.world.look()

    def teardown(self) -> None:
        try:
            self.world.settle()
            self.always()
            for run_id, model in self.world.models.items():
                check_end(self.world, run_id, model)
        finally:
            self.world.close()

    # Runs and messages ------------------------------------------------------------------------------------------

    @initialize(first=plans, second=plans)
    def begin(self, first: str, second: str) -> None:
        """Submit two runs: a world without runs would show nothing."""
        for plan in (first, second):
            self.submit(plan)

    @rule(plan=plans)
    def submit(self, plan: str) -> None:
        parts = self.world.parts
        args = machine_flow.arguments.encode(machine_flow.arguments.bind((plan,), {}))
        new = NewRun(RunId(new_id()), parts.namespace, machine_flow.name, machine_flow.version, args)
        with parts.store.write() as connection:
            row, _ = submit.enqueue(connection, new, parts.clock.now(), timedelta(seconds=GRACE))
        self.world.models[row.id] = Model(plan, wake=row.wake_id)
        self._count("run")

    @precondition(lambda self: self.world.flight)
    @rule(pick=picks, who=picks, again=st.booleans())
    def deliver(self, pick: int, who: int, again: bool) -> None:
        """Deliver any message in flight; with ``again`` it stays in flight."""
        place, message = self._one(self.world.flight, pick)
        if not again:
            self.world.flight.remove((place, message))
        model, worker = self.world.models[message.run], self._one(self.world.workers, who)
        expected = message.wake in (model.open, model.wake)
        epoch = self.world.row(message.run)["epoch"]
        self.world.deliver(place, message, worker)
        if not expected:
            assert self.world.row(message.run)["epoch"] == epoch, f"a stale message woke run {message.run}"
        self._count("message again" if again else "message" if expected else "message, stale")

    @precondition(lambda self: self.world.flight)
    @rule(pick=picks, who=picks, comes_to=st.lists(outcomes, max_size=5))
    def get_on(self, pick: int, who: int, comes_to: list[Outcome]) -> None:
        """Deliver a message, and let the execution that it wakes take some steps."""
        self.deliver(pick, who, again=False)
        for outcome in comes_to:
            if self.world.executions and not self.world.executions[-1].gone:
                self.answer(len(self._asking()) - 1, outcome)
                self.always()

    @precondition(lambda self: self.world.flight)
    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        self.world.flight.remove(self._one(self.world.flight, pick))
        self._count("message lost")

    @rule(chosen=st.sets(picks, max_size=4))
    def decide(self, chosen: set[int]) -> None:
        """Decide about any faults, decided ones among them."""
        known = [str(key[0]) for key in self.world.look()[faults.name]]
        ids = {known[pick % len(known)] for pick in chosen} if known else set()
        self.world.decide(sorted(ids))

    # Owners -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._asking())
    @rule(pick=picks, outcome=outcomes)
    def answer(self, pick: int, outcome: Outcome) -> None:
        """Set the outcome of a step; an owner that has lost its run must change nothing.

        But for the length of the run's inbox, which tells the owner that has it now of an effect that came late.
        """
        execution = self._one(self._asking(), pick)
        stale = self.world.models[execution.row.id].owner is not execution
        before = self.world.look() if stale else {}
        self.world.answer(execution, outcome)
        if stale:
            after = self.world.look()
            for row in (*before[runs.name].values(), *after[runs.name].values()):
                del row[runs.c.inbox_seq.name]
            for table in (runs, journal, frames, faults):
                assert after[table.name] == before[table.name], f"a stale owner wrote to {table.name}"
            self._count("stale owner")
        self._count(f"step {outcome}")

    @precondition(lambda self: self._asking())
    @rule(pick=picks)
    def fall(self, pick: int) -> None:
        """End an execution silently, in a process that lives on."""
        self.world.answer(self._one(self._asking(), pick), "die")
        self._count("execution ended silently")

    @rule(who=picks)
    def kill(self, who: int) -> None:
        worker = self._one(self.world.workers, who)
        self._count("worker killed" if self._is_busy(worker) else "idle worker killed")
        self.world.kill(worker)

    @rule(who=picks)
    def expire(self, who: int) -> None:
        """Expire the lease of a live worker in the database."""
        worker = self._one(self.world.workers, who)
        self._count("lease over" if self._is_busy(worker) else "lease of an idle worker over")
        self.world.expire(worker)

    @rule(who=picks)
    def beat(self, who: int) -> None:
        self.world.beat(self._one(self.world.workers, who))

    @rule(who=picks)
    def take_due(self, who: int) -> None:
        begun = self._one(self.world.workers, who).claim_due()
        self.world.executed(begun)
        self._count("run due" if begun else "nothing due")

    # Time and people --------------------------------------------------------------------------------------------

    @rule()
    def sweep(self) -> None:
        self.world.sweep()
        self._count("sweep")

    @rule(seconds=st.sampled_from([1.0, GRACE + 1, LEASE + 1]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self._count("time passed")

    @rule(who=picks, seconds=st.sampled_from([-2 * LEASE, -1.0, 1.0, LEASE / 2, 2 * LEASE]))
    def jump(self, who: int, seconds: float) -> None:
        """Make a worker's clocks jump: that of its lease, and its wall clock."""
        clock = self._one(self.world.workers, who).clock
        clock.passed += seconds
        clock.wrong += timedelta(seconds=seconds)
        self._count("clock jumped")

    @precondition(lambda self: self.world.models)
    @rule(pick=picks, verb=st.sampled_from(sorted(ORDERS)))
    def order(self, pick: int, verb: str) -> None:
        """Give an order to a run, parked or not."""
        parts = self.world.parts
        among = list(self.world.models.items())
        parked = [(run_id, model) for run_id, model in among if model.parked]
        run_id, model = self._one(parked if parked and pick % 4 else among, pick)
        possible = model.parked and model.wake is None and (verb == "retry" or model.parked_for is not None)
        with parts.store.read() as connection:
            row = run_rows.get_run(connection, parts.namespace, run_id)
        try:
            with parts.store.write() as connection:
                anne = Actor("anne", "has looked", parts.clock.now(), timedelta(seconds=GRACE))
                ORDERS[verb](connection, row, anne)
        except OrderRefused:
            assert not possible, f"{verb} was refused for run {run_id}"
            return
        assert possible, f"{verb} was taken for run {run_id}"
        model.orders.append(verb)
        model.wake = self.world.row(run_id)["wake_id"]
        self._count(f"order {verb}")

    # What must always be true -----------------------------------------------------------------------------------

    @invariant()
    def always(self) -> None:
        self.world.collect()
        before, after = self.before, self.world.look()
        check_rows(before, after)
        for run_id, model in self.world.models.items():
            check_model(after, run_id, model)
            check_reachable(after, run_id)
        self.before = after

    def _asking(self) -> list[Execution]:
        return [execution for execution in self.world.executions if not execution.gone]

    def _is_busy(self, worker: Worker) -> bool:
        return any(execution.worker is worker for execution in self._asking())

    def _one(self, among: list[Any], pick: int) -> Any:
        return among[pick % len(among)]

    def _count(self, what: str) -> None:
        self.happened[what] += 1


# --- what is looked at ----------------------------------------------------------------------------------------------


def check_rows(before: Look, after: Look) -> None:
    """Check that epochs only rise, the journal only grows, and frames were popped from the top, for good."""
    for key, row in before[runs.name].items():
        now = after[runs.name][key]
        assert now["epoch"] >= row["epoch"], f"the epoch of run {key} fell"
        assert now["seq"] >= row["seq"], f"the writes of run {key} are fewer"
    for key, row in before[journal.name].items():
        assert after[journal.name].get(key) == row, f"a recorded outcome changed: {key}"
    pending = {state.value for state in PENDING}
    for key, row in before[frames.name].items():
        now = after[frames.name][key]
        if row["state"] not in pending:
            assert now == row, f"a frame that was settled changed: {key}"
        elif now["state"] == "undone":
            above = [
                other["path"]
                for place, other in before[frames.name].items()
                if place[0] == key[0] and other["seq"] > row["seq"]
                if after[frames.name][place]["state"] in pending
            ]
            assert not above, f"frame {key} was taken off while {above} lay on it"


def check_model(after: Look, run_id: str, model: Model) -> None:
    """Check that the recorded outcomes and the owed frames are those of the model."""
    row = after[runs.name][run_id,]
    recorded = {key[1]: entry["outcome"] for key, entry in after[journal.name].items() if key[0] == run_id}
    assert recorded == model.recorded, f"run {run_id} has recorded {recorded}, not {model.recorded}"
    stack = sorted((frame for key, frame in after[frames.name].items() if key[0] == run_id), key=lambda one: one["seq"])
    owed = [frame["path"] for frame in stack if frame["state"] in ("owed", "armed")]
    assert owed == model.owed, f"run {run_id} owes {owed}, not {model.owed}"
    assert (row["status"] == "parked") == model.parked, f"run {run_id} is {row['status']}: {row['reason']}"
    assert row["wake_id"] == model.wake, f"run {run_id} awaits {row['wake_id']}, not {model.wake}"
    if model.ended is not None:
        assert row["ended_as"] == model.ended
    if model.owner is not None:
        owner = model.owner.row
        assert (row["worker_id"], row["epoch"]) == (owner.worker_id, owner.epoch), f"run {run_id} has another owner"


def check_reachable(after: Look, run_id: str) -> None:
    """Check that a run has ended, is parked, has an owner, or that something will wake it."""
    row = after[runs.name][run_id,]
    still = row["status"] in (*(status.value for status in ENDS), "parked")
    open_faults = [
        fault
        for fault in after[faults.name].values()
        if fault["run_id"] == run_id and fault["state"] == "open" and fault["epoch"] == row["epoch"]
    ]
    woken = row["wake_id"] is not None and row["sweep_at"] is not None
    assert still or row["worker_id"] is not None or open_faults or woken, f"run {run_id} is lost: {row}"


def check_end(world: World, run_id: str, model: Model) -> None:
    """Check that an ended run is whole: everything done stands, or everything done was undone."""
    row, look, last = world.row(run_id), world.look(), {effect[1:]: effect[0] for effect in model.effects}
    if row["status"] == "parked":
        return
    late = [each for each in look[late_effects.name].values() if each["run_id"] == run_id]
    assert all(each["state"] != "open" for each in late), f"run {run_id} has late effects that nobody settled"
    mine = [frame for key, frame in look[frames.name].items() if key[0] == run_id]
    by_hand = {frame["path"] for frame in mine if frame["state"] in ("skipped", "done")}
    for path in [path for path, item in _items(model.plan) if item != "b" and path not in by_hand]:
        if row["status"] == "completed" and model.recorded.get(path) == "ok" and _stands(model, path):
            assert last.get(path) == "+", f"run {run_id} is completed, and step {path} does not stand"
        else:
            assert last.get(path) != "+", f"run {run_id} is {row['status']}, and step {path} was not undone"


def _items(plan: str) -> list[tuple[str, str]]:
    return [(step.path, step.item) for step in steps_of(plan)]


def _stands(model: Model, path: str) -> bool:
    scope = path.rpartition(".")[0]
    return not scope or model.recorded.get(scope) != "undone"


# --- the part -------------------------------------------------------------------------------------------------------


def rules_on(database: str) -> type[Rules]:
    """Return the rules for this database, with their own counts."""

    class Here(Rules):
        happened: ClassVar[Counter[str]] = Counter()

    Here.database = database
    return Here


def explore(database: str, examples: int, steps: int, number: int) -> Counter[str]:
    """Play ``examples`` games of ``steps`` steps; raises for the first that breaks a promise, shrunk."""
    rules = rules_on(database)
    run_state_machine_as_test(
        seed(number)(rules),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return rules.happened


#: Games, and steps in each, on PostgreSQL and on SQLite.
GAMES, STEPS = 500, 60
DATABASES = ("sqlite+embedded", "postgresql+embedded")


def run(ctx: Context) -> Result:
    """Run the part on private servers."""
    begun = time.monotonic()
    happened: Counter[str] = Counter()
    violations: list[str] = []
    for place, combination in enumerate(DATABASES):
        ctx.progress(place, len(DATABASES), combination)
        with private(combination, ctx.directory / combination) as site:
            try:
                happened += explore(site.database, ctx.size(GAMES, 20), ctx.size(STEPS, 40), ctx.seed)
            except Exception as error:
                notes = "\n".join(getattr(error, "__notes__", []))
                violations.append(f"{combination}: {type(error).__name__}: {error}\n{notes}")
    made = happened.pop("run", 0)
    done_to_it, events = injected(happened)
    figures = {"games on each": ctx.size(GAMES, 20), "steps in each": ctx.size(STEPS, 40), "what else happened": events}
    return Result("machine", ctx.seed, made, done_to_it, violations, time.monotonic() - begun, figures, ctx.quick)


def injected(happened: Counter[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Separate the injected faults from all other events."""
    on_purpose = {what: happened[what] for what in FAULTS}
    return on_purpose, {what: times for what, times in sorted(happened.items()) if what not in FAULTS}
