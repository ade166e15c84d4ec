"""Claims about replaying: each recorded outcome is handed out once, to the step it belongs to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from aft.errors import ReplayDiverged
from aft.flows.session.journal_replay import JournalReplay
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome

ACTIVITY, SAVEPOINT = EntryKind.ACTIVITY, EntryKind.SAVEPOINT


def an_entry(path: str, name: str = "charge", kind: EntryKind = ACTIVITY) -> Entry:
    outcome = Outcome.OK if kind is ACTIVITY else Outcome.UNDONE
    return Entry(StepPath(path), path.rpartition(".")[0], kind, name, outcome, datetime(2024, 5, 17, tzinfo=UTC))


def test_a_recorded_outcome_is_handed_to_its_step() -> None:
    one, two = an_entry("1"), an_entry("2", "ship")
    replay = JournalReplay([one, two])
    assert replay.take(StepPath("1"), ACTIVITY, "charge") == one
    assert replay.take(StepPath("2"), ACTIVITY, "ship") == two


def test_the_step_after_the_last_recorded_one_is_new() -> None:
    replay = JournalReplay([an_entry("1")])
    replay.take(StepPath("1"), ACTIVITY, "charge")
    assert replay.take(StepPath("2"), ACTIVITY, "ship") is None


def test_with_an_empty_journal_everything_is_new() -> None:
    assert JournalReplay([]).take(StepPath("1"), ACTIVITY, "charge") is None


def test_the_order_of_completion_is_not_the_order_of_asking() -> None:
    replay = JournalReplay([an_entry("2", "ship"), an_entry("1")])
    assert replay.take(StepPath("1"), ACTIVITY, "charge") is not None
    assert replay.take(StepPath("2"), ACTIVITY, "ship") is not None


def test_another_name_at_a_recorded_step_is_told_with_both() -> None:
    said = "step 1 is activity 'charge' in the journal, but the code now calls activity 'ship' there; a flow must call"
    with pytest.raises(ReplayDiverged, match=said):
        JournalReplay([an_entry("1")]).take(StepPath("1"), ACTIVITY, "ship")


def test_another_kind_at_a_recorded_step_is_told() -> None:
    with pytest.raises(ReplayDiverged, match="step 1 is savepoint 'both' in the journal, but the code now calls act"):
        JournalReplay([an_entry("1", "both", SAVEPOINT)]).take(StepPath("1"), ACTIVITY, "both")


def test_a_new_step_before_a_recorded_one_is_told() -> None:
    said = "the code now calls activity 'pack' as step 1.1, but the journal goes on with step 2, activity 'ship'"
    with pytest.raises(ReplayDiverged, match=said):
        JournalReplay([an_entry("2", "ship")]).take(StepPath("1.1"), ACTIVITY, "pack")


def test_an_outcome_that_nobody_asked_for_is_told() -> None:
    with pytest.raises(ReplayDiverged, match="the flow returned, but the journal goes on with step 1, activity 'char"):
        JournalReplay([an_entry("1")]).check_spent("the flow returned")


def test_a_journal_that_was_used_up_is_spent() -> None:
    replay = JournalReplay([an_entry("1")])
    replay.take(StepPath("1"), ACTIVITY, "charge")
    replay.check_spent("the flow returned")


def test_peeking_hands_out_what_may_have_been_recorded_once() -> None:
    undone = an_entry("1", "both", SAVEPOINT)
    replay = JournalReplay([undone])
    assert replay.peek(StepPath("1"), SAVEPOINT) == undone
    assert replay.peek(StepPath("1"), SAVEPOINT) is None
    replay.check_spent("the flow returned")


def test_peeking_leaves_an_entry_of_another_kind_where_it_is() -> None:
    replay = JournalReplay([an_entry("1")])
    assert replay.peek(StepPath("1"), SAVEPOINT) is None
    assert replay.take(StepPath("1"), ACTIVITY, "charge") is not None
