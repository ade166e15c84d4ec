"""Decides which code changes (``aft.patched``) a run has: those in force when it first reached the place."""

from __future__ import annotations

from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.steps import marks
from aft.flows.steps.run_session import RunSession


class Patches:
    """The patches that one pass over a flow's code asks about. For the flow's own thread."""

    def __init__(self, session: RunSession, scheduler: StepScheduler) -> None:
        self._session = session
        self._scheduler = scheduler
        self._known: dict[str, bool] = {}

    def has(self, change: str, last_seq: int) -> bool:
        """Whether the run has a patch; one that passed this place without it never gets it.

        ``last_seq`` is the ``seq`` of the last outcome that the code has got.
        """
        if change not in self._known:
            self._known[change] = self._find(change, last_seq)
        return self._known[change]

    def _find(self, change: str, last_seq: int) -> bool:
        replay = self._scheduler.replay
        if marks.patch_path(change) in replay.patches:
            return True
        if not self._session.owner.is_first_to_return(last_seq):
            is_new_here = replay.is_spent and not self._scheduler.pending and not was_begun(self._session)
            if not is_new_here:
                return False
        marks.record_patch(self._session, change)
        return True


def was_begun(session: RunSession) -> bool:
    """Whether an earlier owner has begun a step, or may have."""
    step_states = session.step_states
    return step_states.unknown.any or step_states.any_live or bool(step_states.armed) or bool(session.owner.run.waits)
