"""Replays a journal: returns recorded outcomes to the flow's code, and detects code that no longer matches them.

The flow's code requests step by step. A recorded outcome is returned once, if its kind and name are those of the
requested step. Anything else means that code and journal have diverged: ``ReplayDiverged`` names the step. Branches
request side by side: outcomes of the others may be left when one of them requests a new step.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from aft.errors import ReplayDiverged
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind

#: Entries that the code does not request by step number.
_BESIDE = (EntryKind.PATCH, EntryKind.RULE)
#: Why code calls other steps than it did, and what to do.
WHAT_VARIES = (
    "does it go through a set of its own, or use the clock, chance or a setting? "
    "Bring back code that matches, then retry"
)


class ConcurrentSteps(Container[str]):
    """Steps whose outcomes may be returned after that of a step which is called without ``await``.

    These are the ones that were ``requested``, and all steps of other tasks, which run only when this one yields.
    ``branches`` are the paths of all tasks; their steps are numbered under them.
    """

    def __init__(self, path: StepPath, requested: Container[str], branches: Container[str]) -> None:
        self._requested = requested
        self._branches = branches
        self._task = self._task_of(path)

    def __contains__(self, path: object) -> bool:
        return path in self._requested or self._task_of(str(path)) != self._task

    def _task_of(self, path: str) -> str:
        while path and path not in self._branches:
            path = path.rpartition(".")[0]
        return path


class JournalReplay:
    """The journal of one run while it is replayed. Not thread-safe: one thread at a time."""

    def __init__(self, entries: list[Entry]) -> None:
        self._left = {entry.path: entry for entry in entries if entry.kind not in _BESIDE}
        #: Decisions about the constraints of the whole run, by path.
        self.rules = {str(entry.path): entry for entry in entries if entry.kind is EntryKind.RULE}
        #: Patches that the run has; code that no longer asks for one has not diverged.
        self.patches = {entry.path for entry in entries if entry.kind is EntryKind.PATCH}

    def take(self, path: StepPath, kind: EntryKind, name: str, beside: Container[str] = ()) -> Entry | None:
        """Return the outcome of a step; None if it has none yet, which only the newest steps may have.

        ``beside`` are steps that were requested, too, and whose outcomes may be returned later. Raises ReplayDiverged.
        """
        entry = self.find(path, kind, name)
        if entry is None:
            self.check_spent(f"the code now calls {kind.value} {name!r} as step {path}", beside)
        return entry

    def find(self, path: StepPath, kind: EntryKind, name: str) -> Entry | None:
        """Return the outcome of a step; None does not imply that the journal has ended. Raises ReplayDiverged."""
        entry = self._left.pop(path, None)
        if entry is not None and (entry.kind, entry.name) != (kind, name):
            raise ReplayDiverged(
                f"step {path} is {entry.kind.value} {entry.name!r} in the journal, but the code now calls "
                f"{kind.value} {name!r} there; a flow must call the same steps whenever it is replayed: {WHAT_VARIES}"
            )
        return entry

    def pass_over(self, path: StepPath) -> None:
        """Drop the outcome, if any, of a step that no task waits for any more."""
        self._left.pop(path, None)

    def has_other_outcomes(self, beside: Container[str] = ()) -> bool:
        """Whether the journal has outcomes of other steps than these."""
        return any(path not in beside for path in self._left)

    def peek(self, path: StepPath, kind: EntryKind) -> Entry | None:
        """Return the outcome of a step that may or may not have been recorded at this point of the code."""
        entry = self._left.get(path)
        return self._left.pop(path) if entry is not None and entry.kind is kind else None

    def has(self, path: StepPath) -> bool:
        """Whether the outcome of a step is recorded and was not returned yet."""
        return path in self._left

    @property
    def is_spent(self) -> bool:
        """Whether every recorded outcome was returned: the next step is new."""
        return not self._left

    def next_of(self, requested: Container[str]) -> StepPath | None:
        """Return the step among these whose outcome was recorded first, of those that are left."""
        return next((path for path in self._left if path in requested), None)

    def check_spent(self, now: str, beside: Container[str] = ()) -> None:
        """Raise ReplayDiverged if the journal has outcomes that the code did not request."""
        entry = next((entry for entry in self._left.values() if entry.path not in beside), None)
        if entry is not None:
            raise ReplayDiverged(
                f"{now}, but the journal goes on with step {entry.path}, {entry.kind.value} {entry.name!r}; "
                f"a flow must call the same steps whenever it is replayed: {WHAT_VARIES}"
            )


class BegunSteps:
    """Steps that earlier owners have begun and left without an outcome: the code must still request them.

    The journal holds outcomes only. Other rows show that a step is in its ladder, that its undo is owed already, or
    that its child is under way. Code that requests another step in its place would take over its fault, its key and its
    frame, or begin the same child twice.

    ``activities`` are the names of those steps' activities, by path; ``children`` the steps that have begun a child.
    """

    def __init__(self, activities: Mapping[str, str] | None = None, children: Iterable[str] = ()) -> None:
        self._known = {path: f"activity {name!r}" for path, name in (activities or {}).items()}
        self._known |= dict.fromkeys(children, "a child")

    def check(self, path: StepPath, kind: EntryKind, name: str) -> None:
        """Raise ReplayDiverged if another step was begun at this path; which child it was, ``Children`` compares."""
        if (begun := self._known.get(path)) is None:
            return
        requested = "a child" if kind is EntryKind.CHILD else f"{kind.value} {name!r}"
        if begun != requested:
            raise _diverged(begun, path, f"calls {requested} there")

    def check_requested(self, now: str, was_requested: Callable[[StepPath], bool]) -> None:
        """Raise ReplayDiverged if the code does ``now``, which was not recorded, without having requested all of them.

        The owner that began them had seen no more outcomes than are recorded: matching code has requested them by then.
        """
        for path, begun in self._known.items():
            if not was_requested(StepPath(path)):
                raise _diverged(begun, path, f"does not come to it: {now}")

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._known)

    def clear(self) -> None:
        """Mark all of them as requested by the code."""
        self._known.clear()

    def remove(self, path: StepPath) -> None:
        """Drop a step that a person lets start again: any step may take its place."""
        self._known.pop(path, None)


def _diverged(begun: str, path: str, now: str) -> ReplayDiverged:
    return ReplayDiverged(
        f"step {path} was begun as {begun}, and has not come to its end, but the code now {now}; a flow must call the "
        f"same steps whenever it is replayed: {WHAT_VARIES}"
    )
