"""The event loop that the code of an async flow runs on, in the thread that executes the run."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, NoReturn, cast
from weakref import WeakValueDictionary

from aft.errors import DefinitionError
from aft.flows.declare.no_result import REMOVED
from aft.flows.runtime.generators import is_collecting
from aft.flows.session.blocks import BranchRemoved


class MainTask(asyncio.Task[Any]):
    """The flow itself, as a task of its loop; reports when it is cancelled."""

    #: Where its steps are numbered.
    branch = ""

    def cancel(self, msg: Any | None = None) -> bool:
        cast(FlowLoop, self.get_loop()).cancels(self.branch)
        return super().cancel(msg)


class FlowTask(MainTask):
    """A branch of an async flow: the steps in it are numbered under ``branch``.

    It reports to the loop when its outcome is read. Its hash is its number, so that sets of tasks are iterated in the
    same order each time, as when a task group cancels its tasks.
    """

    def __init__(self, coroutine: Any, number: int, branch: str, **kwargs: Any) -> None:
        self._number = number  # asyncio puts it into a set of its own in the next line
        super().__init__(coroutine, **kwargs)
        self.branch = branch
        #: Whether it closes a generator that the code has left: it comes to its end in any case.
        self.in_generator_close = False
        #: Whether it does so because the flow has come to its end.
        self.is_last = False

    def __await__(self) -> Any:
        self._note_look()
        return super().__await__()

    def result(self) -> Any:
        self._note_look()
        return super().result()

    def exception(self) -> BaseException | None:
        self._note_look()
        return super().exception()

    def _note_look(self) -> None:
        cast(FlowLoop, self.get_loop()).looks(self.branch)

    def __hash__(self) -> int:
        return self._number


class StepFuture(asyncio.Future[Any]):
    """The outcome of a step, for a task that awaits it.

    With ``holds``, a cancelled task gets its cancellation only when its step has ended: cleanup after a step must not
    overtake it.
    """

    def __init__(self, *, loop: asyncio.AbstractEventLoop, holds: bool) -> None:
        super().__init__(loop=loop)
        self.holds = holds
        self.was_cancelled = False
        self._why: Any = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.holds or self.done():
            return super().cancel(msg)
        self.was_cancelled, self._why = True, msg
        return True

    def deliver_cancellation(self) -> None:
        """Deliver a delayed cancellation to the task now."""
        self.holds = False
        if self.was_cancelled:
            self.cancel(self._why)


class Branch(Coroutine[Any, Any, Any]):
    """The coroutine of a task, which ends where an exlet has removed one of its steps.

    Not an ``async def`` around it: a task that is cancelled before it began would leave the inner one never awaited.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except BranchRemoved:
            raise StopIteration(REMOVED) from None

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except BranchRemoved:
            raise StopIteration(REMOVED) from None
        finally:
            del error  # else the exception would hold this frame, the frame the exception, and both whatever it met

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()


class FlowLoop(asyncio.AbstractEventLoop):
    """The loop that an async flow runs on: tasks and futures, without I/O.

    It has neither a clock nor sockets: its tasks await steps of the run, whose outcomes are delivered in the order in
    which they were recorded. So they do the same each time. Any other awaitable is refused.
    """

    def __init__(self, branch: Callable[[contextvars.Context | None], tuple[str, contextvars.Context]]) -> None:
        self._branch = branch
        self._ready: deque[asyncio.Handle] = deque()
        self.tasks: list[FlowTask] = []
        self.main: MainTask | None = None
        #: Generators that the code has begun, the oldest first; None: they are not closed in tasks any more.
        self._generators: WeakValueDictionary[int, AsyncGenerator[Any, Any]] | None = None
        self._numbers = count()
        #: Those that the garbage collector has found, and the number of each.
        self._collected: list[AsyncGenerator[Any, Any]] = []
        self._begun_as: dict[int, int] = {}
        self._thread = threading.get_ident()
        #: Called first when a task ends with an exception; the branch of the flow itself is "".
        self.failed: Callable[[str, BaseException], None] = lambda branch, error: None
        #: Called before a task is cancelled, in the code that cancels it.
        self.cancels: Callable[[str], None] = lambda branch: None
        #: Called when the code, or asyncio for it, awaits or reads a task's outcome.
        self.looks: Callable[[str], None] = lambda branch: None

    def run_ready(self) -> None:
        """Run ready callbacks until every task awaits something."""
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def call_soon(  # type: ignore[override]  # what it is called with is asyncio's affair
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_step_future(self, holds: bool) -> StepFuture:
        """Make the future of a step's outcome."""
        return StepFuture(loop=self, holds=holds)

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """Begin a branch: its steps are numbered under its own path."""
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")  # as asyncio says it
        branch, context = self._branch(kwargs.get("context"))
        task = FlowTask(Branch(coro), len(self.tasks), branch, loop=self, context=context, name=kwargs.get("name"))
        self.tasks.append(task)
        task.add_done_callback(partial(self._note_end, branch))
        return task

    def run_main(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the flow itself."""
        task = self.main = MainTask(coroutine, loop=self)
        task.add_done_callback(partial(self._note_end, ""))
        return task

    # Generators ---------------------------------------------------------------------------------------------------

    @contextmanager
    def closing_generators(self) -> Iterator[None]:
        """Close each generator that the code leaves in a task of its own, as asyncio does."""
        before, self._generators = sys.get_asyncgen_hooks(), WeakValueDictionary()
        sys.set_asyncgen_hooks(self._note_generator, self._close_left)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*before)
            self._generators = None

    def close_generators(self) -> bool:
        """Close generators that the code has left open at its end; return whether there were any."""
        left = [*(self._generators or {}).values(), *self._collected]
        left.sort(key=lambda generator: self._begun_as[id(generator)])
        if self._generators is not None:
            self._generators.clear()
        self._collected.clear()
        for generator in left:
            self._close_in_task(generator).is_last = True
        return bool(left)

    def _note_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self._generators is not None:
            self._begun_as[id(generator)] = number = next(self._numbers)
            self._generators[number] = generator

    def _close_left(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an unreferenced generator; Python calls this on the thread that dropped the last reference."""
        if self._generators is not None and is_collecting():
            # Collection happens at any time, so a replay would number the task differently. All are closed at the end.
            self._collected.append(generator)
        elif is_collecting():
            with suppress(DefinitionError):  # the run has left, and comes back: its steps are refused here
                _close_now(generator)
        elif threading.get_ident() == self._thread and self._generators is None:
            _close_now(generator)
        elif threading.get_ident() == self._thread:
            self._close_in_task(generator)

    def _close_in_task(self, generator: AsyncGenerator[Any, Any]) -> FlowTask:
        task = cast(FlowTask, self.create_task(generator.aclose()))
        task.in_generator_close = True
        return task

    def _note_end(self, branch: str, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := asyncio.Task.exception(task)) is not None:
            self.failed(branch, error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore a task's exception that was never retrieved: the flow did not use it."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise foreign_awaitable("something of asyncio")

    call_later = call_at = time = _refuse  # type: ignore[assignment]
    call_soon_threadsafe = run_in_executor = getaddrinfo = create_connection = _refuse  # type: ignore[assignment]


def _close_now(generator: AsyncGenerator[Any, Any]) -> None:
    """Close a generator when no task can any more: it runs up to its first await."""
    try:
        generator.aclose().send(None)
    except StopIteration:
        return


def foreign_awaitable(what: str) -> DefinitionError:
    """Return the error for awaiting anything but a step in a flow."""
    return DefinitionError(
        f"an async flow awaited {what}; it may await activities only, and aft.sleep, aft.wait_for and child flows, "
        "because a replay must see the same outcomes in the same order: do this inside an activity"
    )


class running_on:  # read as a verb; a class, because it is entered very often
    """Make ``loop``, or none, the running loop of this thread."""

    __slots__ = ("_before", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._before)
