"""Replaces a lost link by a new one, with exponential back-off and jitter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from aft import durations
from aft.brokers.rabbitmq.link import Link
from aft.errors import BrokerError, Unroutable

#: The longest back-off, in seconds, before the second attempt; doubled with each failure.
FIRST_WAIT = 0.1
#: The longest back-off, in seconds, between any two attempts.
LONGEST_WAIT = 5.0


class Linked(Protocol):
    """An object that is used as long as its link."""

    @property
    def link(self) -> Link: ...


S = TypeVar("S", bound=Linked)


class Reconnector(Generic[S]):
    """Hands out a session whose link is ready, making a new one when the last was lost.

    ``session`` belongs to one thread; any thread may ``close``, which ends a ``session`` that is waiting. An attempt
    that outlasts one call is awaited by the next, so that short calls reach a slow broker as well.
    """

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._session: S | None = None
        self._failures = 0
        self._not_before = 0.0
        #: Why the last attempt failed.
        self._reason = BrokerError("nothing was tried yet")

    def session(self, timeout: float, *, patient: bool = True) -> S:
        """Return the session, ready. Raises BrokerError with the last reason after ``timeout`` seconds.

        Without ``patient`` it raises at the first failure. Unroutable is raised at once: waiting makes no queue.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._attempt(deadline)
            except Unroutable:
                raise
            except BrokerError:
                if not patient or self._closed.is_set() or time.monotonic() >= deadline:
                    raise

    def current(self) -> S | None:
        """Return the session if its link is not lost; connects to nothing."""
        session = self._session
        return session if session is not None and not session.link.lost else None

    def close(self) -> None:
        """Close the session cleanly. Idempotent."""
        with self._lock:
            self._closed.set()
            session = self._session
        if session is not None:
            session.link.close()

    def _attempt(self, deadline: float) -> S:
        if self._session is None:
            self._pause(deadline)
        session = self._session or self._make_session()
        try:
            session.link.wait(deadline - time.monotonic())
        except BrokerError as error:
            if session.link.lost:
                self._session = None
                self._note_failure(error)
            elif self._failures:  # why the attempts before failed says more than that this one takes long
                raise self._last_error() from None
            raise
        self._failures = 0
        return session

    def _pause(self, deadline: float) -> None:
        """Wait until the next attempt is due, or give up when that is after the deadline."""
        until = min(self._not_before, deadline)
        self._closed.wait(max(0.0, until - time.monotonic()))
        if until < self._not_before:
            raise self._last_error()

    def _make_session(self) -> S:
        with self._lock:
            if self._closed.is_set():
                raise BrokerError("this was closed; make a new one")
            self._session = self._make()
            return self._session

    def _last_error(self) -> BrokerError:
        return type(self._reason)(str(self._reason))

    def _note_failure(self, error: BrokerError) -> None:
        self._reason = error
        self._failures += 1
        self._not_before = time.monotonic() + durations.back_off(self._failures, FIRST_WAIT, LONGEST_WAIT, spread=1.0)
