"""DBOS: durable workflows and steps on PostgreSQL, called directly; in one thread, or in two processes of several."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from dbos import DBOS

from bench import jobs
from bench.lateness import Attempts, come_in, summarize
from bench.takeovers import Notes, time_takeover

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
attempts = Attempts(job["file"] + ".attempts")


@DBOS.step(retries_allowed=True, max_attempts=FAILURES + 1, interval_seconds=job.get("wait") or 0.001, backoff_rate=1.0)
def fail() -> int:
    """Fail twice."""
    status = DBOS.step_status
    attempt = status.current_attempt if status is not None else None
    attempts.note(DBOS.workflow_id, (attempt or 0) + 1)
    if (attempt or 0) < FAILURES:
        raise ConnectionError("not now")
    return 1


@DBOS.workflow()
def failing() -> int:
    """One step that fails twice."""
    done: int = fail()
    return done


@DBOS.step()
def last_long() -> int:
    """Note the beginning; the first process to do so does not return for a long time."""
    Notes(job["file"] + ".notes").begin()
    return 1


@DBOS.workflow()
def lasting() -> int:
    """Call one long step."""
    done: int = last_long()
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


def measure_lateness(job: dict[str, Any]) -> dict[str, float]:
    """Return how late tries begin, against the failure before and the wait."""
    for handle in [DBOS.start_workflow(failing) for _ in range(WARM)]:
        handle.get_result()
    began, handles = time.time(), list[Any]()
    come_in(lambda: handles.append(DBOS.start_workflow(failing)), job["rate"], job["seconds"])
    for handle in handles:
        handle.get_result()
    return summarize(attempts.lateness(job["wait"], began))


def measure_takeover(job: dict[str, Any]) -> dict[str, float]:
    """Return the milliseconds until the work is begun again by a process that is started at once after the kill.

    Without its paid service, the workflows of a dead process are found by its next start only.
    """
    jobs.start({**job, "crew": True, "first": True}, "bench.peers.on_dbos")
    notes = Notes(job["file"] + ".notes")
    restart = partial(jobs.start, {**job, "crew": True}, "bench.peers.on_dbos")
    return {"takeover": 1000 * time_takeover(notes, parent_too=False, then=restart)}


def take_part(job: dict[str, Any]) -> None:
    """Be one of the processes of a takeover."""
    launch(job)
    if job.get("first"):
        lasting()
    time.sleep(jobs.PATIENCE)


def main() -> None:
    """Run the job of this program."""
    if job.get("kind") == "takeover":
        if job.get("crew"):
            take_part(job)
        jobs.answer(measure_takeover(job))
        jobs.leave()
    launch(job)
    if job.get("kind") == "lateness":
        jobs.answer(measure_lateness(job))
        jobs.leave()
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
