"""Claims about steps that an earlier owner may have begun."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aft.fault import FaultKind, FaultState
from aft.flows.session.step_states import StepStates
from aft.ids import StepPath

FIRST, SECOND, THIRD = (StepPath(f"1.{number}") for number in (1, 2, 3))


def fault(id: str, path: StepPath | None, kind: FaultKind = FaultKind.ACTIVITY) -> Any:
    """As much of a fault as matters here."""
    return SimpleNamespace(id=id, path=path, kind=kind, state=FaultState.OPEN, args="[]", rule_type=None)


def test_each_of_several_side_by_side_stays_in_doubt_until_it_has_its_own_outcome() -> None:
    """Also if the first has it before the second is begun."""
    nobody = cast(Any, None)
    standing = StepStates(nobody, nobody, None)
    standing.unknown.note_all_unknown()
    standing.note_journal_end([FIRST, SECOND])
    standing.branches.begin()
    standing.note_recorded(FIRST)
    assert [standing.is_unseen(path) for path in (FIRST, SECOND, THIRD)] == [False, True, False]
    assert standing.may_have_had_effect(SECOND)
    assert standing.unknown.any
    standing.failed(SECOND, fault("failed", SECOND), None)
    assert not standing.is_unseen(SECOND)
    assert not standing.unknown.any


def test_what_would_block_a_step_changes_nothing_until_that_is_recorded() -> None:
    nobody = cast(Any, None)
    standing = StepStates(nobody, nobody, None)
    standing.load([fault("abort", None, FaultKind.ABORT), fault("first", FIRST)], set(), {})
    standing.note_journal_end([FIRST])
    for _ in range(2):  # the transaction that was to record it was lost
        block = standing.block(FIRST, fault("second", FIRST), None)
        assert block.replaces == ("abort", "first")
        assert standing.fault(FIRST) == fault("first", FIRST)
    standing.note_failed(block)
    assert (standing.fault(FIRST), standing.replaced(FIRST)) == (fault("second", FIRST), ("second",))
