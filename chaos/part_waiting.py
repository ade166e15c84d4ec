"""A part: measures what a hundred thousand waiting runs cost, and how soon a signal wakes one of them."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

import aft
from aft.ids import RunId, StepPath
from aft.runs import waits
from aft.runs.waits import Wait, WaitKind
from aft.store import Store
from aft.store.db_time import now
from aft.store.tables import runs
from chaos.fleet import Fleet
from chaos.load import patient
from chaos.results import Context, Progress, Result
from chaos.setups import Site, private
from chaos.takeover import percentiles
from tests.setups import eventually

RUNS, SIGNALS = 100_000, 300
COMBINATIONS = ("postgresql+rabbitmq", "sqlite+embedded")
#: Seconds for which the processes are watched while nothing happens.
IDLE = 30.0
#: Rows that are written at a time.
BATCH = 5_000
#: The growth of a process's memory that is too much, in bytes, and the median that is, in seconds.
MOST_GROWTH, MOST_MEDIAN = 50_000_000, 0.1


def run(ctx: Context) -> Result:
    """Run the part on both set-ups."""
    begun = time.monotonic()
    figures: dict[str, Any] = {}
    violations: list[str] = []
    wanted, signals = ctx.size(RUNS, 2_000), ctx.size(SIGNALS, 20)
    for combination in COMBINATIONS:
        with private(combination, ctx.directory / combination, lease="10s") as site:
            found = watch(site, wanted, signals, ctx.size(int(IDLE), 3), ctx.seed, ctx.progress)
        figures |= {f"{name}, {combination}": figure for name, figure in found.items()}
        if found["growth of memory in MB"] * 1e6 > MOST_GROWTH:
            violations.append(f"{combination}: a process grew by {found['growth of memory in MB']} MB")
        if found["from signal to activity"]["p50"] > MOST_MEDIAN:
            violations.append(f"{combination}: a signal woke its run after {found['from signal to activity']['p50']} s")
    total = len(COMBINATIONS) * wanted
    return Result("waiting", ctx.seed, total, {}, violations, round(time.monotonic() - begun, 1), figures)


def watch(site: Site, wanted: int, signals: int, idle: float, seed: int, progress: Progress) -> dict[str, Any]:
    """Seed ``wanted`` waiting runs, measure the processes, and signal some runs."""
    draw = random.Random(f"waiting {seed}")
    roles = ["relay", "intake", "sweep", "work"]
    with Fleet(site.environ(), [roles, roles], site.log) as fleet, site.app() as app:
        fleet.start()
        before = [fleet.memory(index) for index in range(2)]
        seed_waiting(app.store, site, wanted)
        used = [_seconds_used(fleet, index) for index in range(2)]
        time.sleep(idle)
        cpu = sum(_seconds_used(fleet, index) - used[index] for index in range(2)) / 2 / idle
        took = []
        for place, number in enumerate(draw.sample(range(1, wanted + 1), signals)):
            took.append(_wake(app, site, number))
            progress(place, signals, f"signals, {site.name}")
        after = [fleet.memory(index) for index in range(2)]
        fleet.stop()
    growth = max(last - first for first, last in zip(before, after, strict=True))
    return {
        "runs that waited": wanted,
        "growth of memory in MB": round(growth / 1e6, 1),
        "processor while idle in %": round(100 * cpu, 2),
        "from signal to activity": percentiles(took),
    }


def _wake(app: aft.Aft, site: Site, number: int) -> float:
    sent = time.monotonic()
    aft.Run(app, RunId(f"{site.namespace}-{number}")).signal("verdict", sent)
    found = eventually(partial(_find, site, f"waiting-{number}"), within=30)
    return float(found.at - sent)


def _find(site: Site, load: str) -> Any:
    return next((line for line in site.ledger.read() if line.load == load), None)


def _seconds_used(fleet: Fleet, index: int) -> float:
    fields = Path(f"/proc/{fleet.seats[index].pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seed_waiting(store: Store, site: Site, count: int) -> None:
    """Insert runs as if each had been executed up to its wait."""
    encoded = patient.arguments.encode(patient.arguments.bind(("waiting-0",), {}))
    before, _, after = encoded.partition("waiting-0")
    with store.write() as connection:
        here = connection.execute(select(now())).scalar_one()
        same = {
            "namespace": site.namespace,
            "flow": patient.name,
            "version": 1,
            "status": "waiting",
            "waits": waits.encode([Wait(StepPath("1"), WaitKind.SIGNAL, "verdict", here)]),
            "epoch": 1,
            "seq": 1,
            "created_at": here,
            "started_at": here,
            "updated_at": here,
        }
        for first in range(1, count + 1, BATCH):
            numbers = range(first, min(first + BATCH, count + 1))
            rows = [{**same, "args": f"{before}waiting-{n}{after}", **_ids(site, n)} for n in numbers]
            connection.execute(insert(runs), rows)


def _ids(site: Site, number: int) -> dict[str, str]:
    run_id = f"{site.namespace}-{number}"
    return {"id": run_id, "root_id": run_id, "wake_id": f"{run_id}-wake"}
