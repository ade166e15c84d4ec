"""Commands that run in processes of their own, and waiting for what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aft

REPOSITORY = Path(aft.__file__).parent.parent
#: Seconds that anything awaited here may take on a busy machine.
PATIENCE = 180.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.02)


class Dispatcher:
    """``aft dispatcher`` as a process of its own; what it says is collected."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AFT_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aft", *arguments],
            env={**environment, "PYTHONPATH": str(REPOSITORY), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def until_it_says(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None, f"{text!r} in {self.said}")
        assert text in self.said, self.said

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def status(self) -> int:
        found = self.process.wait(PATIENCE)
        self._reader.join()
        return found

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.lines.extend(iter(stderr.readline, ""))

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.status()
