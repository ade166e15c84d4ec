"""The event loop of a process, on whose thread ``async def`` activities run; only flows have another loop.

Any number of threads that start coroutines, and the loop's own, run at the same time. A child process has its own
loop: after a fork the parent's thread is not there.

A coroutine that never awaits blocks its loop, and with it all others there. The loop is replaced then: new coroutines
run on another one, and so do those that were queued and have not begun. Whether a coroutine has begun is decided under
the lock, in its first step on the loop that it belongs to by then, so it begins once. One that has begun can neither be
moved nor ended: its outcome is reported as unknown when the coroutine that blocks it is given up.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aft import after_fork
from aft.flows.runtime.forks import ForkGuard
from aft.telemetry import logger

#: Seconds that coroutines get to end after they were cancelled, when their loop is closed.
CLOSING = 5.0
#: Called with (True, result) or (False, exception); a second call has the outcome of one reported as unknown.
Ended = Callable[[bool, Any], None]


class LoopEnded(Exception):
    """Raised for a coroutine whose process stops, or whose loop is blocked: its outcome is unknown."""


@dataclass(slots=True, eq=False)
class RunningCoroutine:
    """A coroutine that was given to a loop."""

    coroutine: Coroutine[Any, Any, Any]
    ended: Ended
    #: Where it runs, or shall begin; None: it was withdrawn.
    loop: asyncio.AbstractEventLoop | None
    #: When its first step was made, by the monotonic clock, and its task; None: it has not begun.
    began_at: float | None = None
    task: asyncio.Task[Any] | None = None
    #: Whether the loop has got to cancelling it; one that is blocked does not.
    cancelled: bool = False
    #: Whether its caller has given it up.
    given_up: bool = False

    def cancel(self) -> None:
        """Cancel it, if it has begun. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


#: The coroutine that this code was begun for, by itself or by what it has begun.
_owner: contextvars.ContextVar[RunningCoroutine | None] = contextvars.ContextVar("aft_loop_owner", default=None)


class OwnedTask(asyncio.Task[Any]):
    """A task that knows which coroutine began it, if any."""

    def __init__(self, coroutine: Any, *, context: contextvars.Context | None = None, **kwargs: Any) -> None:
        self.owner = _owner.get() if context is None else context.get(_owner)
        super().__init__(coroutine, context=context, **kwargs)


class LoopThread:
    """An event loop on a daemon thread, started when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._forget()
        after_fork.register(self)

    def _forget(self) -> None:
        """Reset to no loop; a forked child does not have its parent's."""
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Every loop that was begun and not closed, with its thread; all but the last one were replaced.
        self._threads: dict[asyncio.AbstractEventLoop, threading.Thread] = {}
        #: Those that were replaced and are still blocked.
        self._blocked: set[asyncio.AbstractEventLoop] = set()
        self._stopping: set[asyncio.AbstractEventLoop] = set()
        #: Running coroutines: asyncio itself does not keep a task alive.
        self._running: set[RunningCoroutine] = set()
        self._lock = threading.Lock()

    def forget_in_child(self) -> None:
        """Drop the parent's stopped loops after a fork, but keep them referenced: collecting one would warn."""
        after_fork.inherited.extend([self._threads, self._running])
        for loop in self._threads:
            _silence(loop)
        self._forget()

    def begin(self, coroutine: Coroutine[Any, Any, Any], ended: Ended) -> RunningCoroutine:
        """Run a coroutine and call ``ended`` with its outcome; it inherits the caller's context variables."""
        with self._lock:
            running = RunningCoroutine(coroutine, ended, self._started())
        self._queue(running)
        return running

    def move(self, running: RunningCoroutine) -> None:
        """Move a coroutine that has not begun to another loop, because its own is blocked; for its caller."""
        with self._lock:
            if running.began_at is not None:
                return
            self._leave(running.loop)
            running.loop = self._started()
        self._queue(running)

    def withdraw(self, running: RunningCoroutine) -> bool:
        """Prevent a coroutine from beginning; False: it has begun."""
        with self._lock:
            if running.began_at is not None:
                return False
            running.loop = None
            self._running.discard(running)
        running.coroutine.close()
        return True

    def replace_blocked(self, running: RunningCoroutine) -> None:
        """Replace the loop of a coroutine that was given up, if the loop has not even processed its cancellation.

        The coroutine that the loop's current task belongs to blocks it. If that one was given up, or is over, all
        others that have begun there are stuck for ever: each is reported as unknown, and cancelled should the loop ever
        go on. If it is at work, or its task's owner is unknown, the others wait, until it is given up itself.
        """
        with self._lock:
            running.given_up = True
            if running.cancelled or running.loop is None:
                return
            self._leave(running.loop)
            there = [one for one in list(self._running) if one.loop is running.loop and one.began_at is not None]
            at_work = [one for one in there if not one.given_up]
        task = asyncio.current_task(running.loop)
        owner = next((one for one in there if one.task is task), getattr(task, "owner", None))
        if owner is None or owner in at_work:
            return
        for other in at_work:
            other.cancel()
            other.ended(False, LoopEnded("another coroutine blocks its event loop"))

    def _queue(self, running: RunningCoroutine) -> None:
        """Schedule its beginning on its loop."""
        loop = running.loop
        assert loop is not None
        self._running.add(running)

        def begin() -> None:
            loop.create_task(self._execute(running, loop)).add_done_callback(report)

        def report(task: asyncio.Task[tuple[bool, Any] | None]) -> None:
            if task.cancelled():  # before its first step: the loop ends
                ours = running.loop is loop and self.withdraw(running)
                outcome = (False, asyncio.CancelledError()) if ours else None
            else:
                outcome = task.result()
            if outcome is None:
                return
            self._running.discard(running)
            if not outcome[0] and loop in self._stopping:
                running.ended(False, LoopEnded("its event loop was closed"))
            else:
                running.ended(*outcome)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            if self.withdraw(running):
                running.ended(False, LoopEnded("its event loop is closed"))

    async def _execute(self, running: RunningCoroutine, loop: asyncio.AbstractEventLoop) -> tuple[bool, Any] | None:
        """Await it and return (whether it returned, result or exception); None: it does not begin here.

        ``sys.exit()`` and Ctrl-C are caught: raised out of a task they would end the loop, with all that runs on it.
        """
        with self._lock:
            if running.loop is not loop:
                return None
            running.began_at, running.task = time.monotonic(), asyncio.current_task()
        _owner.set(running)
        try:
            return True, await running.coroutine
        except BaseException as error:
            return False, error

    def close(self) -> None:
        """End the loops and their threads; running coroutines are cancelled, with unknown outcome. Idempotent.

        All loops share one time limit. A loop that is known to be blocked is not waited for.
        """
        with self._lock:
            threads, self._threads, self._loop = self._threads, {}, None
            self._stopping.update(threads)
        for loop in threads:
            loop.call_soon_threadsafe(loop.stop)
        until = time.monotonic() + 2 * CLOSING
        for loop, thread in threads.items():
            if loop not in self._blocked:
                thread.join(timeout=max(0.0, until - time.monotonic()))

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the loop for new coroutines; the lock is held."""
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            loop.set_task_factory(lambda loop, coro, **kwargs: OwnedTask(coro, loop=loop, **kwargs))
            thread = threading.Thread(target=self._serve, args=(loop,), name="aft-loop", daemon=True)
            self._threads[loop] = thread
            thread.start()
        return self._loop

    def _leave(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Use another loop than this one for new coroutines; the lock is held."""
        if loop is not None and self._loop is loop:
            self._loop = None
            self._blocked.add(loop)
            loop.call_soon_threadsafe(self._blocked.discard, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        home = ForkGuard()
        while loop not in self._stopping:
            try:
                with home:
                    loop.run_forever()
            except BaseException:
                # A task that an activity has begun beside itself called sys.exit(), perhaps: the others go on.
                logger.exception("something ended the event loop; it goes on")
        with suppress(BaseException):
            loop.run_until_complete(_cancel_all(loop))
        with suppress(BaseException):
            loop.run_until_complete(loop.shutdown_asyncgens())
        if not asyncio.all_tasks(loop):
            loop.close()


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSING)


def _silence(loop: asyncio.AbstractEventLoop) -> None:
    """Stop a loop in a forked child, so that no coroutine makes a further step there."""
    with suppress(Exception):
        loop.stop()
        getattr(loop, "_ready", deque[Any]()).clear()
