"""Runs an application and a real worker process in a namespace of their own, beside the user's.

The namespace is derived from the configured one and reused by the next replay, so that queues do not pile up at the
broker, and no run of the user's is ever touched. One replay at a time: two would claim each other's runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select

from aft.app import Aft
from aft.config import Settings
from aft.errors import AftError
from aft.store.db_time import now
from aft.store.tables import workers

#: What differs from the user's settings: deaths and lost messages are noticed soon, no unused delay queues.
SHORT = {"lease": "3s", "grace": "1s", "levels": "none"}
#: Seconds that a worker process has to end by itself.
PATIENCE = 5.0
#: Lines of a dead worker's output that are shown.
MOST_LINES = 15


class EnvironmentFailed(AftError):
    """Raised when a replay cannot continue; ``details`` are the last lines that its worker printed."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True, slots=True)
class KilledProcess:
    """A process that was killed, and the signal that it died of."""

    pid: int
    signal: int
    at: datetime


class WorkerProcess:
    """A dispatcher for one example in its own process. It ends when told to, and when this process is gone."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._process = subprocess.Popen(
            # -P: a file in the current folder must not be taken for a module of Python's, or for an installed one.
            [sys.executable, "-P", "-m", "aft.scenarios.worker", str(directory)],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=environ,
            start_new_session=True,  # Ctrl-C is for the replay, which ends its workers itself
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise EnvironmentFailed, with the end of its output, if it has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise EnvironmentFailed(
                f"the worker process ended by itself, with status {code}; it said:", self._last_lines()
            )

    def kill(self) -> KilledProcess:
        """Send it SIGKILL; return the signal that it really died of."""
        at = datetime.now(UTC)
        self._process.send_signal(signal.SIGKILL)
        code = self._process.wait(PATIENCE)
        self._close()
        return KilledProcess(self.pid, -code, at)

    def end(self) -> None:
        """Drain and end it; kill it if it does not end in time. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._output.close()

    def _last_lines(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-MOST_LINES:]) or "  nothing"


class ReplayEnvironment:
    """An app to start runs with, and one worker process that executes them; a context manager that ends both."""

    def __init__(self, directory: Path) -> None:
        namespace = f"{Settings.load().namespace[:33]}-replay"
        self.app = Aft(settings=Settings.load(namespace=namespace, **SHORT))
        self._directory = directory
        self._environ = {
            **os.environ,
            "AFT_NAMESPACE": namespace,
            **{f"AFT_{field.upper()}": value for field, value in SHORT.items()},
        }
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> ReplayEnvironment:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._worker is not None:
            self._worker.end()
        self.app.close()

    def open(self) -> None:
        """Check database and broker, start the worker, and wait until it is ready. Raises AftError."""
        self.app.check()
        self.app.delays().declare(self.app.waits())
        self._refuse_company()
        self._worker = WorkerProcess(self._directory, self._environ)
        while self._live_worker() is None:
            self._worker.check()
            time.sleep(0.02)

    def check(self) -> None:
        """Raise EnvironmentFailed if the worker has ended by itself."""
        if self._worker is not None:
            self._worker.check()

    def kill_worker(self, pid: int | None = None) -> KilledProcess:
        """Kill the worker, which must be the process of that id if one is given, and start another one."""
        if self._worker is None or self._worker.pid != (pid or self._worker.pid):
            raise EnvironmentFailed(f"process {pid} hangs, which is not the worker of this replay; it is left alone")
        killed = self._worker.kill()
        self._worker = WorkerProcess(self._directory, self._environ)
        return killed

    def _refuse_company(self) -> None:
        """Wait one lease for an earlier, killed replay's worker to expire; raise EnvironmentFailed if it is alive."""
        deadline = time.monotonic() + self.app.settings.lease.total_seconds() + 0.5
        while (pid := self._live_worker()) is not None:
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    f"another replay is playing in namespace {self.app.namespace!r} (its worker is process {pid}); "
                    "wait for its end, or set AFT_NAMESPACE to play in another one"
                )
            time.sleep(0.1)

    def _live_worker(self) -> int | None:
        statement = select(workers.c.pid).where(
            workers.c.namespace == self.app.namespace, workers.c.expires_at > now(), workers.c.stopped_at.is_(None)
        )
        with self.app.store.read() as connection:
            return connection.execute(statement).scalars().first()
