"""How long does ``aft --help`` take, with compiled bytecode? Against an interpreter that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench import jobs

TIMES = 9


def seconds(*command: str) -> float:
    """The median of several starts, after one that compiles."""
    subprocess.run(command, check=True, capture_output=True)
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Do the job."""
    arguments = ["-c", "pass"] if jobs.given().get("bare") else ["-m", "aft", "--help"]
    jobs.answer({"start": 1000 * seconds(sys.executable, *arguments)})


if __name__ == "__main__":
    main()
