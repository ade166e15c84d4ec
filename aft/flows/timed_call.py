"""One call of a user's function that may be given up: on a thread of its own, or on the event loop.

Two threads: the caller's, which begins it, waits for its outcome and may stop it; and the one that the function is
executed on. Whichever comes first decides: the function's end, or the caller who gives it up. A function that is given
up goes on until it returns by itself; what it returns then is told to ``late``.

The time of a coroutine counts from its first step. One that its loop does not get to beginning, because another one
blocks it, has not been tried: it begins on another loop.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from aft.flows.abandonment import AbandonedAttempts, WatchedCall
from aft.flows.forks import Home
from aft.flows.loop import LoopThread, Running

#: Seconds that a coroutine gets to end after it was cancelled, before it counts as one that never does.
CANCELLING = 2.0
#: Seconds after which a loop that has not begun a coroutine counts as blocked.
BLOCKED = 2.0
#: What a call has come to: it returned, or it raised; None: the rules object, and the value is their decision.
Outcome = tuple[bool | None, Any]


class Late(Protocol):
    """Is told an effect that nobody waits for; ``refused``: its record was, or had no answer."""

    def __call__(self, value: Any, *, refused: bool = False) -> None: ...


class NoThread(Exception):
    """Raised when no thread can be started for a function: nothing was called."""


class TimedCall:
    """A call that may be given up. ``outcomes`` is where the caller waits for what it comes to."""

    def __init__(
        self,
        function: Callable[[], Any],
        what: str,
        late: Late,
        watched: WatchedCall,
        loop: LoopThread,
        abandoned: AbandonedAttempts,
    ) -> None:
        self._function = function
        self._what = what
        self._late = late
        self._watched = watched
        self._home = Home()
        self._loop = loop
        self._abandoned = abandoned
        #: Held by whoever comes first.
        self._decided = threading.Lock()
        self._running: Running | None = None
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def begin(self, *, is_async: bool) -> None:
        """Begin it; raises NoThread."""
        try:
            if is_async:
                self._running = self._loop.begin(self._function(), self._end_coroutine)
            else:
                _start_thread(self._call, f"aft-{self._what}")
        except BaseException:
            self._abandoned.end(self._watched)  # nothing was called
            raise

    def wait(self, seconds: float | None) -> Outcome | None:
        """Wait for its outcome, so long from its beginning; None: that time is over."""
        if self._running is None:
            return self._take(seconds)
        given_at = time.monotonic()
        while True:
            began, now = self._running.began_at, time.monotonic()
            if began is not None:
                left = None if seconds is None else began + seconds - now
                return self._take(left)
            if now - given_at >= BLOCKED:
                self._loop.move(self._running)
                given_at = now
            # It begins at once, as a rule: then its own time is what is waited for.
            if (outcome := self._take(BLOCKED if seconds is None else min(BLOCKED, seconds))) is not None:
                return outcome

    def _take(self, seconds: float | None) -> Outcome | None:
        try:
            return self.outcomes.get(timeout=None if seconds is None else max(0.0, seconds))
        except queue.Empty:
            return None

    def stop(self, why: str) -> Outcome | None:
        """Let it be over: returns what it has come to meanwhile, or None: it was given up.

        A coroutine is cancelled, and gets a moment to end; one that has not begun never does.
        """
        if self._running is not None:
            if self._loop.withdraw(self._running):
                return None
            self._running.cancel()
            if (ended := self._await_end(CANCELLING)) is not None:
                return ended
        if not self._decided.acquire(blocking=False):
            return self._await_end(None)
        self._abandoned.give_up(self._watched, why)
        if self._running is not None:
            self._loop.replace_blocked(self._running)
        return None

    def _await_end(self, timeout: float | None) -> Outcome | None:
        """Wait for the function's end; what rules say of it meanwhile comes too late."""
        while (ended := self._take(timeout)) is not None and ended[0] is None:
            pass
        return ended

    # On the thread that the function runs on ------------------------------------------------------------------------

    def _call(self) -> None:
        """Call a plain function; however it ends, that is told."""
        outcome: Outcome = False, RuntimeError(f"the thread of {self._what} ended without an outcome")
        try:
            with self._home:
                outcome = True, self._function()
        except BaseException as error:
            outcome = False, error
        finally:
            if self._decided.acquire(blocking=False):
                self.outcomes.put(outcome)
            else:
                self._return_late(outcome)

    def _end_coroutine(self, returned: bool, value: Any) -> None:
        if self._decided.acquire(blocking=False):
            self.outcomes.put((returned, value))
            return
        try:
            # Not on the loop's own thread: to keep an effect means to write to the database.
            _start_thread(lambda: self._return_late((returned, value)), "aft-late")
        except NoThread:
            self._return_late((returned, value))

    def _return_late(self, outcome: Outcome) -> None:
        returned, value = outcome
        try:
            if returned:
                self._late(value)
        finally:
            self._abandoned.end(self._watched)


def _start_thread(work: Callable[[], None], name: str) -> None:
    here = contextvars.copy_context()
    try:
        threading.Thread(target=here.run, args=(work,), name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(f"no thread can be started: {error}") from None
