"""Flows that outlive, or kill, the processes that execute them; loaded by real dispatcher processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import aft


def note(file: str) -> int:
    """Write down who is here, on a line; tell how many were before."""
    path = Path(file)
    before = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    return before


@aft.activity
def linger(file: str) -> str:
    """The first one who comes stays for good; the second goes on."""
    if note(file) == 0:
        time.sleep(600)
    return f"second was {os.getpid()}"


@aft.flow
def lingering(file: str) -> str:
    return linger(file)


@aft.activity
def kill(file: str) -> None:
    """End the process, whoever it is."""
    note(file)
    os.kill(os.getpid(), signal.SIGKILL)


@aft.flow
def killing(file: str) -> None:
    kill(file)


@aft.activity
def mind_own_business(file: str) -> str:
    """Do something harmless that takes a while."""
    note(file)
    time.sleep(1)
    return "done"


@aft.flow
def harmless(file: str) -> str:
    return mind_own_business(file)


@aft.activity
def visit(file: str) -> None:
    """Do something quick that nobody may do often."""
    note(file)


@aft.flow
def killing_after(file: str) -> None:
    """The flow's own code kills its process, at once after an activity."""
    visit(file)
    os.kill(os.getpid(), signal.SIGKILL)
