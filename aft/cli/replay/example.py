"""What does an example offer, so that it can be played? A package with ``replay.py`` and ``scenarios/*.toml``."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import click

from aft.flows.flow import Flow


class ExampleError(click.ClickException):
    """Raised when what was named cannot be played; says why and what can."""

    exit_code = 2


def hint(name: str, known: Collection[str]) -> str:
    """Say what may have been meant by a name that nothing has."""
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
        """Put up the scene that a data file describes; return the flow's arguments. Raises KeyError, ValueError."""
        ...

    def look(self, subject: str) -> tuple[str, object]:
        """Say in a word how the subject stands, and give everything the tables hold about it, to be compared."""
        ...

    def hanging(self, subject: str) -> int | None:
        """Name the process that hangs at the subject and is to be killed; None if none does yet."""
        ...
