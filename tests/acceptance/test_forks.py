"""A process that user code forks, and forgets to end, does nothing for its parent's runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.setups import Setup

SCRIPT = """
    import asyncio, os, sys, time, warnings
    from pathlib import Path
    import aft

    warnings.simplefilter("ignore")  # Python warns of a fork beside threads: that is what is tried here
    ledger = Path(sys.argv[1])

    def write(line):
        with ledger.open("a") as file:
            file.write(f"{line}\\n")

    @aft.activity
    def fork(where: str) -> None:
        os.fork()

    @aft.activity(timeout="60s")
    def fork_in_time(where: str) -> None:
        os.fork()

    @aft.activity
    async def fork_async(where: str) -> None:
        os.fork()
        await asyncio.sleep(0)

    @aft.activity
    async def tick(where: str) -> None:
        while not ledger.with_suffix(".done").exists():
            write(f"tick {os.getpid()}")
            await asyncio.sleep(0.01)

    def forks(where: str, result: None) -> bool:
        os.fork()
        return False

    def undo(where: str) -> None:
        pass

    @aft.compensate_with(undo, only_if=forks)
    @aft.activity
    def fork_in_only_if(where: str) -> None:
        pass

    @aft.activity
    def note(where: str) -> None:
        write(f"note {where}")

    @aft.flow
    def forking(where: str) -> str:
        ways = {"plain": fork, "in time": fork_in_time, "async": fork_async, "only if": fork_in_only_if}
        ways.get(where, note)(where)
        if where == "flow":
            os.fork()
        note(where)
        return where

    @aft.flow
    def ticking(where: str) -> None:
        tick(where)

    app = aft.Aft.from_env()
    with app.dispatcher(concurrency=2):
        beside = app.submit(ticking, "")
        while not ledger.exists():
            time.sleep(0.01)
        for where in ("plain", "in time", "async", "only if", "flow"):
            write(f"completed {app.submit(forking, where).result(60)}")
        ledger.with_suffix(".done").touch()
        beside.result(60)
    app.close()
    write("closed")
"""


def test_a_child_that_returns_from_user_code_ends_there(setup: Setup, tmp_path: Path) -> None:
    script, ledger = tmp_path / "forks.py", tmp_path / "ledger"
    script.write_text(textwrap.dedent(SCRIPT))
    setup.app().check()
    with subprocess.Popen([sys.executable, script, ledger], env={**os.environ, **setup.environ()}) as process:
        assert process.wait(120) == 0
    lines = ledger.read_text().splitlines()
    assert {line for line in lines if line.startswith("tick")} == {f"tick {process.pid}"}
    noted = sorted(line for line in lines if line.startswith("note"))
    assert noted == ["note async", "note flow", "note flow", "note in time", "note only if", "note plain"]
    assert sorted(line for line in lines if line.startswith("completed")) == [
        f"completed {where}" for where in ("async", "flow", "in time", "only if", "plain")
    ]
    assert lines.count("closed") == 1
