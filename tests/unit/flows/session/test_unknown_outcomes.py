"""Claims about what is in doubt: owners come, go and die, and no step that one of them had begun is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aft.flows.session.unknown_outcomes import UnknownOutcomes, UnknownSteps, count_losses
from aft.ids import StepPath

STEPS = [StepPath(f"1.{number}") for number in range(1, 6)]
_some_step = st.sampled_from(STEPS)


class Owners(RuleBasedStateMachine):
    """One owner after the other executes steps side by side, and what they write is all that the next one knows."""

    def __init__(self) -> None:
        super().__init__()
        self.aborts: dict[str, str] = {}
        self.seen: set[StepPath] = set()
        #: Steps that somebody has begun, and of which nobody knows what came.
        self.unseen: set[StepPath] = set()
        #: Steps that this owner has begun.
        self.at_work: set[StepPath] = set()
        self.written = 0
        self.doubts = UnknownOutcomes()

    def _write(self, named: UnknownSteps) -> None:
        self.written += 1
        self.aborts[f"abort {self.written}"] = named.encode()

    def _take(self) -> None:
        """Let another owner have the run, and come to the journal's end."""
        self.at_work = set()
        self.doubts = UnknownOutcomes()
        found: list[Any] = [SimpleNamespace(id=id, args=args) for id, args in self.aborts.items()]
        self.doubts.read(found, self.seen)
        self.doubts.note_journal_end(step for step in STEPS if step not in self.seen)

    @rule(step=_some_step)
    def begin(self, step: StepPath) -> None:
        if step not in self.seen:
            self.at_work.add(step)

    @rule(step=_some_step)
    def see(self, step: StepPath) -> None:
        if step in self.at_work:
            for abort in self.doubts.faults_closed_by(step):
                self.aborts.pop(abort, None)
            self.doubts.note_outcome(step)
            self.at_work.discard(step)
            self.unseen.discard(step)
            self.seen.add(step)

    @rule(step=_some_step)
    def lose_sight(self, step: StepPath) -> None:
        if step in self.at_work:
            self.doubts.add(step)
            self.at_work.discard(step)
            self.unseen.add(step)

    @rule()
    def die(self) -> None:
        self.unseen |= self.at_work
        self._write(UnknownSteps())
        self._take()

    @precondition(lambda self: not self.at_work)
    @rule()
    def leave(self) -> None:
        before = {step for step in STEPS if step in self.doubts}
        left = self.doubts.make_handover()
        for abort in left.closed:
            del self.aborts[abort]
        for named in left.named:
            self._write(named)
        self._take()
        assert {step for step in STEPS if step in self.doubts} == before, "the next owner knows as much, and no more"

    @precondition(lambda self: not self.at_work)
    @rule()
    def read_again(self) -> None:
        before, self.doubts = self.doubts, UnknownOutcomes()
        self.doubts.take_over(before)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.unseen <= {step for step in STEPS if step in self.doubts}

    @invariant()
    def what_has_its_outcome_is_not_in_doubt(self) -> None:
        assert not [step for step in self.seen if step in self.doubts]

    @invariant()
    def a_doubt_is_in_the_database(self) -> None:
        if not self.aborts:
            assert not [step for step in STEPS if step in self.doubts and step not in self.unseen]


TestOwners = Owners.TestCase


def test_what_a_dead_owner_may_have_begun_is_not_known_before_the_journal_ends() -> None:
    doubts = UnknownOutcomes()
    doubts.note_all_unknown()
    assert (doubts.any, STEPS[0] in doubts, doubts.faults_closed_by(STEPS[0])) == (True, False, ())
    doubts.note_journal_end([STEPS[0]])
    doubts.note_journal_end([STEPS[1]])  # begun by this owner
    assert [step in doubts for step in STEPS[:2]] == [True, False]


@given(st.lists(_some_step, unique=True), st.lists(_some_step, unique=True))
def test_people_are_told_which_steps_are_in_doubt(steps: list[StepPath], tried: list[StepPath]) -> None:
    named = UnknownSteps(tuple(steps), tuple(tried))
    assert all(step in str(named) for step in sorted({*steps, *tried})[:5])
    assert UnknownSteps.decode(named.encode()) == named


def test_a_step_that_a_person_lets_begin_anew_is_not_in_doubt_for_the_next_owner_either() -> None:
    doubts, next_one = UnknownOutcomes(), UnknownOutcomes()
    doubts.allow_restart(STEPS[0])
    (named,) = doubts.make_handover().named
    abort: Any = SimpleNamespace(id="abort", args=named.encode())
    next_one.read([abort])
    assert (next_one.was_tried(STEPS[0]), STEPS[0] in next_one, next_one.any) == (True, False, False)


def test_a_run_is_lost_again_only_by_losses_after_the_first() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    given_back = UnknownSteps((STEPS[0],)).encode()

    def losses(*aborts: tuple[int, str]) -> int:
        found: list[Any] = [SimpleNamespace(raised_at=began + timedelta(hours=at), args=args) for at, args in aborts]
        return count_losses(found, since=began + timedelta(hours=1))

    assert losses() == losses((2, "[]")) == losses((0, "[]")) == 0
    assert losses((0, "[]"), (2, "[]")) == losses((3, "[]"), (2, "[]")) == 1
    assert losses((2, given_back), (3, "[]")) == losses((0, "[]"), (2, given_back), (3, "[]"), (4, given_back)) == 1
