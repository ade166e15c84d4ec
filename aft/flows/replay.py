"""Reading a journal back: which outcomes are recorded, and does the code still ask for them?

The flow's code asks step by step. A recorded outcome is handed out once, if its kind and name are those of the step
that asks. Anything else means that code and journal have parted: ``ReplayDiverged`` tells which step. Branches ask side
by side: outcomes of the others may be left when one of them asks for what is new.
"""

from __future__ import annotations

from collections.abc import Container

from aft.errors import ReplayDiverged
from aft.ids import StepPath
from aft.runs.journal import Entry, EntryKind

#: What the code does not ask for by number.
_BESIDE = (EntryKind.PATCH, EntryKind.RULE)
#: Why code calls other steps than it did, and what to do.
WHAT_VARIES = (
    "does it go through a set of its own, or use the clock, chance or a setting? "
    "Bring back code that matches, then retry"
)


class Beside(Container[str]):
    """Steps whose outcomes may be handed out after that of a step which is called plainly, without ``await``.

    These are the ones that were ``asked`` for, and all of other tasks: they ask for theirs when this one lets them.
    ``branches`` are the numbers of all tasks, under which their steps have theirs.
    """

    def __init__(self, path: StepPath, asked: Container[str], branches: Container[str]) -> None:
        self._asked = asked
        self._branches = branches
        self._task = self._task_of(path)

    def __contains__(self, path: object) -> bool:
        return path in self._asked or self._task_of(str(path)) != self._task

    def _task_of(self, path: str) -> str:
        while path and path not in self._branches:
            path = path.rpartition(".")[0]
        return path


class Replay:
    """The journal of one run, being replayed. One thread at a time."""

    def __init__(self, entries: list[Entry]) -> None:
        self._left = {entry.path: entry for entry in entries if entry.kind not in _BESIDE}
        #: What came of the constraints of the run as a whole, by path.
        self.rules = {str(entry.path): entry for entry in entries if entry.kind is EntryKind.RULE}
        #: Changes that the run has; code that no longer asks for one has not diverged.
        self.patches = {entry.path for entry in entries if entry.kind is EntryKind.PATCH}

    def take(self, path: StepPath, kind: EntryKind, name: str, beside: Container[str] = ()) -> Entry | None:
        """Hand out the outcome of a step; None if it has none yet, which only the newest steps may have.

        ``beside`` are steps that were asked for, too, and whose outcomes may be handed out later.
        """
        entry = self.find(path, kind, name)
        if entry is None:
            self.check_spent(f"the code now calls {kind.value} {name!r} as step {path}", beside)
        return entry

    def find(self, path: StepPath, kind: EntryKind, name: str) -> Entry | None:
        """Hand out the outcome of a step; None if it has none, which says nothing about where the journal ends."""
        entry = self._left.pop(path, None)
        if entry is not None and (entry.kind, entry.name) != (kind, name):
            raise ReplayDiverged(
                f"step {path} is {entry.kind.value} {entry.name!r} in the journal, but the code now calls "
                f"{kind.value} {name!r} there; a flow must call the same steps whenever it is replayed: {WHAT_VARIES}"
            )
        return entry

    def pass_over(self, path: StepPath) -> None:
        """Leave out what was recorded of a step that nobody waits for any more, if anything was."""
        self._left.pop(path, None)

    def goes_on(self, beside: Container[str] = ()) -> bool:
        """Tell whether the journal has outcomes of other steps than these."""
        return any(path not in beside for path in self._left)

    def peek(self, path: StepPath, kind: EntryKind) -> Entry | None:
        """Hand out the outcome of a step that may have been recorded, or not, at this point of the code."""
        entry = self._left.get(path)
        return self._left.pop(path) if entry is not None and entry.kind is kind else None

    def has(self, path: StepPath) -> bool:
        """Tell whether the outcome of a step is recorded and was not handed out yet."""
        return path in self._left

    @property
    def is_spent(self) -> bool:
        """Whether every recorded outcome was handed out: what comes next is new."""
        return not self._left

    def next_of(self, asked: Container[str]) -> StepPath | None:
        """The step among these whose outcome was recorded first, of those that are left."""
        return next((path for path in self._left if path in asked), None)

    def check_spent(self, now: str, beside: Container[str] = ()) -> None:
        """Raise ReplayDiverged if the journal has outcomes that the code did not ask for."""
        entry = next((entry for entry in self._left.values() if entry.path not in beside), None)
        if entry is not None:
            raise ReplayDiverged(
                f"{now}, but the journal goes on with step {entry.path}, {entry.kind.value} {entry.name!r}; "
                f"a flow must call the same steps whenever it is replayed: {WHAT_VARIES}"
            )
