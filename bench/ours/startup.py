"""Measures ``aft --help`` with compiled bytecode, against an interpreter that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench import jobs

TIMES = 9


def seconds(*command: str) -> float:
    """Return the median duration of several starts, after one that compiles."""
    subprocess.run(command, check=True, capture_output=True)
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Run the job of this program."""
    arguments = ["-c", "pass"] if jobs.given().get("bare") else ["-m", "aft", "--help"]
    jobs.answer({"start": 1000 * seconds(sys.executable, *arguments)})


if __name__ == "__main__":
    main()
