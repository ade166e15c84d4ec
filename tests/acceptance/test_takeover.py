"""Claims about deaths: noticed long before the lease is over, counted apart, and a killer ends up before a person."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from sqlalchemy import select

import aft
from aft.store.tables import workers
from tests.acceptance import deaths
from tests.setups import Setup, eventually

#: Seconds for a process to start and take a run, on a busy machine.
PATIENCE = 60.0

ROOT = Path(__file__).parents[2]
#: So long that no test could wait for it: whoever is taken over here was seen to be dead.
LEASE = "10m"


@contextmanager
def dispatcher_process(setup: Setup, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real dispatcher process, which may be killed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AFT_")}
    given = {f"AFT_{name.upper()}": value for name, value in settings.items()}
    environ = clean | {"PYTHONPATH": str(ROOT), "AFT_LEASE": LEASE} | setup.environ() | given
    command = [sys.executable, "-m", "aft", "dispatcher", "tests.acceptance.deaths"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def visitors(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def lease_of(app: aft.Aft, run: aft.Run) -> datetime:
    """When the lease of a run's worker is over."""
    statement = select(workers.c.expires_at).where(workers.c.id == run.row.worker_id)
    with app.store.read() as connection:
        found: datetime = connection.execute(statement).scalar_one()
    return found


def has_ended_or_parked(process: subprocess.Popen[bytes], run: aft.Run) -> bool:
    return process.poll() is not None or run.status == "parked"


def test_a_killed_worker_s_run_goes_on_elsewhere_long_before_its_lease_is_over(setup: Setup, tmp_path: Path) -> None:
    app, file = setup.app(lease=LEASE), tmp_path / "visitors"
    with dispatcher_process(setup) as process:
        run = app.submit(deaths.lingering, str(file))
        eventually(lambda: visitors(file), within=PATIENCE)
        with app.dispatcher():
            process.kill()
            assert run.result(60) == f"second was {os.getpid()}"
    assert visitors(file) == [process.pid, os.getpid()]
    assert [(fault.kind, fault.state) for fault in app.faults()] == [("abort", "resolved")]


def test_a_paused_worker_keeps_its_runs_until_its_lease_is_over(setup: Setup, tmp_path: Path) -> None:
    app, file = setup.app(), tmp_path / "visitors"
    with dispatcher_process(setup, lease="8s") as process:
        run = app.submit(deaths.lingering, str(file))
        eventually(lambda: visitors(file), within=PATIENCE)
        with app.store.write():  # a process that is paused while it writes would keep SQLite from everybody
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # the call before tells it to stop; now all its threads have
        expires_at = lease_of(app, run)
        with app.dispatcher():
            assert run.result(60) == f"second was {os.getpid()}"
        assert run.row.ended_at is not None
        assert run.row.ended_at >= expires_at  # both by the database's clock


def test_a_stopped_worker_gives_its_runs_back_and_nothing_is_counted(setup: Setup, tmp_path: Path) -> None:
    app, file = setup.app(lease=LEASE), tmp_path / "visitors"
    with dispatcher_process(setup) as process:
        run = app.submit(deaths.harmless, str(file))
        eventually(lambda: visitors(file), within=PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with app.dispatcher():
        assert run.result(60) == "done"
    assert app.faults() == []


def test_a_run_that_kills_its_workers_is_isolated_then_parked_and_its_neighbours_complete(
    production: Setup, tmp_path: Path
) -> None:
    setup, app = production, production.app(lease=LEASE)
    killer = app.submit(deaths.killing, str(tmp_path / "killer"))
    others = [app.submit(deaths.harmless, str(tmp_path / f"other{number}")) for number in range(3)]
    processes = 0
    deadline = time.monotonic() + 600
    while killer.status != "parked" and time.monotonic() < deadline:
        processes += 1
        with dispatcher_process(setup) as process:
            eventually(partial(has_ended_or_parked, process, killer), within=PATIENCE)
    assert killer.status == "parked"
    assert "died 5 times in a row, 3 times while it executed nothing else" in (killer.row.reason or "")
    with app.dispatcher():
        assert [other.result(60) for other in others] == ["done"] * 3
    assert len(visitors(tmp_path / "killer")) == 5


def test_code_that_kills_its_process_after_an_activity_repeats_that_at_most_once(
    production: Setup, tmp_path: Path
) -> None:
    file = tmp_path / "visitors"
    killer = production.app(lease=LEASE).submit(deaths.killing_after, str(file))
    for _ in range(3):
        with dispatcher_process(production) as process:
            process.wait(PATIENCE)
    assert killer.status == "running"
    assert 1 <= len(visitors(file)) <= 2
