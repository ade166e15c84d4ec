"""No order of events loses a run: a short game on each database. ``make chaos PART=machine`` plays the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from aft.compensation import stack
from aft.flows.session.step_states import StepStates
from aft.runs.ownership import claims
from aft.runs.ownership.owner_writes import OwnerBatch
from aft.store.batch.statements import PreparedQuery
from chaos.machine import Model, Outcome, steps_of
from chaos.part_machine import FAULTS, Rules, check_end, explore, injected, rules_on
from tests.chaos.bugs import without_stale_check

SEED = 20_030


def test_no_order_of_events_loses_a_run_on_sqlite(tmp_path: Path) -> None:
    happened = explore(f"sqlite:///{tmp_path / 'aft.db'}", examples=30, steps=30, number=SEED)
    assert min(happened["step ok"], happened["sweep"], happened["message again"], happened["worker killed"]) > 0


def test_no_order_of_events_loses_a_run_on_postgresql(migrated_url: str) -> None:
    happened = explore(migrated_url, examples=10, steps=30, number=SEED)
    assert min(happened["step ok"], happened["sweep"], happened["message again"], happened["worker killed"]) > 0


def test_only_what_is_done_on_purpose_is_a_fault(tmp_path: Path) -> None:
    rules = _rules(tmp_path)
    before = rules.happened.copy()
    rules.submit("pp")
    _wake(rules, 0)
    rules.kill(1)
    rules.expire(2)
    rules.expire(0)
    rules.kill(0)
    rules.sweep()
    rules.jump(1, 1.0)
    done, events = injected(rules.happened - before)
    assert done == dict.fromkeys(FAULTS, 0) | dict.fromkeys(("worker killed", "lease over", "clock jumped"), 1)
    assert {"idle worker killed", "lease of an idle worker over", "sweep", "run"} < set(events)
    rules.teardown()


# --- the model itself ---


@pytest.mark.parametrize(
    ("plan", "paths"),
    [("pp", ["1", "2"]), ("p(sp)b", ["1", "2.1", "2.2", "3"]), ("(p)p", ["1.1", "2"])],
)
def test_steps_are_numbered_as_aft_does(plan: str, paths: list[str]) -> None:
    assert [step.path for step in steps_of(plan)] == paths


def test_a_savepoint_is_undone_from_the_top_and_the_flow_goes_on_after_it() -> None:
    model = Model("p(ps)p", recorded={"1": "ok", "2.1": "ok"}, owed=["1", "2.1", "2.2"], final={"2.2"})
    asked = []
    while isinstance(ask := model.next(), tuple):
        asked.append(ask)
        model.done(ask)
    assert asked == [("undo", "2.2"), ("undo", "2.1"), ("do", "3")]
    assert ask == "completed"


# --- chosen games ---


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    """A game that is played by hand."""
    return _rules(tmp_path)


def _rules(tmp_path: Path) -> Rules:
    return rules_on(f"sqlite:///{tmp_path / 'aft.db'}")()


def _wake(rules: Rules, who: int) -> Model:
    """Let messages arrive until somebody executes the run."""
    (model,) = rules.world.models.values()
    rules.always()
    while model.owner is None:
        rules.deliver(len(rules.world.flight) - 1, who, again=False)
        rules.always()
    return model


def _unwinding(rules: Rules) -> None:
    """A run that has done two steps and failed at the third, and is to be undone."""
    rules.submit("ppp")
    _wake(rules, 0)
    fails: tuple[Outcome, ...] = ("ok", "ok", "fatal")
    for outcome in fails:
        rules.answer(0, outcome)
    _wake(rules, 0)


def test_an_owner_that_slept_through_its_lease_writes_nothing_and_its_effect_is_undone(rules: Rules) -> None:
    rules.submit("pp")
    _wake(rules, 0)
    sleeper = rules.world.executions[-1]
    rules.expire(0)
    rules.sweep()
    model = _wake(rules, 1)
    rules.answer(1, "fatal")
    rules.always()
    assert not sleeper.gone
    rules.answer(0, "ok")
    assert sleeper.gone
    rules.teardown()
    assert model.ended == "compensated"
    assert model.effects == ["+1", "-1"]


def test_frames_come_off_from_the_top(rules: Rules) -> None:
    _unwinding(rules)
    rules.teardown()
    (model,) = rules.world.models.values()
    assert model.effects == ["+1", "+2", "-2", "-1"]


def test_a_run_that_kills_every_worker_is_parked_and_a_person_lets_it_try_again(rules: Rules) -> None:
    rules.submit("p")
    rules.always()
    (model,) = rules.world.models.values()
    for _ in range(10):
        if model.parked:
            break
        rules.pass_time(3601.0)
        rules.beat(0)
        rules.take_due(0)
        rules.always()
        rules.kill(0)
        rules.pass_time(3601.0)
        rules.sweep()
        rules.always()
    assert model.parked
    rules.order(0, "retry")
    rules.teardown()
    assert model.ended == "completed"


def test_a_run_that_a_rescue_woke_before_its_next_try_is_due_waits_on(rules: Rules) -> None:
    rules.submit("p")
    _wake(rules, 0)
    rules.answer(0, "busy")
    model = _wake(rules, 0)  # by its own message: whatever the clock says
    rules.fall(0)
    rules.beat(0)
    rules.always()
    rules.deliver(len(rules.world.flight) - 1, 1, again=False)
    rules.always()
    abort = model.wake
    assert abort is not None
    rules.deliver(len(rules.world.flight) - 1, 1, again=False)
    rules.always()
    assert model.owner is None
    assert model.wake not in (None, abort)
    rules.teardown()
    assert (model.ended, model.effects) == ("completed", ["+1"])


@pytest.mark.parametrize("effects", [["+1", "+2", "-2"], ["+1", "+2", "-2", "-1", "+1"], ["+1", "-1", "+2"]])
def test_an_effect_that_stands_in_a_run_that_was_undone_is_seen_in_the_end(rules: Rules, effects: list[str]) -> None:
    _unwinding(rules)
    rules.world.settle()
    ((run_id, model),) = rules.world.models.items()
    check_end(rules.world, run_id, model)
    model.effects = effects
    with pytest.raises(AssertionError, match="was not undone"):
        check_end(rules.world, run_id, model)
    rules.world.close()


def test_an_effect_that_was_undone_in_a_run_that_is_completed_is_seen_in_the_end(rules: Rules) -> None:
    rules.submit("pp")
    _wake(rules, 0)
    rules.world.settle()
    ((run_id, model),) = rules.world.models.items()
    check_end(rules.world, run_id, model)
    model.effects.append("-1")
    with pytest.raises(AssertionError, match="does not stand"):
        check_end(rules.world, run_id, model)
    rules.world.close()


# --- controls: the game must be lost where a promise is broken on purpose ---


def test_control_without_the_check_for_stale_messages_the_game_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "claim", without_stale_check(claims.claim))
    monkeypatch.setattr(StepStates, "_is_due", lambda *given: True)  # else the try is seen not to be due
    rules = _rules(tmp_path)
    rules.submit("pp")
    rules.always()
    rules.deliver(0, 0, again=True)
    rules.answer(0, "busy")
    rules.always()
    rules.decide({0})
    with pytest.raises(AssertionError, match="a stale message woke"):
        rules.deliver(0, 1, again=True)
    rules.world.close()


def test_control_without_the_fence_the_game_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = _rules(tmp_path)
    rules.submit("pp")
    _wake(rules, 0)
    rules.expire(0)
    rules.sweep()
    rules.always()
    monkeypatch.setattr(OwnerBatch, "fence", f"({OwnerBatch.fence} OR true)")
    with pytest.raises(AssertionError, match=r"a stale owner wrote|goes on"):
        rules.answer(0, "ok")
    rules.world.close()


def test_control_with_a_stack_that_is_a_queue_the_game_is_lost(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    from_below = PreparedQuery(*(words.replace("DESC", "ASC") for words in (stack.OWED.postgresql, stack.OWED.sqlite)))
    monkeypatch.setattr(stack, "OWED", from_below)
    with pytest.raises(AssertionError, match=r"asks \('undo', '1'\), not \('undo', '2'\)"):
        _unwinding(rules)
    rules.world.close()
