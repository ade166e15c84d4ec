"""A fleet of real worker processes that are killed and paused from outside, and replaced when they die."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.setups import eventually

#: Seconds before a process that ended by itself is replaced: it may not have found its services.
AGAIN = 0.2
ROOT = Path(__file__).parents[1]


#: How a process may end that was asked to: with all its work at rest, or with some that took too long.
GRACEFUL = (0, 3)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process that the fleet did not kill: by itself, at a crash point, or on request."""

    pid: int
    status: int


@dataclass
class Seat:
    """One place in the fleet: its present process, and whether that is ready."""

    roles: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    #: Variables of its first process only, of its second one, …
    once: list[Mapping[str, str]] = field(default_factory=list)
    pid: int | None = None
    ready: bool = False
    paused: bool = False
    retired: bool = False
    #: Those that ended here and were not killed from outside.
    ends: list[End] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hit:
    """A signal that was sent to a live process; ``until`` is the time at which a pause ended."""

    at: float
    pid: int
    index: int
    until: float | None = None


@dataclass
class Fleet:
    """Processes of ``app.dispatcher(only=roles)``, one for each seat. Thread-safe; a context manager.

    ``roles`` are those of the first seat, the second, … What the children say goes to ``log``.
    """

    environ: Mapping[str, str]
    roles: Sequence[Sequence[str]]
    log: Path
    concurrency: int = 8
    seats: list[Seat] = field(default_factory=list)
    kills: list[Hit] = field(default_factory=list)
    pauses: list[Hit] = field(default_factory=list)
    #: Those that were asked to stop (SIGTERM), to be replaced.
    stops: list[Hit] = field(default_factory=list)
    #: How those ended, by their pid.
    stopped: dict[int, int] = field(default_factory=dict)
    #: How processes ended that nobody had killed: exit codes.
    fell: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._stopping = False
        self._tickets: dict[int, int] = {}
        self._ticket = 0
        self._killed: set[int] = set()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AFT_")}
        with self.log.open("ab") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "chaos.zygote"],
                cwd=ROOT,
                env={**environ, "PYTHONPATH": os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._reader = threading.Thread(target=self._listen, name="fleet", daemon=True)
        self._reader.start()

    # Processes --------------------------------------------------------------------------------------------------

    def start(self, count: int | None = None, *, within: float = 60.0) -> None:
        """Start ``count`` processes, or one for each of the fleet's roles, and wait until they are ready."""
        with self._lock:
            for index in range(count or len(self.roles)):
                self.add(self.roles[index % len(self.roles)])
        self.wait_ready(within=within)

    def wait_ready(self, *, within: float = 60.0) -> None:
        """Wait until every process is ready."""
        eventually(lambda: all(seat.ready for seat in self.seats), within=within)

    def add(
        self, roles: Sequence[str], environ: Mapping[str, str] | None = None, once: Iterable[Mapping[str, str]] = ()
    ) -> int:
        """Start one more process with its own variables; ``once``: those of its first, second, … process only."""
        with self._lock:
            self.seats.append(Seat(roles, environ or {}, list(once)))
            self._request(len(self.seats) - 1)
            return len(self.seats) - 1

    def retire(self, index: int, *, within: float = 60.0) -> list[End]:
        """Stop a process without a successor; return how all processes of its seat ended, itself the last."""
        seat = self.seats[index]
        eventually(lambda: seat.ready, within=within)
        with self._lock:
            seat.retired = True
            if seat.pid is not None:
                _ask(seat.pid)
        eventually(lambda: seat.pid is None, within=within)
        return seat.ends

    def kill(self, index: int) -> Hit | None:
        """Kill a process with SIGKILL; None if its seat has none at this time."""
        with self._lock:
            pid = self.seats[index].pid
            if pid is None:
                return None
            self._killed.add(pid)
            hit = Hit(time.monotonic(), pid, index)
            os.kill(pid, signal.SIGKILL)
            self.seats[index].pid, self.seats[index].ready, self.seats[index].paused = None, False, False
            self.kills.append(hit)
            return hit

    def ask_to_stop(self, index: int) -> Hit | None:
        """Stop a process with SIGTERM, to be replaced when it has ended; None if none is ready."""
        with self._lock:
            seat = self.seats[index]
            if seat.pid is None or not seat.ready:
                return None
            hit = Hit(time.monotonic(), seat.pid, index)
            _ask(seat.pid)
            seat.ready = False
            self.stops.append(hit)
            return hit

    def pause(self, index: int) -> bool:
        """Stop a process with SIGSTOP; False if none is running."""
        with self._lock:
            seat = self.seats[index]
            if seat.pid is None or seat.paused:
                return False
            os.kill(seat.pid, signal.SIGSTOP)
            seat.paused = True
            self.pauses.append(Hit(time.monotonic(), seat.pid, index))
            return True

    def resume(self, index: int) -> None:
        """Continue a paused process with SIGCONT."""
        with self._lock:
            seat = self.seats[index]
            if seat.pid is None or not seat.paused:
                return
            os.kill(seat.pid, signal.SIGCONT)
            seat.paused = False
            place, hit = next((n, hit) for n, hit in reversed(list(enumerate(self.pauses))) if hit.pid == seat.pid)
            self.pauses[place] = Hit(hit.at, hit.pid, hit.index, time.monotonic())

    def ready(self) -> list[int]:
        """Return the seats whose processes are ready, and not paused."""
        with self._lock:
            return [index for index, seat in enumerate(self.seats) if seat.ready and not seat.paused]

    def memory(self, index: int) -> int:
        """Return the resident memory of a process in bytes; 0 if there is none."""
        pid = self.seats[index].pid
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    @property
    def crashes(self) -> list[str]:
        """Processes that ended by a signal that was not sent, or wrongly after a request to stop."""
        by_signals = [
            f"{count} processes were ended by {signal.Signals(-status).name}, which nobody had sent"
            for status, count in self.fell.items()
            if status < 0 and status != -signal.SIGKILL
        ]
        return by_signals + [
            f"process {pid} was asked to stop, and ended with status {status}"
            for pid, status in self.stopped.items()
            if status not in GRACEFUL
        ]

    @property
    def deaths(self) -> dict[int, float]:
        """The time at which each killed process was killed."""
        return {hit.pid: hit.at for hit in self.kills}

    def stop(self, *, within: float = 60.0) -> None:
        """Stop every process gracefully, wait for its end, and end the zygote. Idempotent."""
        with self._lock:
            self._stopping = True
            for index, seat in enumerate(self.seats):
                self.resume(index)
                if seat.pid is not None:
                    os.kill(seat.pid, signal.SIGTERM)
        try:
            eventually(
                lambda: all(seat.pid is None for seat in self.seats) or not self._reader.is_alive(), within=within
            )
        except AssertionError:
            self._dump_stacks()
        self.close()

    def _dump_stacks(self) -> None:
        """Make processes that do not end write their stacks to the log."""
        with self._lock:
            for seat in self.seats:
                if seat.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(seat.pid, signal.SIGUSR1)

    def close(self) -> None:
        """Kill every process at once. Idempotent."""
        self._stopping = True
        if self._zygote.stdin is not None:
            with contextlib.suppress(OSError):
                self._zygote.stdin.close()
        self._zygote.wait(30)
        self._reader.join(30)
        if self._zygote.stdout is not None:
            self._zygote.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The zygote -------------------------------------------------------------------------------------------------

    def _request(self, index: int) -> None:
        seat = self.seats[index]
        self._ticket += 1
        self._tickets[self._ticket] = index
        request: dict[str, Any] = {
            "ticket": self._ticket,
            "roles": list(seat.roles),
            "concurrency": self.concurrency,
            "environ": {**self.environ, **seat.environ, **(seat.once.pop(0) if seat.once else {})},
            "log": str(self.log),
        }
        assert self._zygote.stdin is not None
        with contextlib.suppress(OSError):
            self._zygote.stdin.write(json.dumps(request).encode() + b"\n")
            self._zygote.stdin.flush()

    def _listen(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            told = json.loads(line)
            with self._lock:
                if "born" in told:
                    self._born(told["born"], told["ticket"])
                elif "ready" in told:
                    self._became_ready(told["ready"])
                else:
                    self._ended(told["ended"], told["status"])

    def _born(self, pid: int, ticket: int) -> None:
        index = self._tickets.pop(ticket)
        self.seats[index].pid = pid
        if self._stopping or self.seats[index].retired:
            os.kill(pid, signal.SIGTERM)

    def _became_ready(self, pid: int) -> None:
        for seat in self.seats:
            if seat.pid == pid:
                seat.ready = True

    def _ended(self, pid: int, status: int) -> None:
        index = next((n for n, seat in enumerate(self.seats) if seat.pid == pid), None)
        if index is None:
            index = next(hit.index for hit in reversed(self.kills) if hit.pid == pid)
        seat = self.seats[index]
        if seat.pid == pid:
            seat.pid, seat.ready, seat.paused = None, False, False
        if pid not in self._killed:
            seat.ends.append(End(pid, status))
        if asked := any(hit.pid == pid for hit in self.stops):
            self.stopped[pid] = status
        if self._stopping or seat.retired:
            return
        if not asked and pid not in self._killed:
            self.fell[status] += 1
        # One that ended by itself may not have found its services: it is not worth trying at once.
        if asked or pid in self._killed or status == -signal.SIGKILL:
            self._request(index)
        else:
            self._request_later(index)

    def _request_later(self, index: int) -> None:
        def request() -> None:
            with self._lock:
                if not self._stopping:
                    self._request(index)

        later = threading.Timer(AGAIN, request)
        later.daemon = True
        later.start()


def _ask(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, signal.SIGTERM)
