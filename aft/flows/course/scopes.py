"""Numbers steps: one counter for the flow, and one for each savepoint and branch."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from aft.errors import DefinitionError
from aft.ids import StepPath

#: Characters that a step's path may have: it is stored, and so are the paths and keys that are made from it.
MOST_PATH = 300


@dataclass(slots=True)
class Scope:
    """A savepoint, a branch, or the flow itself: numbers the steps directly under it."""

    path: str
    count: int = 0
    #: The scope around it, which counts once it was left.
    outer: Scope | None = None
    was_left: bool = False

    def next(self) -> StepPath:
        """Number the next step; raises DefinitionError if it is too deep to be stored, before anything is executed."""
        self.count += 1
        path = f"{self.path}.{self.count}" if self.path else str(self.count)
        if len(path) > MOST_PATH:
            raise DefinitionError(
                f"a step is nested in {path.count('.')} savepoints, parallel steps and tasks, more than can be stored; "
                "make a child flow of the inner ones"
            )
        return StepPath(path)


#: The scope that numbers the steps of the running code: each task of an async flow has its own.
in_scope: ContextVar[Scope] = ContextVar("aft_scope")


def find_scope() -> Scope:
    """Return the innermost scope that the code is in.

    A generator may be closed in another task than the one that it entered a savepoint in: there, it is still set.
    """
    scope = in_scope.get()
    while scope.was_left and scope.outer is not None:
        scope = scope.outer
    return scope


def strayed(name: str, path: StepPath) -> DefinitionError:
    """Return the error for a savepoint that a failure leaves in another task than the one that entered it.

    What the other task did since is numbered under it, and would be undone with it.
    """
    return DefinitionError(
        f"savepoint {name or path!r} is in an async generator that was left, and a step failed while it was closed, in "
        "a task of its own; close it where it is used: `async with contextlib.aclosing(…)`"
    )
