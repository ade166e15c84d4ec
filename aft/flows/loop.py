"""The one event loop of a process: ``async def`` activities run on its thread; nothing else of aft is async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from aft.errors import DefinitionError


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


class FlowLoop(asyncio.AbstractEventLoop):
    """The loop that an async flow finds itself on. It knows activities only; whatever else is awaited is refused.

    Without it, ``asyncio.sleep`` and its like would raise "no running event loop", which says nothing to a person.
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise foreign_awaitable("something of asyncio")

    create_future = call_soon = call_later = call_at = time = _refuse  # type: ignore[assignment]
    call_soon_threadsafe = run_in_executor = getaddrinfo = create_connection = _refuse  # type: ignore[assignment]

    def create_task(self, coro: Any, **kwargs: Any) -> NoReturn:
        coro.close()  # it was made for this task; unclosed, Python warns that nobody awaited it
        self._refuse()

    def get_debug(self) -> bool:
        return False


def foreign_awaitable(what: str) -> DefinitionError:
    """The error for awaiting anything but an activity in a flow."""
    return DefinitionError(
        f"an async flow awaited {what}; it may await activities only, one at a time, because a replay must see the "
        "same outcomes in the same order: do this inside an activity"
    )


@contextmanager
def running_on(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Let this thread's code believe that it runs on ``loop``, or on none."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)
