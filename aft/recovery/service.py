"""A thread that repeats one step until it is stopped, and survives errors."""

from __future__ import annotations

import threading
from collections.abc import Callable

from aft import durations
from aft.clock import Clock
from aft.errors import AftError
from aft.telemetry import ServiceFailed, ServiceRecovered, Telemetry, logger

#: Seconds a service waits after an error: at first, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0


def countdown(clock: Clock, timeout: float | None) -> Callable[[], float | None]:
    """Return a function that returns the seconds left for several waits together; None: there is no limit."""
    end = None if timeout is None else clock.ticks() + timeout
    return lambda: None if end is None else max(0.0, end - clock.ticks())


class Service:
    """Calls ``step`` until stopped; a step returns how many seconds may pass before the next.

    After an error it waits, longer each time the error repeats. Errors are reported at first, then less and less often,
    and so is their end: an outage must not bury the rest of the log. Emits: ``ServiceFailed``, ``ServiceRecovered``.
    ``interrupt`` makes a step that waits for something, or is about to, return at once.
    """

    def __init__(
        self, name: str, step: Callable[[], float], telemetry: Telemetry, interrupt: Callable[[], None] | None = None
    ) -> None:
        self._name = name
        self._step = step
        self._telemetry = telemetry
        self._interrupt = interrupt
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"aft-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the current step."""
        self._stopping.set()
        if self._interrupt is not None:
            self._interrupt()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; return False if it has not ended in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _report(self, error: BaseException) -> None:
        if not isinstance(error, AftError):
            logger.exception("service failed: service=%s", self._name)
        self._telemetry.emit(ServiceFailed(service=self._name, why=str(error) or repr(error)))

    def _serve(self) -> None:
        errors = 0
        while not self._stopping.is_set():
            try:
                pause = self._step()
                if errors:
                    self._telemetry.emit(ServiceRecovered(service=self._name, errors=errors))
                errors = 0
            except BaseException as error:
                # The edge of a thread: whatever happened, the next step may succeed, and no other thread would do it.
                errors += 1
                if errors & (errors - 1) == 0:  # the first, second, fourth, eighth …
                    self._report(error)
                pause = durations.back_off(errors, 2 * FIRST_WAIT, LONGEST_WAIT, spread=0.5)
            if pause > 0:
                self._stopping.wait(pause)
