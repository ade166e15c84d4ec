"""Reads how much CPU processes have used, as the kernel reports it; only the standard library."""

from __future__ import annotations

import os
import threading
from pathlib import Path

#: How the kernel spells the state of a socket that listens.
_LISTENS = "0A"
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process has used; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def cpu_of_thread(pid: int) -> float:
    """Return the CPU seconds of a single-threaded process, to the nanosecond where the kernel has that."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return cpu_of(pid)


def cpu_of_own_threads() -> dict[str, float]:
    """Return the CPU seconds of each thread of this process that still lives; threads of one name count together."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        used = cpu_of_thread(thread.native_id or 0)
        found[thread.name] = found.get(thread.name, 0.0) + used
    return found


def busy() -> float:
    """Return the seconds of CPU that all processes of this machine have used, all processors together."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICK


def listening_at(port: int) -> int | None:
    """Return the process on this machine that listens at a port; None if there is none, or it is hidden."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(file.readlink()) in sockets:
                return int(file.parts[2])
        except OSError:
            continue
    return None
