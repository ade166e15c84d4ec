"""Holds a run's last outcome back for a moment, so that the end of the run can share its commit.

A flow's code gets an activity's outcome before it is committed. The outcome is written before anything else of the run
is: before the next step begins, before the run is released, before its owner reads what is recorded; and if the flow's
code does none of that for a few milliseconds, by the thread of this module. Only a write that ends the run takes
the outcome along, in one commit.

Who may run at the same time: the run's own thread, and the thread here; ``Owner.lock`` decides who of them writes. An
outcome counts as held back until its commit, so whoever reads meanwhile waits for that. The thread here serves all runs
of the process: it writes what is overdue in one commit of its own, and does not wait for a run's own thread, nor for a
row that another transaction has locked, nor does it call any code of the user's. What it could not write it tries
again, later each time; errors are left to the run's own thread. Code that keeps the interpreter for itself, such as one
long call into C, delays it like all other threads.

What a crash leaves: what one just before the outcome's commit leaves. The activity has had its effect, no outcome is
recorded, and no later step was begun; the next owner executes the activity again, under the same key. A flow's code
that kills its process each time would have that repeated: so a run that has lost a worker since its last write holds
nothing back (``RunSession.may_hold``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aft.errors import StoreError
from aft.runs.ownership.owner_writes import UNLOCKED, FencedWrite, OwnerWrite
from aft.store import Store
from aft.telemetry import logger

if TYPE_CHECKING:
    from aft.runs.ownership.owner import Owner

#: Seconds after which the thread here looks for what is held back; most is written within twice as long.
TICK = 0.0025
#: Seconds until what could not be written is tried again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
#: Seconds without work after which the thread ends.
IDLE = 2.0
#: The most that is written in one commit.
MOST = 50
#: The answer to a write that may have committed.
_UNKNOWN = object()


@dataclass(slots=True, eq=False)
class HeldWrite:
    """A write that is held back, and what is called after its commit, or when it was refused or had no answer."""

    write: OwnerWrite
    committed: Callable[[], None]
    refused: Callable[[], None]
    #: Whether the thread here has tried to write it: then it may have committed, and is written alone.
    was_tried: bool = False
    #: Whether it is held back no more: it has committed, or cannot be written.
    is_over: bool = False


class LastOutcome:
    """The outcome that an owner holds back, if any. Not thread-safe: its owner's lock guards all but ``call_back``.

    ``write`` is how the owner writes an outcome alone.
    """

    def __init__(self, write: Callable[[OwnerWrite], None]) -> None:
        self._write = write
        #: Set until its commit, also while another thread writes it.
        self.held: HeldWrite | None = None
        #: What is still to be called, by a thread of the run's own and without the lock: it may be the user's code.
        self._to_call: deque[Callable[[], None]] = deque()

    @property
    def is_over(self) -> bool:
        """Whether nothing is held back, and nothing is still to be called."""
        return self.held is None and not self._to_call

    def hold(self, held: HeldWrite) -> None:
        """Hold this back; it must record an outcome."""
        self.write_now()
        self.held = held

    def write_now(self) -> None:
        """Write what is held back, if anything."""
        if self.held is not None:
            try:
                self._write(self.held.write)
            except Exception:
                self.end(committed=False)
                raise
            self.end(committed=True)

    def join(self, write: OwnerWrite) -> OwnerWrite:
        """Return a write that ends the run with what is held back; before any other write that is written."""
        if self.held is None or not write.ends or self.held.was_tried:
            self.write_now()
            return write
        outcome = self.held.write
        return replace(write, entry=outcome.entry, frame=outcome.frame, closed_faults=outcome.closed_faults)

    def end(self, *, committed: bool) -> None:
        """Note that nothing is held back any more: it was written, or cannot be."""
        held, self.held = self.held, None
        if held is not None:
            held.is_over = True
            self._to_call.append(held.committed if committed else held.refused)

    def give_up(self, error: Exception) -> None:
        """Note that it was not written with the run's end; it may be possible to write it alone."""
        if isinstance(error, StoreError) and not error.transient:
            self.write_now()
        self.end(committed=False)

    def call_back(self) -> None:
        """Call what is still to be called."""
        while self._to_call:
            with suppress(IndexError):  # another thread of the run was faster
                self._to_call.popleft()()


class HeldWrites:
    """Writes what the runs of one process hold back for too long. Thread-safe.

    Its thread begins with the first, ends when there was nothing for a while, and begins again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Those of the last moment, oldest first; most of them are written by the time they come up.
        self._recent: deque[Try] = deque()
        #: Set until the thread has taken these: so most calls need neither a lock nor a switch of threads.
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, owner: Owner, held: HeldWrite) -> None:
        """Write what this run holds back if its own thread does not do so soon; the caller does not hold its lock."""
        self._recent.append(Try(owner, held))
        if not self._awake.is_set() and not self._wake():
            owner.write_held()

    def _wake(self) -> bool:
        """Wake the thread; False: there is none, as the process has too many."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="aft-held-writes", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            self._awake.set()
        return True

    def _run(self) -> None:
        try:
            self._serve()
        finally:  # however it ends, the next one begins another
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None
                    self._awake.clear()

    def _serve(self) -> None:
        later: list[Try] = []
        while self._awake.wait(_pause(later)) or later or not self._may_end():
            self._awake.clear()
            later += [self._recent.popleft() for _ in range(len(self._recent))]
            time.sleep(TICK)
            due = [one for one in later if one.at <= time.monotonic()]
            for start in range(0, len(due), MOST):
                write_overdue(due[start : start + MOST])
            later = [one for one in later if not one.held.is_over]
            due.clear()  # what has ended is not kept

    def _may_end(self) -> bool:
        """Whether the thread may end, as nothing came for a while; then the next one begins another."""
        with self._lock:
            if self._awake.is_set():
                return False
            self._thread = None
            return True


@dataclass(slots=True, eq=False)
class Try:
    """What is to be tried at a time, and the pause before the try after that."""

    owner: Owner
    held: HeldWrite
    at: float = 0.0
    pause: float = FIRST_PAUSE

    def put_off(self) -> None:
        self.at, self.pause = time.monotonic() + self.pause, min(2 * self.pause, LONGEST_PAUSE)


def _pause(later: list[Try]) -> float:
    """Return the seconds until the first of these is to be tried; if there are none, how long the thread waits."""
    return max(0.0, min(one.at for one in later) - time.monotonic()) if later else IDLE


def write_overdue(due: list[Try]) -> None:
    """Write what these runs hold back in one commit; what was not written is put off."""
    taken, answers, failure = list[tuple[Try, FencedWrite]](), list[Any](), None
    try:
        taken += ((one, write) for one in due if (write := one.owner.take_overdue(one.held)) is not None)
        if taken:
            answers = _commit(taken[0][0].owner.store, [write for _, write in taken])
    except BaseException as error:  # the edge of a thread
        failure = error
    answers += [_UNKNOWN] * (len(taken) - len(answers))
    for (one, _), answer in zip(taken, answers, strict=True):
        known = answer is not _UNKNOWN
        one.owner.end_overdue(one.held, answer if known else None, known=known)
    for one in due:
        one.put_off()
    if failure is not None:  # told without the owners' locks: handlers of logs are the user's code
        logger.error("outcomes that are held back cannot be written", exc_info=failure)


def _commit(store: Store, writes: list[FencedWrite]) -> list[Any]:
    try:
        return store.write_now(UNLOCKED, writes)
    except StoreError as error:
        if error.transient or len(writes) == 1:
            return [_UNKNOWN] * len(writes)
        return [answer for write in writes for answer in _commit(store, [write])]  # one of them spoils the others
