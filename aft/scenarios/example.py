"""The interface of an example that can be played: a package with ``replay.py`` and ``scenarios/*.toml``."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from aft.errors import AftError
from aft.flows.declare.flow import Flow


class ExampleError(AftError):
    """Raised when what was named cannot be played; its text says why, and what can."""


def hint(name: str, known: Collection[str]) -> str:
    """Return a hint for an unknown name: the nearest known one, or all."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known))}"


class Example(Protocol):
    """An example's ``replay`` module. A *subject* is the thing that one scenario is about, named by ``aft replay``."""

    @property
    def flow(self) -> Flow[..., Any]:
        """The flow that is played."""
        ...

    def prepare(self) -> None:
        """Make the example's own tables exist. Idempotent."""
        ...

    def set_up(self, subject: str, scene: Mapping[str, Any]) -> dict[str, Any]:
        """Set up the scene that a data file describes; return the flow's arguments. Raises KeyError, ValueError."""
        ...

    def read_state(self, subject: str) -> tuple[str, object]:
        """Return the subject's state in one word, and all that the tables hold about it, to be compared."""
        ...

    def find_hanging_process(self, subject: str) -> int | None:
        """Return the id of the process that hangs at the subject and is to be killed; None if none does yet."""
        ...
