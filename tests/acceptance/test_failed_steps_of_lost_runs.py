"""A worker dies right after an effect; what a person orders about that step then leaves no effect without its undo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aft
from aft.runs.records import inbox
from tests.acceptance.commands import PATIENCE
from tests.setups import Setup, eventually


def note(what: str, cents: int) -> int:
    """Write down what happens; tell how much was written before."""
    file = Path(os.environ["BILLS"]) / "log"
    before = len(file.read_text().splitlines()) if file.exists() else 0
    with file.open("a") as log:
        log.write(f"{what} {cents}\n")
    return before


def give_back(cents: int) -> None:
    note("back", cents)


@aft.compensate_with(give_back)
@aft.activity(name="lost_step_take", levels=["1s*3", "1h"])
def take(cents: int) -> int:
    if aft.current().attempt == 1:
        raise aft.Recoverable("later")
    if note("taken", cents) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return cents


@aft.activity(name="lost_step_close", unrecoverable=(ValueError,))
def close() -> None:
    raise ValueError("closed")


@aft.flow(name="lost_step_taking")
def taking(cents: int) -> None:
    take(cents)
    close()


def start(setup: Setup, folder: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **setup.environ(), "BILLS": str(folder), "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen([sys.executable, "-m", "aft", "dispatcher", __name__], env=environ)


ORDERS: dict[str, Callable[[aft.Run[Any]], None]] = {
    "complete": lambda run: run.force_complete(850, note="by hand"),
    "fail": lambda run: run.force_fail(note="by hand"),
    "retry": lambda run: run.retry(args={"cents": 850}, note="by hand"),
}


@pytest.mark.parametrize("verb", ORDERS)
def test_an_order_about_a_step_that_a_lost_worker_executed_is_refused_and_the_effect_is_undone(
    setup: Setup, tmp_path: Path, verb: str
) -> None:
    run = setup.app().submit(taking, 7)
    assert start(setup, tmp_path).wait(PATIENCE) == -signal.SIGKILL
    ORDERS[verb](run)
    second = start(setup, tmp_path)
    eventually(lambda: run.status.ended)
    second.terminate()
    second.wait(PATIENCE)
    assert run.status == "compensated"
    assert (tmp_path / "log").read_text().splitlines() == ["taken 7", "taken 7", "back 7"]
    with setup.apps[0].store.read() as connection:
        (refused,) = [item.note for item in inbox.of_run(connection, run.id) if item.verb == verb]
    assert "a worker of the run was lost" in str(refused)
