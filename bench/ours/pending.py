"""Measures the memory that pending retries cost a dispatcher and the broker."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from aft.durations import parse
from bench import jobs, seed
from bench.ours.harness import NAMESPACE, clean, make_app, remove_queues

#: Seconds in which a process comes to rest.
REST = 5.0
_MEGABYTE = 1024 * 1024


def resident(pid: int) -> float:
    """Return the megabytes that a process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / _MEGABYTE
    return 0.0


def broker_resident() -> float | None:
    """Return the megabytes of the largest Erlang process on this machine; None if there is none."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "comm").read_text().startswith("beam"):
                found.append(resident(int(path.name)))
        except OSError:
            continue  # it has ended meanwhile
    return max(found, default=None)


def queues_resident(broker: str) -> float | None:
    """Return the megabytes of our vhost's queues, as the broker counts them; None if it cannot be asked."""
    vhost = urlsplit(broker).path.removeprefix("/") or "/"
    command = ["rabbitmqctl", "--quiet", "list_queues", "-p", vhost, "memory", "--no-table-headers"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(int(line) for line in said.split()) / _MEGABYTE


def main() -> None:
    """Run the job of this program: measure before and after the retries are seeded."""
    job = jobs.given()
    with make_app(job) as app:
        clean(job, app)
        topology = app.delays().declare([*app.waits(), parse("1h")])
        crew = jobs.Crew("bench.ours.dispatcher", [job])
        crew.wait_until_ready()
        crew.tell("GO")
        pid = crew.processes[0].pid
        time.sleep(REST)
        before, broker_before = resident(pid), broker_resident()
        began = time.perf_counter()
        seed.pending(job["database"], app.broker, NAMESPACE, job["count"])
        spent = time.perf_counter() - began
        time.sleep(REST)
        after, broker_after = resident(pid), broker_resident()
        queues = queues_resident(job["broker"])
        crew.end()
        remove_queues(job["broker"], topology)
        figures = {"before": before, "after": after, "growth": after - before, "seeding": job["count"] / spent}
        if broker_before is not None and broker_after is not None:
            figures |= {"broker": broker_after - broker_before, "broker after": broker_after}
        if queues is not None:
            figures["queues"] = queues
        jobs.answer(figures)
        clean(job, app)


if __name__ == "__main__":
    main()
