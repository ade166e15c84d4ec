"""A step that a flow's code asks for, until its outcome is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aft.flows.leaving import Block
from aft.ids import StepPath
from aft.runs.journal import Entry, EntryKind

#: Told of an outcome when it is committed, before any other is.
Landed = Callable[[Entry], None]


@dataclass(slots=True)
class Returns:
    """What the flow's code gets for an outcome."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raises:
    """What is raised in the flow's code for an outcome."""

    error: BaseException


@dataclass(slots=True, eq=False)
class Ask:
    """One step: how it is performed if there is no outcome yet, and what the flow's code makes of one.

    ``perform`` records the outcome, or raises ``Leave``. ``quick``: it only looks, and needs no thread of its own.
    ``needed``: it has effects, so it comes to its end even if nobody waits for it any more.
    """

    path: StepPath
    kind: EntryKind
    name: str
    perform: Callable[[Landed | None], Entry]
    read: Callable[[Entry], Returns | Raises]
    quick: bool = False
    needed: bool = True
    #: Whether an earlier owner has begun it, as far as the database tells.
    was_begun: Callable[[], bool] = lambda: False
    entry: Entry | None = None
    blocks: Sequence[Block] = ()
    flying: bool = False
    #: Who awaits it, in an async flow.
    future: asyncio.Future[Any] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it has neither effects, nor an outcome, nor anybody who waits for it: its task was cancelled."""
        return not self.needed and self.entry is None and self.future is not None and self.future.done()
