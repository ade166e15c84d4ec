"""Runs jobs in other processes: a job is JSON on the command line, its answer one line of JSON.

Only the standard library: the peers' environments have nothing else in common. Each program runs in a session of its
own, so that whatever it started is ended with it; ``end_all`` ends what is still there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
#: Seconds that a round may take at the most.
PATIENCE = 180.0
#: What an answer's line begins with: programs may print other things.
ANSWER = "BENCH "
#: Characters of a failed program's last words that are shown.
SHOWN = 600

Job = Mapping[str, Any]
#: Where a program finds its job if it is not on its command line.
_JOB = "BENCH_JOB"
_running: set[subprocess.Popen[str]] = set()


class JobFailed(Exception):
    """Raised when a program gave no answer; quotes its output."""


def run(python: str | Path, module: str, job: Job, patience: float = PATIENCE, code: Path = ROOT) -> dict[str, float]:
    """Run a job with ``python -m module``, and return its answer; raises JobFailed.

    ``code`` is the folder that packages are looked up in first.
    """
    command = [str(python), "-m", module, json.dumps(dict(job))]
    # Not a pipe: what it started and left behind would keep that open.
    with tempfile.TemporaryFile("w+") as heard:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(code),
            stdin=subprocess.DEVNULL,
            stdout=heard,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        _running.add(process)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"{module} had not answered after {patience:.0f} s") from None
        finally:
            end(process)
            _running.discard(process)
        heard.seek(0)
        said = heard.read()
    for line in said.splitlines():
        if line.startswith(ANSWER):
            answer: dict[str, float] = json.loads(line.removeprefix(ANSWER))
            return answer
    raise JobFailed(f"{module} ended with status {process.returncode} and said: {said.strip()[-SHOWN:]}")


def environment(code: Path = ROOT) -> dict[str, str]:
    """Return the environment without settings of aft, so that only the benchmark sets them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AFT_", "DBOS_"))}
    if code == ROOT:
        return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # The current folder would be searched before all others.
    return {**kept, "PYTHONPATH": f"{code}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


def end_all() -> None:
    """Kill every program that still runs."""
    for process in list(_running):
        end(process)


# --- on the other side ---


def given() -> dict[str, Any]:
    """Return the job of this program; one that a library's own command starts has it from the environment."""
    job: dict[str, Any] = json.loads(os.environ.get(_JOB) or sys.argv[1])
    return job


def start(job: Job, *command: str) -> subprocess.Popen[bytes]:
    """Start a library's own command in this environment, with this job."""
    return subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, _JOB: json.dumps(dict(job))})


def answer(figures: Mapping[str, float]) -> None:
    """Print the measured figures."""
    print(ANSWER + json.dumps(dict(figures)), flush=True)


def leave() -> NoReturn:
    """End the process at once: the clean-up of libraries is not measured, and may be slow."""
    sys.stdout.flush()
    os._exit(0)


class Crew:
    """Several processes of one program that begin at the same time, each with its own job."""

    def __init__(self, module: str, crew: Sequence[Job]) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(dict(job))],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for job in crew
        ]

    def wait_until_ready(self) -> None:
        """Return when all processes are ready."""
        for process in self.processes:
            _line(process, "READY")

    def go(self) -> list[dict[str, float]]:
        """Start all processes, and return their answers."""
        self.tell("GO")
        return [json.loads(_line(process, ANSWER)) for process in self.processes]

    def tell(self, word: str) -> None:
        """Send a line to all processes."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(word + "\n")
            process.stdin.flush()

    def end(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.wait()


def wait_for_go() -> None:
    """Report that this process of a crew is ready, and wait until all are."""
    print("READY", flush=True)
    if not sys.stdin.readline():
        leave()


def _line(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
        print(line, end="", flush=True)
    raise JobFailed(f"a process of the crew ended with {process.wait()} before it said {beginning.strip()}")


# --- ways to measure ---


def in_threads(threads: int, seconds: float, once: Any) -> float:
    """Call ``once(number)`` in this many threads for this long; return the calls per second."""
    counts, spent = [0] * threads, [0.0] * threads
    ready = threading.Barrier(threads)

    def loop(mine: int) -> None:
        ready.wait()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            once(counts[mine])
            counts[mine] += 1
        spent[mine] = time.perf_counter() - began

    others = [threading.Thread(target=loop, args=(mine,), daemon=True) for mine in range(1, threads)]
    for thread in others:
        thread.start()
    loop(0)
    for thread in others:
        thread.join()
    return sum(count / time_ for count, time_ in zip(counts, spent, strict=True))


class Tally:
    """Counts what several processes have finished: one byte each at the end of a file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self) -> None:
        """Count one."""
        os.write(self._file, b".")

    def count(self) -> int:
        """Return the count."""
        return os.fstat(self._file).st_size

    def wait_for(self, wanted: int, patience: float = PATIENCE) -> float:
        """Wait for a count, and return when it was reached; raises JobFailed after ``patience`` seconds."""
        count, at = self.wait_until(wanted, patience)
        if count < wanted:
            raise JobFailed(f"only {count} of {wanted} were finished after {patience:.0f} s")
        return at

    def wait_until(self, wanted: int, most: float) -> tuple[int, float]:
        """Wait for a count, ``most`` seconds at the longest; return the count and the time."""
        until = time.perf_counter() + most
        while (count := self.count()) < wanted and time.perf_counter() < until:
            time.sleep(0.005)
        return count, time.perf_counter()
