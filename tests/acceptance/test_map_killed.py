"""A worker dies while it executes an item of a map, and an item before that one is in its ladder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import aft
from tests.acceptance.commands import PATIENCE
from tests.setups import Setup, eventually


def note(what: str, item: int) -> None:
    with (Path(os.environ["BILLS"]) / "log").open("a") as log:
        log.write(f"{what} {item}\n")


def bill(item: int, *, ends: bool) -> int:
    if item == 0 and aft.current().attempt == 1:
        raise aft.Recoverable("later")
    if item == 0 and ends:
        raise ValueError("never")
    note("billed", item)
    killed = Path(os.environ["BILLS"]) / "killed"
    if item == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def take_back(item: int) -> None:
    note("taken back", item)


@aft.compensate_with(take_back)
@aft.activity(name="map_killed_bill", levels=["1s"])
def bill_or_fail(item: int) -> int:
    return bill(item, ends=True)


def was_billed(item: int) -> int | None:
    note("asked", item)
    return item if item == 1 else None


@aft.activity(name="map_killed_bill_once", levels=["1s"], probe=was_billed)
def bill_once(item: int) -> int:
    return bill(item, ends=False)


@aft.flow(name="map_killed_billing")
def billing(count: int) -> list[int]:
    return aft.map(bill_or_fail, range(count), concurrency=1)


@aft.flow(name="map_killed_billing_once")
def billing_once(count: int) -> list[int]:
    return aft.map(bill_once, range(count), concurrency=1)


def is_over(process: subprocess.Popen[bytes], run: aft.Run[list[int]]) -> bool:
    return process.poll() is not None or run.status.ended


def execute(setup: Setup, folder: Path, flow: aft.Flow[[int], list[int]]) -> tuple[aft.Run[list[int]], list[str]]:
    """Have a run executed by a process that is killed, and by another one; returns what it noted."""
    environ = {**os.environ, **setup.environ(), "BILLS": str(folder), "PYTHONPATH": str(Path.cwd())}
    run = setup.app().submit(flow, 3)
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-m", "aft", "dispatcher", __name__], env=environ)
        eventually(partial(is_over, process, run))
        process.terminate()
        process.wait(PATIENCE)
    return run, (folder / "log").read_text().splitlines()


def test_an_effect_that_nobody_saw_is_undone_though_an_item_before_it_fails_for_good(
    setup: Setup, tmp_path: Path
) -> None:
    run, log = execute(setup, tmp_path, billing)
    assert run.status == "compensated"
    billed = {line.removeprefix("billed ") for line in log if line.startswith("billed")}
    assert "1" in billed
    assert sorted(line for line in log if line.startswith("taken back")) == sorted(f"taken back {n}" for n in billed)


def test_the_probe_is_asked_for_an_item_whose_end_nobody_saw_though_one_before_it_is_in_its_ladder(
    setup: Setup, tmp_path: Path
) -> None:
    run, log = execute(setup, tmp_path, billing_once)
    assert run.result(60) == [0, 1, 2]
    assert "asked 1" in log
    assert log.count("billed 1") == 1
