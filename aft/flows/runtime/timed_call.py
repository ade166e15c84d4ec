"""One call of a user's function that may be given up: on its own thread, or on the event loop.

Two threads: the caller's, which begins it, waits for its outcome and may stop it; and the one that the function is
executed on. The first event decides: the function's end, or the caller giving it up. A function that is given up goes
on until it returns by itself; its result is passed to ``late``.

The time of a coroutine counts from its first step. A coroutine that has not begun because another one blocks its loop
has not been tried: it begins on another loop.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from aft.flows.runtime.abandoned_attempts import AbandonedAttempts, WatchedCall
from aft.flows.runtime.event_loop import LoopThread, RunningCoroutine
from aft.flows.runtime.forks import ForkGuard

#: Seconds that a coroutine gets to end after it was cancelled, before it counts as one that never does.
CANCELLING = 2.0
#: Seconds after which a loop that has not begun a coroutine counts as blocked.
BLOCKED = 2.0
#: (True, result), (False, exception), or (None, decision) if the rules object.
Outcome = tuple[bool | None, Any]


class OnLate(Protocol):
    """Called with the result of a late effect; ``refused``: its record was refused, or had no answer."""

    def __call__(self, value: Any, *, refused: bool = False) -> None: ...


class NoThread(Exception):
    """Raised when no thread can be started for a function: nothing was called."""


class TimedCall:
    """A call that may be given up; the caller waits for its outcome in ``outcomes``."""

    def __init__(
        self,
        function: Callable[[], Any],
        what: str,
        late: OnLate,
        watched: WatchedCall,
        loop: LoopThread,
        abandoned: AbandonedAttempts,
    ) -> None:
        self._function = function
        self._what = what
        self._late = late
        self._watched = watched
        self._home = ForkGuard()
        self._loop = loop
        self._abandoned = abandoned
        #: Acquired by the side that decides: the function's end, or the caller giving it up.
        self._decided = threading.Lock()
        self._running: RunningCoroutine | None = None
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def begin(self, *, is_async: bool) -> None:
        """Begin the call; raises NoThread."""
        try:
            if is_async:
                self._running = self._loop.begin(self._function(), self._end_coroutine)
            else:
                _start_thread(self._call, f"aft-{self._what}")
        except BaseException:
            self._abandoned.end(self._watched)  # nothing was called
            raise

    def wait(self, seconds: float | None) -> Outcome | None:
        """Wait for the outcome, up to ``seconds`` from the function's beginning; None: that time is over."""
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
        """Give the call up and return None, or return the outcome that it has reached meanwhile.

        A coroutine is cancelled, and gets a short time to end; one that has not begun never does.
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
        """Wait for the function's end; objections of the rules are too late now."""
        while (ended := self._take(timeout)) is not None and ended[0] is None:
            pass
        return ended

    # On the thread that the function runs on ------------------------------------------------------------------------

    def _call(self) -> None:
        """Call a synchronous function, and deliver its outcome however it ends."""
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
            # Not on the loop's own thread: storing an effect writes to the database.
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
