"""Which changes of its code a run has: those that were there when it first came to the place (``aft.patched``)."""

from __future__ import annotations

from aft.flows import marks
from aft.flows.settling import Settler
from aft.flows.steps import Stepper


class Patches:
    """The changes that one pass over a flow's code asks about. For the flow's own thread."""

    def __init__(self, stepper: Stepper, settler: Settler) -> None:
        self._stepper = stepper
        self._settler = settler
        self._known: dict[str, bool] = {}

    def has(self, change: str, heard: int) -> bool:
        """Tell whether the run has a change: one that has gone past this place without it never will.

        ``heard`` is the number of the last outcome that the code was told.
        """
        if change not in self._known:
            self._known[change] = self._find(change, heard)
        return self._known[change]

    def _find(self, change: str, heard: int) -> bool:
        replay = self._settler.replay
        if marks.patch_path(change) in replay.patches:
            return True
        if not self._stepper.owner.is_first_to_hear(heard):
            is_new_here = replay.is_spent and not self._settler.pending and not was_begun(self._stepper)
            if not is_new_here:
                return False
        marks.record_patch(self._stepper, change)
        return True


def was_begun(stepper: Stepper) -> bool:
    """Tell whether an earlier owner has begun something, or may have."""
    standing = stepper.standing
    return standing.doubts.any or standing.any_live or bool(standing.armed) or bool(stepper.owner.run.waits)
