"""The one event loop of a process: ``async def`` activities run on its thread; nothing else of aft is async."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from aft.errors import DefinitionError
from aft.flows.absent import REMOVED


class LoopThread:
    """An event loop on a daemon thread, started when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
        """Run a coroutine to its end and return its result; raises TimeoutError after ``timeout`` seconds.

        The caller's context variables go with it.
        """
        bounded = coroutine if timeout is None else asyncio.wait_for(coroutine, timeout)
        value, ending = asyncio.run_coroutine_threadsafe(_contain(bounded), self._started()).result()
        if ending is not None:
            raise ending
        return value

    def close(self) -> None:
        """End the loop and its thread; what still runs is cancelled. Harmless twice."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="aft-loop", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _contain(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Keep ``sys.exit()`` and Ctrl-C inside: let out of a task they would end the loop, with all that runs on it."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


class FlowTask(asyncio.Task[Any]):
    """A branch of an async flow: the steps in it are numbered under ``branch``.

    Sets of tasks are gone through in the same order each time, as when a task group cancels what it has begun.
    """

    def __init__(self, coroutine: Any, number: int, branch: str, **kwargs: Any) -> None:
        self._number = number  # asyncio puts it into a set of its own in the next line
        super().__init__(coroutine, **kwargs)
        self.branch = branch

    def __hash__(self) -> int:
        return self._number


class BranchRemoved(BaseException):
    """Raised in a task at the step that an exlet has taken away: the task ends there, with ``aft.REMOVED``."""


class Branch(Coroutine[Any, Any, Any]):
    """The coroutine of a task, which ends where a step of it was taken away.

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

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()


class FlowLoop(asyncio.AbstractEventLoop):
    """The loop that an async flow runs on: tasks and futures, and no way to the world outside.

    It has neither a clock nor sockets: what its tasks await are steps of the run, whose outcomes are handed to them in
    the order in which they were recorded. So they take the same way each time. Whatever else is awaited is refused.
    """

    def __init__(self, branch: Callable[[], tuple[str, contextvars.Context]]) -> None:
        self._branch = branch
        self._ready: deque[asyncio.Handle] = deque()
        self.tasks: list[FlowTask] = []

    def run_ready(self) -> None:
        """Run what can run, until everything awaits something."""
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

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """Begin a branch: the steps in it are numbered under a number of its own."""
        branch, context = self._branch()
        task = FlowTask(Branch(coro), len(self.tasks), branch, loop=self, context=context, name=kwargs.get("name"))
        self.tasks.append(task)
        return task

    def run_main(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin with the flow itself."""
        return asyncio.Task(coroutine, loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task failed and nobody looked: the flow did not care."""

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


def foreign_awaitable(what: str) -> DefinitionError:
    """The error for awaiting anything but an activity in a flow."""
    return DefinitionError(
        f"an async flow awaited {what}; it may await activities only, and aft.sleep, aft.wait_for and child flows, "
        "because a replay must see the same outcomes in the same order: do this inside an activity"
    )


class running_on:  # read as a verb; a class, because it is entered very often
    """Let this thread's code believe that it runs on ``loop``, or on none."""

    __slots__ = ("_before", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._before)
