"""DBOS: durable workflows and steps on PostgreSQL, called directly; in one thread, or in two processes of several."""

from __future__ import annotations

import time
from typing import Any

from dbos import DBOS

from bench import jobs

#: How often each activity of the fault path fails.
FAILURES = 2
#: Workflows that warm it up.
WARM = 10


@DBOS.step()
def step(number: int) -> int:
    """Return at once."""
    return number


@DBOS.workflow()
def happy(steps: int) -> int:
    """Call this many steps, one after the other."""
    return sum(step(number) for number in range(steps))


job = jobs.given()


@DBOS.step(retries_allowed=True, max_attempts=FAILURES + 1, interval_seconds=job.get("wait") or 0.001, backoff_rate=1.0)
def fail() -> int:
    """Fail twice."""
    status = DBOS.step_status
    attempt = status.current_attempt if status is not None else None
    if (attempt or 0) < FAILURES:
        raise ConnectionError("not now")
    return 1


@DBOS.workflow()
def failing() -> int:
    """One step that fails twice."""
    done: int = fail()
    return done


@DBOS.step()
def refuse() -> int:
    """Fail for good."""
    raise ValueError("no")


@DBOS.workflow()
def saga() -> int:
    """Call four steps, then one that fails; undo by hand, the last first."""
    done = []
    try:
        for number in range(4):
            done.append(step(number))
        refuse()
        return 0
    except ValueError:
        for number in reversed(done):
            step(number)
        return -1


def launch(job: dict[str, Any]) -> None:
    """Connect and migrate, with the system database on PostgreSQL, as the documentation says."""
    config: Any = {
        "name": "bench",
        "system_database_url": job["database"],
        "log_level": "ERROR",
        "run_admin_server": False,
    }
    DBOS(config=config)
    DBOS.launch()


def once(job: dict[str, Any]) -> None:
    """Run one workflow of the job's kind."""
    if job.get("kind") == "faults":
        failing()
    elif job.get("kind") == "saga":
        saga()
    else:
        happy(job["steps"])


def measure(job: dict[str, Any]) -> float:
    """Return the workflows per second in this process; with ``wait``, started in the background."""
    if job.get("wait"):
        began = time.perf_counter()
        handles = [DBOS.start_workflow(failing) for _ in range(job["count"] // job["processes"])]
        for handle in handles:
            handle.get_result()
        return len(handles) / (time.perf_counter() - began)
    return jobs.in_threads(job["threads"], job["seconds"], lambda number: once(job))


def main() -> None:
    """Run the job of this program."""
    launch(job)
    if job.get("crew"):
        if not job.get("wait"):
            once(job)
        jobs.wait_for_go()
        jobs.answer({"flows": measure(job)})
        jobs.leave()
    if not job.get("wait"):
        for _ in range(WARM):
            once(job)
    if job["processes"] == 1:
        rate = measure(job)
    else:
        crew = jobs.Crew("bench.peers.on_dbos", [{**job, "crew": True}] * job["processes"])
        crew.wait_until_ready()
        rate = sum(answer["flows"] for answer in crew.go())
    jobs.answer({"flows": rate, "faults": FAILURES * rate})
    jobs.leave()


if __name__ == "__main__":
    main()
