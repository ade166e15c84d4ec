"""A step that a flow's code asks for, until its outcome is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aft.codec import ArgumentsCodec
from aft.flows.divergence import check_arguments
from aft.flows.leaving import Block
from aft.ids import FaultId, StepPath
from aft.runs.journal import Entry, EntryKind, Outcome

#: Told of an outcome when it is committed, before any other is.
Landed = Callable[[Entry], None]


class Future(Protocol):
    """What a task awaits a step by; ``was_cancelled``: the task was, and hears of it when the step is over."""

    was_cancelled: bool

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def release(self) -> None: ...


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
    #: Whether its effect is undone with the run, once its outcome is recorded.
    undoable: bool = False
    #: Whether nobody can have begun it, unless the database tells of it: its frame is there before, or all is after.
    is_traced: bool = False
    #: Whether an earlier owner has begun it, as far as the database tells.
    was_begun: Callable[[], bool] = lambda: False
    #: The arguments that it is asked for with, those of them that the code gives, and how they are read; None: none.
    args: str | None = None
    given: str | None = None
    arguments: ArgumentsCodec | None = None
    entry: Entry | None = None
    blocks: Sequence[Block] = ()
    flying: bool = False
    #: How often something had been found in the inbox when it began to look there.
    looked_at: int = 0
    #: Tells what it has begun elsewhere to stop: called once it has failed because it was interrupted.
    stop: Callable[[], None] | None = None
    #: The fault of an interrupt that reaches it, which a step beside it was told.
    interrupted: FaultId | None = None
    #: Whether it ends because its task was cancelled.
    abandoned: bool = False
    #: The task that asks for it, by its branch; "": the flow itself. And whether that task closes a generator.
    task: str = ""
    closes: bool = False
    #: Whether the code asks for it while it is about to begin anew.
    tidies: bool = False
    #: Who awaits it, in an async flow.
    future: Future | None = None

    def check_same(self, entry: Entry) -> None:
        """Raise ReplayDiverged if this outcome was recorded for other arguments."""
        recorded = entry.args if entry.asked is None else entry.asked
        # Almost always it is the same text: nothing else is worth a thought then, in a journal of thousands of steps.
        if recorded is None or recorded == self.given or self.args is None or self.arguments is None:
            return
        check_arguments(f"step {self.path}", f"{self.kind.value} {self.name!r}", self.arguments, recorded, self.args)

    @property
    def takes_signal(self) -> bool:
        """Whether it waits for a signal, which is nobody else's once it has taken it."""
        return self.kind is EntryKind.SIGNAL

    @property
    def has_failed(self) -> bool:
        """Whether its outcome is a failure, for good."""
        return self.entry is not None and self.entry.outcome is Outcome.FAILED

    @property
    def is_dropped(self) -> bool:
        """Whether nobody waits for it any more: its task was cancelled."""
        return self.future is not None and (self.future.done() or self.future.was_cancelled)

    def release(self) -> None:
        """Let its task, if that was cancelled, hear of it."""
        if self.future is not None:
            self.future.release()

    @property
    def is_idle(self) -> bool:
        """Whether it has neither effects, nor an outcome, nor anybody who waits for it."""
        return not self.needed and self.entry is None and self.is_dropped
