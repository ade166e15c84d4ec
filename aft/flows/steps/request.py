"""A step that a flow's code requests, until its outcome is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aft.codec import ArgumentsCodec
from aft.flows.course.divergence import check_arguments
from aft.flows.session.blocks import Block
from aft.ids import FaultId, StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome

#: Called with an outcome when it is committed, before any other is.
OnRecorded = Callable[[Entry], None]


class Future(Protocol):
    """The future by which a task awaits a step; if the task ``was_cancelled``, it learns so when the step is over."""

    was_cancelled: bool

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def deliver_cancellation(self) -> None: ...


@dataclass(slots=True)
class Returns:
    """The value that an outcome gives to the flow's code."""

    value: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Raises:
    """The exception that an outcome raises in the flow's code."""

    error: BaseException


@dataclass(slots=True, eq=False)
class StepRequest:
    """One requested step: ``perform`` executes it if it has no outcome yet, ``read`` turns an outcome into a result.

    ``perform`` records the outcome or raises ``Blocked``. ``quick``: it does not wait, and needs no thread of its own.
    ``needed``: it has effects, so it is completed even if its task was cancelled.
    """

    path: StepPath
    kind: EntryKind
    name: str
    perform: Callable[[OnRecorded | None], Entry]
    read: Callable[[Entry], Returns | Raises]
    quick: bool = False
    needed: bool = True
    #: Whether its effect is undone with the run, once its outcome is recorded.
    undoable: bool = False
    #: Whether the database shows if it was begun: its frame is written before, or effect and outcome together.
    is_traced: bool = False
    #: Whether the database shows that an earlier owner has begun it.
    was_begun: Callable[[], bool] = lambda: False
    #: Its arguments with defaults, those of them that the code gives, and their codec; None: it takes none.
    args: str | None = field(default=None, repr=False)
    given: str | None = field(default=None, repr=False)
    arguments: ArgumentsCodec | None = None
    entry: Entry | None = None
    blocks: Sequence[Block] = ()
    running: bool = False
    #: The inbox's count of arrivals when the step last began to read it.
    arrivals_seen: int = 0
    #: Stops what it has started elsewhere (a child): called once it has failed because of an interrupt.
    stop: Callable[[], None] | None = None
    #: The fault of an interrupt that reaches it, recorded by a step beside it.
    interrupted: FaultId | None = None
    #: Whether it ends because its task was cancelled.
    task_cancelled: bool = False
    #: The task that requests it, by its branch; "": the flow itself. And whether that task closes a generator.
    task: str = ""
    in_generator_close: bool = False
    #: Whether the code requests it on its way out of a pass that continues as new.
    is_cleanup: bool = False
    #: The future of the task that awaits it, in an async flow.
    future: Future | None = None

    def check_same(self, entry: Entry) -> None:
        """Raise ReplayDiverged if this outcome was recorded for other arguments."""
        recorded = entry.args if entry.asked is None else entry.asked
        # Almost always the texts are equal; nothing more is compared then, in a journal of thousands of steps.
        if recorded is None or recorded == self.given or self.args is None or self.arguments is None:
            return
        check_arguments(f"step {self.path}", f"{self.kind.value} {self.name!r}", self.arguments, recorded, self.args)

    @property
    def takes_signal(self) -> bool:
        """Whether it waits for a signal; a signal is consumed by one step only."""
        return self.kind is EntryKind.SIGNAL

    @property
    def has_failed(self) -> bool:
        """Whether its recorded outcome is a failure."""
        return self.entry is not None and self.entry.outcome is Outcome.FAILED

    @property
    def is_dropped(self) -> bool:
        """Whether its task was cancelled, so that no code waits for its outcome."""
        return self.future is not None and (self.future.done() or self.future.was_cancelled)

    def deliver_cancellation(self) -> None:
        """Deliver the cancellation to its task, if that was cancelled."""
        if self.future is not None:
            self.future.deliver_cancellation()

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped: it has no effects, no outcome, and no task that waits for it."""
        return not self.needed and self.entry is None and self.is_dropped
