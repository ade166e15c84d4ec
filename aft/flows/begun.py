"""Steps that earlier owners of a run have begun, and left without an outcome: the code must still ask for them.

The journal holds outcomes only. That a step is in its ladder, that its undo is owed already, or that its child is under
way, is told by other rows. Code that asks for another step in its place would take over its fault, its key and its
frame, or begin the same child twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aft.errors import ReplayDiverged
from aft.flows.replay import WHAT_VARIES
from aft.ids import StepPath
from aft.runs.journal import EntryKind


class Begun:
    """What was begun when a run was taken: steps whose frames are armed, or that have failed, and children.

    ``activities`` are the names of those steps' activities, by path; ``children`` the steps that have begun one.
    """

    def __init__(self, activities: Mapping[str, str] | None = None, children: Iterable[str] = ()) -> None:
        self._known = {path: f"activity {name!r}" for path, name in (activities or {}).items()}
        self._known |= dict.fromkeys(children, "a child")

    def check(self, path: StepPath, kind: EntryKind, name: str) -> None:
        """Raise ReplayDiverged if another step was begun under this path; who looks for a child compares that."""
        if (begun := self._known.get(path)) is None:
            return
        asked = "a child" if kind is EntryKind.CHILD else f"{kind.value} {name!r}"
        if begun != asked:
            raise _diverged(begun, path, f"calls {asked} there")

    def check_asked(self, now: str, was_asked: Callable[[StepPath], bool]) -> None:
        """Raise ReplayDiverged if the code has not asked for one of them, and ``now`` does what was not recorded.

        Whoever began it had heard of no more outcomes than are recorded: code that fits has asked for it by then.
        """
        for path, begun in self._known.items():
            if not was_asked(StepPath(path)):
                raise _diverged(begun, path, f"does not come to it: {now}")

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._known)

    def clear(self) -> None:
        """Say that the code has asked for all of them."""
        self._known.clear()

    def forget(self, path: StepPath) -> None:
        """Say that a person lets a step begin anew, whichever that is."""
        self._known.pop(path, None)


def _diverged(begun: str, path: str, now: str) -> ReplayDiverged:
    return ReplayDiverged(
        f"step {path} was begun as {begun}, and has not come to its end, but the code now {now}; a flow must call the "
        f"same steps whenever it is replayed: {WHAT_VARIES}"
    )
