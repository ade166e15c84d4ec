"""Finds the steps that earlier owners may have begun where the journal ends, and those that the code must request.

Steps are begun in order, up to the limit at a time (``flows.scheduler.batch``). So those that a dead owner may have
begun unseen are the first without any record, up to the limit. That an activity's failure is final is decided while the
run has no owner, and journaled when no other step is at work: once it is decided, every step that had been begun was
seen, or is named as in doubt. A failure by an interrupt is journaled while others are at work, and names them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence

from aft.flows.scheduler.batch import MOST_BRANCHES
from aft.flows.session.journal_replay import ConcurrentSteps, JournalReplay
from aft.flows.session.step_states import StepStates
from aft.flows.session.unknown_outcomes import UNDO
from aft.flows.steps.request import StepRequest
from aft.flows.steps.run_session import RunSession
from aft.ids import StepPath
from aft.rules.cases import step_snapshot
from aft.runs.records.journal import EntryKind


class JournalEnd:
    """The end of the journal of one pass; ``pending`` are an async flow's steps. For the flow's own thread."""

    def __init__(self, session: RunSession, replay: JournalReplay) -> None:
        self._session = session
        self._replay = replay

    def note_reached(
        self, steps: Sequence[StepRequest], pending: Mapping[StepPath, StepRequest], most: int | None = 1
    ) -> None:
        """Note that the journal has nothing more for these steps of one call, nor for the pending ones."""
        step_states = self._session.step_states
        if step_states.begun and not is_over(steps):
            self._check_begun((*steps, *pending.values()))
        if not step_states.unknown.before_journal_end or (found := find_unknown(steps, most, step_states)) is None:
            return
        self.note_unknown(pending)
        step_states.note_journal_end(found)

    def note_unknown(self, pending: Mapping[StepPath, StepRequest]) -> None:
        """Put pending steps in doubt that have no outcome: an owner that died may have begun them."""
        step_states = self._session.step_states
        if step_states.unknown.before_journal_end:
            without = [step for step in pending.values() if not self._replay.has(step.path)]
            for path in find_unknown(without, None, step_states) or ():
                step_states.note_unknown(path)

    def check_spent(self, now: str, path: StepPath, requested: Container[str]) -> None:
        """Raise ReplayDiverged if the journal has outcomes that this task's code did not request."""
        self._replay.check_spent(now, ConcurrentSteps(path, requested, self._session.branches))

    def _check_begun(self, steps: Iterable[StepRequest]) -> None:
        """Raise ReplayDiverged if the code does not request every begun step, before it begins any itself."""
        begun = self._session.step_states.begun
        new = [step for step in steps if step.entry is None]
        for step in new:
            begun.check(step.path, step.kind, step.name)
        calls = f"it calls {new[0].kind.value} {new[0].name!r} as step {new[0].path}" if new else "it goes on"
        begun.check_requested(calls, self._session.course.was_requested)
        begun.clear()  # what is begun from now on is begun by this code


def find_unknown(steps: Sequence[StepRequest], most: int | None, step_states: StepStates) -> list[StepPath] | None:
    """Return the steps of one call that a dead owner may have begun, where the journal ends.

    Also the compensators of steps that it may have been undoing, because a rule makes them start again.

    None: the call is over. One of its steps has failed, and the others were never begun: the code has gone on.
    """
    new = [step for step in steps if step.entry is None and step.kind is EntryKind.ACTIVITY]
    known = [step for step in new if step.was_begun() and step_states.may_be_at_work(step.path)]
    unknown = [step for step in new if not step.was_begun()][: _most_at_work(steps, most, step_states)]
    # What leaves a trace before it begins, or none at all, has not begun where there is no trace.
    known = [step for step in known if not step.is_traced or step.path in step_states.armed]
    unknown = [step for step in unknown if not step.is_traced]
    if any(_is_final_failure(step, step_states) for step in steps):
        unknown = []
    begun = next((entry.value for step in steps if (entry := step.entry) and entry.interrupt is not None), None)
    if begun is not None:
        unknown = [step for step in unknown if step.path in json.loads(begun)]
    found = [step.path for step in (*known, *unknown)]
    found += [StepPath(f"{step.path}{UNDO}") for step in new if step_states.may_be_undone(step.path)]
    return None if not found and is_over(steps) else found


def is_over(steps: Sequence[StepRequest]) -> bool:
    """Whether a call has failed, and its steps without an outcome were never begun: the code may have gone on."""
    return any(step.has_failed for step in steps) and not any(step.was_begun() for step in steps if step.entry is None)


def _most_at_work(steps: Iterable[StepRequest], most: int | None, step_states: StepStates) -> int:
    """Return how many steps were begun at a time; if earlier code allowed more, its faults say how many."""
    faults = [fault for step in steps if (fault := step_states.fault(step.path)) is not None]
    return min(
        max([most or MOST_BRANCHES, *(step_snapshot.read_snapshot(fault).abreast for fault in faults)]), MOST_BRANCHES
    )


def _is_final_failure(step: StepRequest, step_states: StepStates) -> bool:
    """Whether an activity has failed for good, after all others at work had ended; it may not be journaled yet.

    An interrupted step fails at once, and so does one of an async flow's task: False for these.
    """
    if step.kind is not EntryKind.ACTIVITY or step.future is not None:
        return False
    if step.entry is None:
        return step_states.has_failed_for_good(step.path)
    return step.has_failed and step.entry.interrupt is None
