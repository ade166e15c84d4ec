"""Until when does a dispatcher run? Until the first signal lets it drain, or the second one ends it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from aft import durations
from aft.app import Aft, DispatcherProcess
from aft.cli.output import say
from aft.telemetry import Event, FaultRaised, RunClaimed, RunEnded, RunParked, RunReleased

#: Seconds between two reminders of what a drain still waits for.
REMIND = 10.0
#: Exit status of a process that was stopped before its runs had been let go.
STOPPED_AT_ONCE = 1

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class InHand:
    """Which runs this process executes now, as its events tell. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, str] = {}

    def hear(self, event: Event) -> None:
        """Follow an event."""
        with self._lock:
            if isinstance(event, RunClaimed):
                self._runs[event.run] = event.flow
            elif isinstance(event, RunReleased | RunEnded | RunParked | FaultRaised):
                self._runs.pop(event.run, None)

    def __str__(self) -> str:
        with self._lock:
            runs = [f"{run} ({flow})" for run, flow in self._runs.items()]
        if not runs:
            return "no run is going on"
        more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        return f"{len(runs)} {'run is' if len(runs) == 1 else 'runs are'} still going on: {', '.join(runs[:3])}{more}"


class Stop:
    """Hears the signals: the first one asks for a drain, the second one ends the process.

    A signal may come at any moment, also between a look whether one has come and the wait for it. So the kernel itself
    writes to a pipe, which is waited at: a lock of Python's that the main thread is about to take could be waited for
    by its own handler, for ever.
    """

    def __init__(self, last_words: str) -> None:
        self.asked = False
        self._last_words = f"aft: {last_words}\n".encode()
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)

    def hear(self) -> None:
        """Listen from now on."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)

    def wait(self, over: Callable[[], bool]) -> None:
        """Wait until that is so; looked at after each signal, and each ``wake``. For the main thread."""
        while not over():
            os.read(self._told, 4096)

    def wake(self) -> None:
        """Have it looked at."""
        os.write(self._tell, b"\0")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            # Nothing of Python's own output is safe here: the signal may have come in the middle of it.
            os.write(2, self._last_words)
            os._exit(STOPPED_AT_ONCE)
        self.asked = True


def serve(app: Aft, process: DispatcherProcess) -> None:
    """Run a dispatcher until it is asked to stop, then drain it."""
    in_hand = InHand()
    app.telemetry.subscribe(in_hand.hear)
    lease = durations.spell(app.settings.lease)
    stop = Stop(f"stopped at once; other workers take over what was going on, {lease} from now at the latest")
    stop.hear()
    process.start()
    say("ready; SIGTERM or Ctrl-C drains, a second one stops at once")
    stop.wait(lambda: stop.asked)
    say(f"draining: {in_hand}")
    drained = threading.Event()
    threading.Thread(target=_remind, args=(drained, in_hand), daemon=True).start()
    with ThreadPoolExecutor(1) as apart:
        # On a thread of its own: this one hears the second signal.
        stopping = apart.submit(process.stop)
        stopping.add_done_callback(lambda _: stop.wake())
        stop.wait(stopping.done)
        stopping.result()
    drained.set()
    say("stopped; nothing was left half done")


def _remind(drained: threading.Event, in_hand: InHand) -> None:
    while not drained.wait(REMIND):
        say(f"draining: {in_hand}; a second SIGTERM or Ctrl-C stops at once")
