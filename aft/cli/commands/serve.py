"""Runs a dispatcher until the first signal, which drains it, or the second, which ends it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, NoReturn

from aft import after_fork, durations
from aft.app import Aft, DispatcherProcess
from aft.cli.errors import Failure, print_to_stderr
from aft.cli.show.output import print_message
from aft.errors import AftError
from aft.runs.run_rows import RunRow
from aft.telemetry import Event, RunReleased

#: Seconds between two reminders of the runs that a drain still waits for.
REMIND = 10.0
#: Runs that are named; the others are counted.
MOST_NAMED = 3
#: Seconds for which a process that has lost its database file waits for what it executes.
LAST_MOMENT = 2.0
#: Exit status of a process that was stopped before its runs were released.
STOPPED_AT_ONCE = 1

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunLog:
    """The runs that a dispatcher executes now, and those it has released since it drains. Thread-safe.

    What it executes is read when it is shown. A run that it does not execute any more is not remembered: a dispatcher
    that runs for months has had millions of them.
    """

    def __init__(self, process: DispatcherProcess) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._draining = False
        self._released: dict[str, None] = {}
        after_fork.register(self)

    def forget_in_child(self) -> None:
        """After a fork: replace the lock, whose holder may not exist here."""
        self._lock = threading.Lock()

    def handle_event(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, RunReleased):
            with self._lock:
                if self._draining:
                    self._released[event.run] = None

    def drain(self) -> None:
        """Record from now on which runs are released."""
        with self._lock:
            self._draining = True

    @property
    def released(self) -> list[str]:
        """The runs that were released since ``drain``, in order."""
        with self._lock:
            return list(self._released)

    def __str__(self) -> str:
        runs = [f"{run} ({flow})" for run, flow in self._process.executing]
        if not runs:
            return "no run is going on"
        return f"{len(runs)} {'run is' if len(runs) == 1 else 'runs are'} still going on: {name_some(runs)}"


def name_some(names: Sequence[str]) -> str:
    """Name the first of several things, and count the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


class Stop:
    """Handles signals: the first one asks for a drain, the second one ends the process.

    A signal may come at any moment, also between the check whether one has come and the wait for it. So the kernel
    itself writes to a pipe, and the main thread waits on that: with a lock of Python's, the signal's handler could wait
    for a lock that its own thread holds, for ever.

    A child that is forked meanwhile does not take part: its signals do what they did before ``hear``.
    """

    def __init__(self, last_words: str) -> None:
        self.asked = False
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}
        self._last_words = f"aft: {last_words}\n".encode()
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)

    def install(self) -> None:
        """Install the handlers; once per process."""
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_in_child)

    def wait(self, over: Callable[[], bool]) -> None:
        """Wait until ``over()`` is true; it is checked after each signal, and each ``wake``. For the main thread."""
        while not over():
            os.read(self._told, 4096)

    def wake(self) -> None:
        """Make ``wait`` check again."""
        os.write(self._tell, b"\0")

    def _forget_in_child(self) -> None:
        signal.set_wakeup_fd(-1)  # first: the pipe is the parent's
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child to which it came before it could forget
            self._forget_in_child()
            os.kill(os.getpid(), number)
            return
        if self.asked:
            # Nothing of Python's own output is safe here: the signal may have come in the middle of it.
            os.write(2, self._last_words)
            os._exit(STOPPED_AT_ONCE)
        self.asked = True


def serve(app: Aft, process: DispatcherProcess) -> None:
    """Run a dispatcher until it is asked to stop, then drain it; raises Failure if it had to stop by itself."""
    in_hand = RunLog(process)
    app.telemetry.subscribe(in_hand.handle_event)
    lease = durations.format(app.settings.lease)
    stop = Stop(
        f"stopped at once; a dispatcher that is alive, or the next one, takes over what was going on, within {lease}"
    )
    stop.install()
    process.on_failure = stop.wake
    process.start()
    print_message("ready; SIGTERM or Ctrl-C drains, a second one stops at once")
    stop.wait(lambda: stop.asked or process.failure is not None)
    if process.failure is not None:
        _give_up(process, process.failure, in_hand)
    in_hand.drain()
    going_on = str(in_hand)
    process.drain()  # before it is printed: readers may rely on it
    print_message(f"draining: {going_on}")
    drained = threading.Event()
    threading.Thread(target=_remind, args=(drained, in_hand), daemon=True).start()
    # On a thread of its own: this one handles the second signal. A daemon: nothing waits for it if this one gives up.
    stopping = _Stopping(process, stop.wake)
    stopping.start()
    stop.wait(lambda: stopping.done or process.failure is not None)
    drained.set()
    if process.failure is not None:
        _end_at_once(f"{process.failure}; {in_hand}")
    message = "stopped; " + describe_leftover(app, process, in_hand)
    if not stopping.result():
        _end_at_once(message)
    print_message(message)


class _Stopping(threading.Thread):
    """Stops a dispatcher, however long that takes, and calls ``wake`` when it is done."""

    def __init__(self, process: DispatcherProcess, wake: Callable[[], None]) -> None:
        super().__init__(name="aft-stopping", daemon=True)
        self._process = process
        self._wake = wake
        self._answer: Future[bool] = Future()

    @property
    def done(self) -> bool:
        return self._answer.done()

    def result(self) -> bool:
        """Return whether every run was released; raises what went wrong."""
        return self._answer.result()

    def run(self) -> None:
        try:
            self._answer.set_result(self._process.stop())
        except BaseException as error:
            self._answer.set_exception(error)
        self._wake()


def describe_leftover(app: Aft, process: DispatcherProcess, in_hand: RunLog) -> str:
    """Return which runs a stopped dispatcher leaves unfinished, and whether a live one continues them."""
    try:
        left = process.leftover(in_hand.released)
    except AftError as error:
        return f"the runs that it left cannot be read: {error}"
    if not (left.interrupted or left.cut_off):
        return "no run was interrupted"
    parts = []
    if left.interrupted:
        names = name_some([f"{row.id} ({row.flow})" for row in left.interrupted])
        parts.append(f"{_runs(left.interrupted)} interrupted between two steps, and no attempt counted: {names}")
    if left.cut_off:
        names = name_some([f"{row.id} ({row.flow})" for row in left.cut_off])
        parts.append(f"{_runs(left.cut_off)} left in the middle of a step: {names}")
    them = "it" if len(left.interrupted) + len(left.cut_off) == 1 else "them"
    if left.unserved:
        flows = name_some(left.unserved)
        parts.append(f"no live dispatcher has {flows}: start one, which goes on with {them}")
    elif left.cut_off:
        lease = durations.format(app.settings.lease)
        parts.append(f"another dispatcher goes on with {them}, {lease} from now at the latest")
    else:
        parts.append(f"another dispatcher goes on with {them}")
    return "; ".join(parts)


def _runs(found: Sequence[RunRow]) -> str:
    return "1 run was" if len(found) == 1 else f"{len(found)} runs were"


def _give_up(process: DispatcherProcess, failure: AftError, in_hand: RunLog) -> NoReturn:
    """End a process that has lost its database file; what it executes has a moment to end by itself."""
    if process.stop(LAST_MOMENT):
        raise Failure(str(failure))
    _end_at_once(f"{failure}; {in_hand}, and what it does from now on is not recorded")


def _end_at_once(last_words: str) -> NoReturn:
    """End the process although threads of it still execute something: they would keep it alive."""
    print_to_stderr(last_words)
    os._exit(STOPPED_AT_ONCE)


def _remind(drained: threading.Event, in_hand: RunLog) -> None:
    while not drained.wait(REMIND):
        print_message(f"draining: {in_hand}; a second SIGTERM or Ctrl-C stops at once")
