"""What rules and exlets once got wrong: a story for each, so that it stays right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

import aft
from aft import do
from aft.app.process import Role
from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.fault import FaultState
from aft.flows.declare.context import AttemptContext, in_attempt
from aft.flows.orders import rulings
from aft.flows.runtime.rule_watch import AttemptWatch, RuleWatch
from aft.flows.steps import attempt
from aft.flows.steps.constraints import Constraints
from aft.flows.steps.step import Step
from aft.rules.cases import sources
from aft.rules.exception_types import On
from aft.rules.exlets import plans
from aft.rules.exlets.plans import Plan, PlanState
from aft.rules.exlets.primitives import Primitive
from aft.rules.trees import rows
from aft.runs.ownership.owner import Fenced
from aft.runs.ownership.rescue import make_abort
from aft.runs.records import faults
from aft.runs.states import Status
from aft.store import tables
from aft.telemetry import RuleWarned
from tests.acceptance import theatre
from tests.acceptance.theatre import listen, rule, stops, teach, undone
from tests.conftest import make_setup
from tests.setups import Setup, eventually
from tests.storing import Stage
from tests.world import Busy, Refused, gates, keys, ledger, trouble


@pytest.fixture(params=["sqlite"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """On one set-up: these are about what is decided, not about where it is kept."""
    made = make_setup(request.param, request, tmp_path)
    yield made
    made.close()


#: Nobody listens there.
NOBODY = "http://127.0.0.1:9/"
WORKS = [Role.WORK]
DECIDES = [role for role in Role if role is not Role.WORK]


@pytest.fixture
def known_sources() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    before = dict(sources.declared)
    yield
    sources.declared.clear()
    sources.declared.update(before)


# A revue of numbers: each call of one returns how many there were ---------------------------------------------------


def play(show: str) -> int:
    """Play the next number; ``trouble`` and ``gates`` know it as ``number 1``, ``number 2``, …"""
    keys[show, "number"].append(aft.current().key)
    nth = len(keys[show, "number"])
    if (gate := gates.get((show, f"number {nth}"))) is not None:
        assert gate.wait(60)
    if waiting := trouble.get((show, f"number {nth}")):
        raise waiting.pop(0)
    ledger[show].append(f"number {nth}")
    return nth


def take_off(show: str, result: int) -> None:
    ledger[show].append(f"off {result}")


_kept: dict[str, Any] = {"levels": theatre.LEVELS, "recoverable": (Busy,), "unrecoverable": (Refused,)}


@aft.compensate_with(take_off)
@aft.activity(name="revue_number", **_kept)
def number(show: str) -> int:
    return play(show)


@aft.compensate_with(take_off)
@aft.activity(name="revue_timed", timeout="1s", **_kept)
def timed(show: str) -> int:
    """At most so long."""
    return play(show)


@aft.activity(name="revue_bare", **_kept)
def bare(show: str) -> int:
    """Nobody can undo it."""
    return play(show)


@aft.activity(name="revue_poster", **_kept)
def poster(show: str, text: str) -> int:
    """Takes something long, and fails as ``number 1``, ``number 2``, …"""
    return play(show) + len(text)


@aft.flow(name="revue")
def revue(show: str) -> int:
    return number(show)


@aft.flow(name="revue_with_a_limit")
def limited(show: str) -> int:
    return timed(show)


@aft.flow(name="revue_for_good")
def for_good(show: str) -> int:
    return bare(show)


@aft.flow(name="revue_past_its_pivot")
def pivoted(show: str) -> int:
    aft.pivot()
    return number(show)


@aft.flow(name="revue_season")
def season(show: str, evening: int = 1) -> str:
    """The same step in each generation."""
    try:
        number(show)
    except aft.ConstraintViolated:
        return "caught"
    if evening < 3:
        aft.continue_as_new(show, evening + 1)
    return "over"


@aft.flow(name="revue_gathered")
async def gathered(show: str) -> list[Any]:
    """Activities that are gathered as they are, without a task's code around them."""
    sold = await asyncio.gather(*(theatre.sell_async(show, what, 1) for what in ("left", "middle", "right")))
    return theatre.tell(sold)


@aft.flow(name="revue_sketch")
def sketch(show: str) -> int:
    """A child that does something before it fails."""
    theatre.sell(show, "props", 1)
    return theatre.sell(show, "sketch", 1)


@aft.flow(name="revue_programme")
def programme(show: str) -> list[int]:
    """A parent with an effect of its own."""
    return [theatre.sell(show, "hall", 1), sketch(show)]


@aft.flow(name="revue_announced")
def announced(show: str, text: str) -> int:
    return poster(show, text)


# Asking what has become of it ---------------------------------------------------------------------------------------


def teach_numbers(app: aft.Aft, flow: aft.Flow[Any, Any], answers: dict[int, list[Primitive]]) -> None:
    """What is said after each number."""
    tree = theatre.tree_of(flow, On.ACTIVITY_POST, {f"activity.result == {nth}": f"after_{nth}" for nth in answers})
    app.rules.save_all([tree], [aft.Exlet(f"after_{nth}", steps) for nth, steps in answers.items()])


def plan_of(app: aft.Aft, run: aft.Run) -> Plan:
    with app.store.read() as connection:
        return plans.of_run(connection, run.id)[0]


def late_fates(app: aft.Aft, run: aft.Run) -> list[str]:
    table = tables.late_effects
    with app.store.read() as connection:
        return list(connection.execute(select(table.c.state).where(table.c.run_id == run.id)).scalars())


def stops_by_itself(run: aft.Run, status: Status) -> None:
    """Wait until a run is in a state, nobody has it, and nobody has called for it."""
    eventually(lambda: (row := run.row).status is status and row.worker_id is None and row.due_at is None)


def refuse(show: str, what: str = "tickets") -> None:
    trouble[show, what] = [Refused("no")]


# Plans that cannot be done ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["https://user:secret@hooks.example.com/", "https://hooks.example.com/häuser"])
def test_a_notice_that_could_never_be_sent_is_refused_where_it_is_written(url: str) -> None:
    with pytest.raises(aft.RuleRefused, match="url must begin with") as refused:
        do.notify(url)
    assert "secret" not in str(refused.value)


def test_a_rule_that_the_dispatcher_has_not_seen_yet_stops_a_step(setup: Setup, show: str) -> None:
    worker, decider = setup.app(), setup.app()
    decider.rule_cache.current()
    decider.rule_cache._read_at = decider.clock.ticks() + 1e6  # as if it had looked just before the edit
    teach(worker, revue, "activity_pre", "true", do.fail("not tonight"))
    with worker.dispatcher(only=WORKS), decider.dispatcher(only=DECIDES):
        undone(worker.submit(revue, show))
    assert ledger[show] == []


def test_a_constraint_that_chooses_to_park_says_which_rule_objects(setup: Setup, show: str) -> None:
    app = setup.app()
    app.rules.save_all([rule(revue, "activity_pre", "true", "park", None)], [])
    with app.dispatcher():
        run = app.submit(revue, show)
        stops(run, Status.PARKED)
    assert "no such exlet" not in (run.row.reason or "")
    assert "true" in (run.row.reason or "")


def test_a_constraint_whose_exlet_is_gone_lets_nothing_through(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "activity_pre", "true", do.fail("not tonight"))
    with app.dispatcher(only=WORKS):
        run = app.submit(revue, show)
        stops(run, Status.RECOVERING)
    with app.store.write() as connection:
        rows.begin_edit(connection, app.namespace)
        connection.execute(delete(tables.exlets).where(tables.exlets.c.namespace == app.namespace))
    app.rule_cache.refresh()
    with app.dispatcher(only=DECIDES):
        stops(run, Status.PARKED)
    assert "no such exlet" in (run.row.reason or "")
    assert ledger[show] == []


# What is undone, and under which key --------------------------------------------------------------------------------


def test_a_step_that_is_objected_to_leaves_those_of_earlier_generations_alone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, season, {3: [do.fail("enough")]})
    with app.dispatcher():
        assert app.start(season, show).result(60) == "caught"
    assert ledger[show] == ["number 1", "number 2", "number 3", "off 3"]


def test_a_restarted_step_is_undone_again_when_a_person_retries_it(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, revue, {1: [do.restart()], 2: [do.park("look")]})
    with app.dispatcher():
        run = app.submit(revue, show)
        stops(run, Status.PARKED)
        run.retry()
        assert run.result(60) == 3
    assert len(set(keys[show, "number"])) == 3
    assert ledger[show] == ["number 1", "off 1", "number 2", "off 2", "number 3"]


@pytest.mark.usefixtures("known_sources")
def test_a_restarted_step_keeps_its_new_key_when_a_constraint_ceases_to_hold(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    monkeypatch.setattr(sources, "FRESH", 0.0)  # what was true of the second must not be said of the third
    aft.source(default=0, name="revue_begun")(lambda: len(keys[show, "number"]))
    teach_numbers(app, revue, {1: [do.restart()]})
    teach(app, revue, "violated", "source.revue_begun == 2", do.retry(after="20ms"))
    gate = gates[show, "number 2"] = threading.Event()
    with app.dispatcher():
        run = app.submit(revue, show)
        assert run.result(60) == 3
        gate.set()
        # What the second did after all is what the third has done, under the same key: nothing is undone.
        eventually(lambda: late_fates(app, run) == ["drop"])
    first, *others = keys[show, "number"]
    assert len(set(others)) == 1
    assert first not in others
    assert ledger[show] == ["number 1", "off 1", "number 3", "number 2"]


def test_what_is_undone_after_a_pivot_is_retried_under_another_key(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, pivoted, {1: [do.fail("no")]})
    with app.dispatcher():
        run = app.submit(pivoted, show)
        stops(run, Status.PARKED)
        run.retry()
        assert run.result(60) == 2
    assert ledger[show] == ["number 1", "off 1", "number 2"]
    assert len(set(keys[show, "number"])) == 2


def test_the_late_effect_of_a_restarted_step_leaves_a_completed_run_alone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, limited, {1: [do.restart()]})
    gate = gates[show, "number 2"] = threading.Event()
    with app.dispatcher():
        run = app.submit(limited, show)
        assert run.result(60) == 3
        gate.set()
        eventually(lambda: late_fates(app, run) == ["drop"])
        assert run.status is Status.COMPLETED
    assert ledger[show] == ["number 1", "off 1", "number 3", "number 2"]


def test_a_restarted_step_that_nobody_can_undo_keeps_its_key(setup: Setup, show: str) -> None:
    """Whoever knows the key has done it already: another one would do it twice."""
    app = setup.app()
    teach_numbers(app, for_good, {1: [do.restart()]})
    with app.dispatcher():
        assert app.start(for_good, show).result(60) == 2
    assert len(set(keys[show, "number"])) == 1


def test_a_step_that_may_have_had_its_effect_is_not_kept_from_beginning(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    taught, perform = threading.Event(), attempt.perform

    def die_after_it(step: Step) -> None:
        monkeypatch.setattr(attempt, "perform", perform)
        with in_attempt(AttemptContext(step.current(0))):
            step.fn(*step.args, **step.kwargs)
        assert taught.wait(60)
        raise Fenced("the worker was lost after the effect")

    monkeypatch.setattr(attempt, "perform", die_after_it)
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: ledger[show])
        teach(app, revue, "activity_pre", "true", do.fail("too late"))
        app.rule_cache.refresh()
        taught.set()
        assert run.result(60) == 2
    assert len(set(keys[show, "number"])) == 1


def test_a_parent_whose_child_was_left_as_it_is_does_not_say_that_all_is_undone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, sketch, "fault", "true", do.remove("activity"))
    refuse(show, "sketch")
    with app.dispatcher():
        run = app.submit(programme, show)
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert run.status is Status.FAILED
    assert ledger[show] == ["hall 1", "props 1", "sketch 1!", "unhall 1 for 10"]
    with app.store.read() as connection:
        (left,) = [frame for frame in stack.of_run(connection, run.id) if frame.child_id is not None]
    assert left.state is FrameState.SKIPPED
    assert "nothing undone" in (left.note or "")


# Ladders and counting -----------------------------------------------------------------------------------------------


def test_a_rule_for_lost_workers_that_decides_nothing_leaves_poison_pills_parked(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "abort", "true", do.notify(NOBODY))
    run = app.submit(revue, show)
    asleep = {"status": "recovering", "wake_id": None, "due_at": None, "sweep_at": None, "deaths": 2, "deaths_alone": 7}
    with app.store.write() as connection:
        abort = make_abort(run.row.id, revue.name, run.row.epoch, 9, "a worker was lost", app.clock.now())
        faults.add(connection, app.namespace, abort)
        connection.execute(update(tables.runs).where(tables.runs.c.id == run.id).values(**asleep))
    with app.dispatcher():
        stops(run, Status.PARKED)
    assert "died 9 times in a row" in (run.row.reason or "")
    assert ledger[show] == []


def test_a_retry_after_a_step_counts_and_comes_to_an_end(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "activity_post", "true", do.retry(ladder="10ms*2"))
    with app.dispatcher():
        undone(app.submit(revue, show))
    assert ledger[show] == ["number 1", "off 1", "number 2", "off 2", "number 3", "off 3"]


def test_other_arguments_after_a_step_mean_that_it_is_undone_and_executed_with_them(setup: Setup, show: str) -> None:
    app = setup.app()
    condition = "activity.args.what == 'tickets' && activity.args.seats == 1"
    teach(app, theatre.evening, "activity_post", condition, do.set(args={"seats": 2}), do.retry(after="20ms"))
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 20, 10]
    assert ledger[show] == ["hall 1", "tickets 1", "untickets 1 for 10", "tickets 2", "bar 1"]


@pytest.mark.usefixtures("known_sources")
def test_a_retry_before_a_step_asks_again(setup: Setup, show: str) -> None:
    app = setup.app()
    closed = threading.Event()
    closed.set()
    aft.source(default=True, name="revue_closed")(closed.is_set)
    teach(app, revue, "activity_pre", "source.revue_closed == true", do.retry(after="20ms"))
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: max((fault.attempt for fault in app.faults()), default=0) > 2)
        assert ledger[show] == []
        closed.clear()
        assert run.result(60) == 1


def test_an_exlet_that_decides_nothing_leaves_a_step_waiting_for_its_signal(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "fault", "true", do.set(tags={"seen": True}))
    trouble[show, "number 1"] = [aft.Recoverable("not yet", on_signal="go")]
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: any(fault.state is FaultState.WAITING for fault in app.faults()))
        stops_by_itself(run, Status.RECOVERING)
        run.signal("go")
        assert run.result(60) == 2
    assert len(app.faults()) == 1


def test_a_run_that_has_begun_is_not_asked_whether_it_may(setup: Setup, show: str) -> None:
    app = setup.app()
    gate = gates[show, "number 1"] = threading.Event()
    trouble[show, "number 1"] = [Busy("soon")]
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: keys[show, "number"])
        teach(app, revue, "run_pre", "true", do.fail("must not begin"))
        app.rule_cache.refresh()
        gate.set()
        assert run.result(60) == 2


# What is given to steps ---------------------------------------------------------------------------------------------


def test_a_result_that_is_set_before_a_step_begins_is_its_result(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_pre", "activity.args.what == 'tickets'", do.set(result=7))
    refuse(show, "bar")
    with app.dispatcher():
        undone(app.start(theatre.evening, show))
        assert app.start(theatre.evening, f"{show}-2").result(60) == [10, 7, 10]
    # Nothing was done, and nothing is undone.
    assert ledger[show] == ["hall 1", "bar 1!", "unhall 1 for 10"]


def test_arguments_of_a_wrong_type_park_and_are_forgotten_by_a_retry(setup: Setup, show: str) -> None:
    app = setup.app()
    condition = "activity.args.what == 'tickets'"
    steps: list[Primitive] = [do.suspend("activity"), do.set(args={"seats": "many"}), do.resume("activity")]
    teach(app, theatre.evening, "activity_pre", condition, *steps)
    with app.dispatcher():
        run = app.submit(theatre.evening, show)
        stops(run, Status.PARKED)
        assert "do not fit" in (run.row.reason or "")
        app.rules.undo((theatre.evening.name, On.ACTIVITY_PRE, "*"))
        app.rule_cache.refresh()
        run.retry()
        assert run.result(60) == [10, 10, 10]
    assert ledger[show] == ["hall 1", "tickets 1", "bar 1"]


@pytest.mark.parametrize("where", ["args.seats", "result", "tags.seats"])
def test_what_cannot_be_computed_parks_and_changes_nothing(setup: Setup, show: str, where: str) -> None:
    app = setup.app()
    changes = do.set(args={"what": "stalls"}, computed={where: "activity.args.colour"})
    teach(app, theatre.evening, "fault", "true", do.suspend("flow"), changes, do.remove("flow"))
    other = app.submit(theatre.evening.options(after="1d"), f"{show}-2")
    refuse(show)
    with app.dispatcher():
        run = app.submit(theatre.evening, show)
        stops(run, Status.PARKED)
        assert f"{where} cannot be computed" in (run.row.reason or "")
        run.retry()
        assert run.result(60) == [10, 10, 10]
    assert ledger[show] == ["hall 1", "tickets 1!", "tickets 1", "bar 1"]
    # What would have come after it has not happened, and nothing stays suspended.
    assert plan_of(app, run).state is PlanState.DROPPED
    assert other.status is Status.RUNNING


def test_faults_do_not_keep_what_is_large(setup: Setup, show: str) -> None:
    app = setup.app()
    trouble[show, "number 1"] = [Busy("soon")]
    with app.dispatcher():
        assert app.start(announced, show, "x" * 30_000).result(60) == 30_002
        assert app.start(announced, f"{show}-2", "x").result(60) == 2
    (fault,) = app.faults()
    assert len(fault.step_snapshot or "") < 1_000


# Removing, suspending -----------------------------------------------------------------------------------------------


def test_removing_one_of_several_gathered_activities_leaves_the_others(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, gathered, "fault", "true", do.remove("activity"))
    refuse(show, "middle")
    with app.dispatcher():
        assert app.start(gathered, show).result(60) == [10, "aft.REMOVED", 10]
    assert sorted(ledger[show]) == ["left 1", "middle 1!", "right 1"]


def test_runs_that_are_to_begin_later_do_so_after_all_of_their_flow_were_continued(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "fault", "true", do.suspend("flow"), do.resume("flow"), do.unwind())
    later = app.submit(revue.options(after="3d"), f"{show}-later")
    begins = later.row.due_at
    trouble[show, "number 1"] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(revue, show)
        undone(run)
        eventually(lambda: plan_of(app, run).state is PlanState.DONE)
    assert (later.status, later.row.due_at) == (Status.RUNNING, begins)
    assert ledger[f"{show}-later"] == []


def test_what_a_person_has_asked_meanwhile_is_heard_before_a_run_is_removed(
    setup: Setup, show: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.remove("activity"))
    refuse(show)
    asked: list[bool] = []
    is_branch = rulings._is_branch

    def cancel_first(*args: Any) -> bool:
        if not asked:
            asked.append(True)
            run.cancel(note="undo it all", by="somebody")
        return is_branch(*args)

    monkeypatch.setattr(rulings, "_is_branch", cancel_first)
    run = app.submit(theatre.evening, show)
    with app.dispatcher():
        undone(run)
    assert ledger[show] == ["hall 1", "tickets 1!", "unhall 1 for 10"]


# What cannot be asked -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_sources")
def test_a_source_may_have_a_default_that_json_does_not_know(setup: Setup, show: str) -> None:
    @aft.source(default=Decimal("7.5"), name="revue_price")
    def price() -> Any:
        raise RuntimeError("nobody knows")

    app = setup.app()
    teach(app, theatre.evening, "fault", "source.revue_price > 5.0", do.complete(computed="int(source.revue_price)"))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 7, 10]


def test_a_fault_that_cannot_be_judged_goes_its_own_way_and_holds_up_no_other(setup: Setup, show: str) -> None:
    app = setup.app()
    heard = listen(app)
    teach(app, theatre.evening, "fault", "activity.args.what == 'tickets'", do.complete(1))
    shows = [f"{show}-{nth}" for nth in range(3)]
    for one in shows:
        refuse(one)
    with app.dispatcher(only=WORKS):
        found = [app.submit(theatre.evening, one) for one in shows]
        for run in found:
            stops(run, Status.RECOVERING)
    with app.store.write() as connection:
        table = tables.faults
        connection.execute(update(table).where(table.c.run_id == found[1].id).values(step_snapshot="no JSON"))
    with app.dispatcher():
        undone(found[1])
        assert [found[nth].result(60) for nth in (0, 2)] == [[10, 1, 10]] * 2
    # More than once, perhaps: the sweeper may have it in hand, too.
    assert {event.run for event in heard if isinstance(event, RuleWarned)} == {found[1].id}


def test_attempts_are_watched_again_when_there_was_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rule_watch, asked = RuleWatch(), threading.Event()

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with rule_watch.over(AttemptWatch(lambda: asked.set(), lambda decision: None)):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            rule_watch.check()
        rule_watch.check()
        assert asked.wait(60)


def test_a_watch_that_cannot_be_asked_leaves_the_others_watched(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    teach(app, revue, "violated", "activity.elapsed > 0.1", do.complete(9))
    ask, raised = Constraints.find_objection, threading.Event()

    def ask_or_raise(self: Constraints, on: On, step: Any) -> Any:
        if on is On.VIOLATED and f"{show}-1" in (step.args or ""):
            raised.set()
            raise RuntimeError("no way to ask")
        return ask(self, on, step)

    monkeypatch.setattr(Constraints, "find_objection", ask_or_raise)
    for nth in (1, 2):
        gates[f"{show}-{nth}", "number 1"] = threading.Event()
    with app.dispatcher():
        one = app.submit(revue, f"{show}-1")
        eventually(raised.is_set)
        assert app.submit(revue, f"{show}-2").result(60) == 9
        gates[f"{show}-1", "number 1"].set()
        assert one.result(60) == 1
        gates[f"{show}-2", "number 1"].set()


def test_a_worker_whose_rules_take_long_to_answer_keeps_its_lease(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    teach(app, revue, "violated", "activity.elapsed > 100.0", do.complete(9))
    asked, answer, ask = threading.Event(), threading.Event(), Constraints.find_objection

    def ask_slowly(self: Constraints, on: On, step: Any) -> Any:
        if on is On.VIOLATED:
            asked.set()
            assert answer.wait(60)
        return ask(self, on, step)

    def lease() -> Any:
        with app.store.read() as connection:
            return connection.execute(
                select(tables.workers.c.expires_at).where(tables.workers.c.id == run.row.worker_id)
            ).scalar()

    monkeypatch.setattr(Constraints, "find_objection", ask_slowly)
    gate = gates[show, "number 1"] = threading.Event()
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(asked.is_set)
        before = lease()
        eventually(lambda: lease() != before)
        gate.set()
        assert run.result(60) == 1
        answer.set()
    assert run.row.epoch == 1


# Saving -------------------------------------------------------------------------------------------------------------


def test_who_starts_with_a_tree_that_cannot_be_read_goes_by_the_last_that_can(setup: Setup, show: str) -> None:
    teach(setup.app(), theatre.evening, "fault", "true", do.complete(4))
    fresh = setup.app()
    with fresh.store.write() as connection:
        rows.begin_edit(connection, fresh.namespace)
        rows.add_tree(connection, fresh.namespace, (theatre.evening.name, On.FAULT, "*"), "no JSON", "a hand", None, 1)
    refuse(show)
    with fresh.dispatcher():
        assert fresh.start(theatre.evening, show).result(60) == [10, 4, 10]


def test_an_exlet_is_refused_that_does_not_fit_the_rules_that_choose_it(setup: Setup) -> None:
    app = setup.app()
    teach(app, revue, "run_pre", "true", do.park("look"))
    with pytest.raises(aft.RuleRefused, match="rule 1 of revue × run_pre chooses it"):
        app.rules.add_exlet(aft.Exlet("run_pre_taught", [do.restart()]))
    with pytest.raises(aft.RuleRefused, match="rule 1 of revue × run_pre chooses it"):
        app.rules.save_all([], [aft.Exlet("run_pre_taught", [do.restart()])])
    assert app.rules.exlet("run_pre_taught").steps == (do.park("look"),)


def test_the_second_of_two_editors_of_an_exlet_is_told(setup: Setup) -> None:
    app = setup.app()
    assert app.rules.add_exlet(aft.Exlet("look", [do.park("look")]), by="Ann", base=0) == 1
    assert app.rules.add_exlet(aft.Exlet("look", [do.park("look twice")]), by="Bob", base=1) == 2
    with pytest.raises(aft.RuleRefused, match="changed since you looked at revision 1: revision 2 by Bob"):
        app.rules.add_exlet(aft.Exlet("look", [do.park("look away")]), by="Ann", base=1)
    with pytest.raises(aft.RuleRefused, match="changed since you looked at revision 1: revision 2 by Bob"):
        app.rules.save_all([], [aft.Exlet("look", [do.park("look away")])], by="Ann", bases={"look": 1})
    assert app.rules.exlet("look").steps == (do.park("look twice"),)


# What rules saw ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taught", [False, True])
def test_a_rule_is_tried_on_a_fault_as_its_run_was_then_not_as_it_is_now(setup: Setup, show: str, taught: bool) -> None:
    app = setup.app()
    if taught:
        teach(app, theatre.evening, "fault", "fault.name == 'Busy'", do.set(tags={"stage": "late"}), do.unwind())
    trouble[show, "hall"] = [Busy("wait") if taught else Refused("no")]
    with app.dispatcher():
        run = app.submit(theatre.evening.options(tags={"stage": "early"}), show)
        undone(run)
    if not taught:
        Stage(app.store, app.namespace).change(run.id, tags='{"stage": "late"}')
    assert run.row.tags == {"stage": "late"}
    (fault,) = app.faults()
    trial = app.rules.test(fault.id, "run.status == 'recovering' && run.tags.stage == 'early'")
    assert trial.holds, trial.facts
    proposal = app.rules.propose(fault.id, "run.tags.stage == 'early'", "park")
    assert app.rules.preview(proposal.tree).changes


def test_and_one_about_a_constraint_as_it_was_when_that_was_violated(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_pre", "activity.args.what == 'hall'", do.fail("closed"))
    with app.dispatcher():
        run = app.submit(theatre.evening.options(tags={"stage": "early"}), show)
        undone(run)
    Stage(app.store, app.namespace).change(run.id, tags="{}")
    (fault,) = app.faults()
    assert app.rules.test(fault.id, "run.status == 'running' && run.tags.stage == 'early'").holds
