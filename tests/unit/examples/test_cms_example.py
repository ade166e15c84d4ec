"""Claims about the example's CMS: activities are plain functions here, and each undo takes back exactly its deed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aft
from aft.flows.declare.activity import Activity
from aft.flows.declare.context import AttemptContext, Current, in_attempt
from aft.runs.states import Status
from aft.scenarios.example import Example
from aft.scenarios.scenario import read_scenarios
from aft.scenarios.signals import When, value_of
from examples.cms_ad_approval import cms, database, flow, replay, trouble
from examples.cms_ad_approval.cms import Decision, State
from examples.cms_ad_approval.flow import ADMINISTRATOR, REVIEWER, Verdict, ad_slot_approval
from examples.cms_ad_approval.trouble import CmsBusy, Kind, PolicyViolation

SLOT = "slot-7"
Deed = Activity[[str], Decision]

#: Each activity, its compensator, and what must have happened before.
DEEDS: list[tuple[Deed, Callable[[Decision], None], list[Deed]]] = [
    (flow.sysadmin_approve, flow.undo_sysadmin_approve, []),
    (flow.sysadmin_reject, flow.undo_sysadmin_reject, []),
    (flow.approve_slot, flow.undo_approve_slot, [flow.sysadmin_approve]),
    (flow.reject_slot, flow.undo_reject_slot, [flow.sysadmin_approve]),
]

#: What people say, one wait after the other; None: nothing in time.
Answers = dict[str, list[Verdict | None]]


@pytest.fixture(autouse=True)
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CMS of the test's own, with one submitted slot."""
    monkeypatch.setenv("AFT_DATABASE_URL", f"sqlite:///{tmp_path / 'cms.db'}")
    database.prepare()
    cms.submit_slot(SLOT, advertiser="Tea & Sons")
    yield
    database.database().close()


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """People who answer at once, or never: outside a run nobody can be waited for."""
    answers: Answers = {}

    def wait_for(name: str, type: object = None, *, timeout: str, default: object = aft.WaitTimeout) -> object:
        answer = answers[name].pop(0)
        if answer is None and default is aft.WaitTimeout:
            raise aft.WaitTimeout(name)
        return default if answer is None else answer

    monkeypatch.setattr(aft, "wait_for", wait_for)
    return answers


def in_activity(name: str) -> AttemptContext:
    return AttemptContext(Current(run_id=None, key="a key", attempt=1, epoch=1, activity=name))


@pytest.mark.parametrize(("activity", "undo", "before"), DEEDS, ids=[deed.name for deed, _, _ in DEEDS])
def test_a_compensator_leaves_the_tables_row_for_row_as_before(
    activity: Deed, undo: Callable[[Decision], None], before: list[Deed]
) -> None:
    for earlier in before:
        earlier(SLOT)
    untouched = cms.contents(SLOT)
    decision = activity(SLOT)
    assert cms.contents(SLOT) != untouched
    undo(decision)
    assert cms.contents(SLOT) == untouched
    undo(decision)  # a crash may have it run again
    assert cms.contents(SLOT) == untouched


@pytest.mark.parametrize(("activity", "undo", "before"), DEEDS, ids=[deed.name for deed, _, _ in DEEDS])
def test_each_activity_declares_its_own_compensator(
    activity: Deed, undo: Callable[[Decision], None], before: list[Deed]
) -> None:
    assert activity.compensator is not None
    assert activity.compensator.fn is undo


def test_a_decision_is_audited_and_the_advertiser_is_told() -> None:
    decision = flow.sysadmin_approve(SLOT)
    found = cms.contents(SLOT)
    assert found.slot["state"] == State.CLEARED
    assert [audit["key"] for audit in found.audits] == [decision.audit]
    assert [(notice["key"], notice["addressee"]) for notice in found.notices] == [(decision.audit, "Tea & Sons")]


def test_deciding_again_under_the_same_key_changes_nothing() -> None:
    flow.sysadmin_approve(SLOT)
    once = cms.decide(SLOT, REVIEWER, State.CLEARED, State.APPROVED, "the key")
    decided = cms.contents(SLOT)
    assert cms.decide(SLOT, REVIEWER, State.CLEARED, State.APPROVED, "the key") == once
    assert cms.contents(SLOT) == decided


def test_a_decision_out_of_turn_is_refused_and_changes_nothing() -> None:
    untouched = cms.contents(SLOT)
    with pytest.raises(PolicyViolation, match="'slot-7' is submitted; only cleared ones can be approved"):
        flow.approve_slot(SLOT)
    assert cms.contents(SLOT) == untouched


def test_a_slot_that_was_never_submitted_is_refused() -> None:
    with pytest.raises(LookupError, match="no slot 'slot-8'"):
        flow.sysadmin_approve("slot-8")


def test_a_withdrawn_reminder_leaves_the_tables_row_for_row_as_before() -> None:
    untouched = cms.contents(SLOT)
    reminder = flow.remind(SLOT, REVIEWER)
    assert [row["addressee"] for row in cms.contents(SLOT).reminders] == [REVIEWER]
    assert cms.remind(SLOT, REVIEWER, reminder.key) == reminder  # a crash may have it run again
    assert len(cms.contents(SLOT).reminders) == 1
    other = flow.remind(SLOT, ADMINISTRATOR)
    for _ in range(2):
        flow.undo_remind(reminder)
        assert [row["key"] for row in cms.contents(SLOT).reminders] == [other.key]
    flow.undo_remind(other)
    assert cms.contents(SLOT) == untouched


@pytest.mark.parametrize(
    ("sysadmin", "reviewer", "end"),
    [
        (Verdict.APPROVE, [Verdict.APPROVE], "approved"),
        (Verdict.APPROVE, [Verdict.REJECT], "rejected"),
        (Verdict.REJECT, [], "rejected"),
    ],
)
def test_verdicts_decide_and_the_reviewer_is_asked_only_about_what_was_let_in(
    people: Answers, sysadmin: Verdict, reviewer: list[Verdict | None], end: str
) -> None:
    people |= {"sysadmin_verdict": [sysadmin], "reviewer_verdict": reviewer}
    assert ad_slot_approval(SLOT) == end
    assert replay.read_state(SLOT)[0] == end
    assert cms.contents(SLOT).reminders == []


def test_who_keeps_silent_is_reminded_once_and_waited_for_again(people: Answers) -> None:
    people |= {"sysadmin_verdict": [Verdict.APPROVE], "reviewer_verdict": [None, Verdict.REJECT]}
    assert ad_slot_approval(SLOT) == "rejected"
    assert [row["addressee"] for row in cms.contents(SLOT).reminders] == [REVIEWER]


def test_who_keeps_silent_after_the_reminder_has_the_flow_fail(people: Answers) -> None:
    people["sysadmin_verdict"] = [None, None]
    with pytest.raises(aft.WaitTimeout):
        ad_slot_approval(SLOT)
    assert cms.contents(SLOT).slot["state"] == State.SUBMITTED


def test_a_slot_that_is_as_submitted_has_no_reminder_left() -> None:
    flow.remind(SLOT, REVIEWER)
    assert replay.read_state(SLOT)[0] == "submitted, but audits say [] and there are 0 notices and 1 reminders"


def test_tables_that_disagree_are_not_called_approved(people: Answers) -> None:
    people |= {"sysadmin_verdict": [Verdict.APPROVE], "reviewer_verdict": [Verdict.APPROVE]}
    ad_slot_approval(SLOT)
    with database.database().write() as connection:
        connection.execute(cms.notices.delete())
    assert replay.read_state(SLOT)[0].startswith("approved, but audits say")


def test_ordered_trouble_strikes_its_activity_as_often_as_ordered() -> None:
    trouble.order(SLOT, "approve_slot", Kind.BUSY, times=2)
    trouble.order(SLOT, "approve_slot", Kind.POLICY)
    with in_attempt(in_activity("sysadmin_approve")):
        trouble.meet(SLOT)
    with in_attempt(in_activity("approve_slot")):
        for expected in (CmsBusy, CmsBusy, PolicyViolation):
            with pytest.raises(expected):
                trouble.meet(SLOT)
        trouble.meet(SLOT)


def test_trouble_strikes_nobody_outside_a_run() -> None:
    trouble.order(SLOT, "sysadmin_approve", Kind.POLICY)
    assert flow.sysadmin_approve(SLOT).state is State.CLEARED


def test_trouble_strikes_before_anything_is_changed() -> None:
    untouched = cms.contents(SLOT)
    trouble.order(SLOT, "sysadmin_approve", Kind.BUSY)
    with in_attempt(in_activity("sysadmin_approve")), pytest.raises(CmsBusy):
        flow.sysadmin_approve(SLOT)
    assert cms.contents(SLOT) == untouched


def test_scenarios_cover_every_path_of_the_exception_flow() -> None:
    example: Example = replay  # the type checker holds the module against what `aft replay` asks
    scenarios = {scenario.name: scenario for scenario in read_scenarios(Path(str(replay.__file__)).parent)}
    assert example.flow is ad_slot_approval
    assert {(scenario.expected.run, scenario.expected.tables) for scenario in scenarios.values()} == {
        (Status.COMPLETED, "approved"),
        (Status.COMPLETED, "rejected"),
        (Status.COMPENSATED, "as before"),
    }
    told = {fault for scenario in scenarios.values() for fault in scenario.expected.faults}
    for end in ("level 1", "level 2", "final", "worker lost"):
        assert any(fault.endswith(end) for fault in told), end
    assert any(fault.startswith("undo_") for fault in told)
    assert any(scenario.kill for scenario in scenarios.values())


def test_scenarios_cover_every_way_in_which_a_verdict_comes_or_does_not() -> None:
    scenarios = read_scenarios(Path(str(replay.__file__)).parent)
    cues = [cue for scenario in scenarios for cue in scenario.signals]
    assert any(cue.when is When.AT_ONCE and cue.name == "reviewer_verdict" for cue in cues)
    assert any(cue.after == "remind" for cue in cues)
    assert any(cue.kill for cue in cues)
    assert any(scenario.expected.dropped for scenario in scenarios)
    told = {fault for scenario in scenarios for fault in scenario.expected.faults}
    assert {f"ad_slot_approval: {error}, final" for error in ("WaitTimeout", "DeadlineExceeded")} <= told


def test_scenarios_name_only_what_the_flow_has() -> None:
    known = {deed.name for deed, _, _ in DEEDS} | {undo.__name__ for _, undo, _ in DEEDS} | {"remind", "undo_remind"}
    for scenario in read_scenarios(Path(str(replay.__file__)).parent):
        named = {row["at"] for row in scenario.scene.get("trouble", [])}
        named |= {cue.after for cue in scenario.signals if cue.after is not None}
        assert all(isinstance(value_of(cue, ad_slot_approval), Verdict) for cue in scenario.signals)
        assert named | set(scenario.expected.done) | set(scenario.expected.undone) <= known, scenario.name
        assert scenario.kill == any(row["kind"] == "hang" for row in scenario.scene.get("trouble", []))
