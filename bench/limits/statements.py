"""The same rows without aft: prepared psycopg statements on aft's own tables, in autocommit.

``one``: a flow is an insert of its row, one guarded statement for each activity (the row moves on, its outcome is
journaled, its frame pushed: one CTE), and the end. ``batches``: the same for several flows at once, as a group
committer would write them. ``submit``: a run and its message. ``commits``: the smallest write there is.
"""

from __future__ import annotations

from typing import Any

import psycopg

from aft.ids import new_id
from bench import jobs

_BEGIN = """
INSERT INTO aft_runs (id, namespace, flow, version, args, status, root_id, epoch, worker_id, created_at, started_at,
                      updated_at)
SELECT id, 'limits', 'happy', 1, '{"steps":3}', 'running', id, 1, 'nobody', statement_timestamp(),
       statement_timestamp(), statement_timestamp()
FROM unnest(%s::text[]) AS id
"""
_ACTIVITY = """
WITH guard AS (
    UPDATE aft_runs SET seq = aft_runs.seq + 1, updated_at = statement_timestamp(), deaths = 0, deaths_alone = 0
    FROM unnest(%s::text[]) AS given
    WHERE aft_runs.id = given AND epoch = 1 AND worker_id = 'nobody' AND aft_runs.seq = %s
    RETURNING aft_runs.id, aft_runs.seq, inbox_seq
), kept AS (
    INSERT INTO aft_journal (run_id, path, seq, scope, kind, name, outcome, args, value, attempts, epoch, recorded_at)
    SELECT id, %s, seq, '', 'activity', 'step', 'ok', '{"number":1}', '1', 1, 1, statement_timestamp() FROM guard
) %s SELECT inbox_seq FROM guard
"""
_FRAME = """, owed AS (
    INSERT INTO aft_frames (run_id, seq, path, scope, activity, compensator, state, pushed_at)
    SELECT id, seq, %s, '', 'owed_step', 'bench.ours.flows.undo', 'owed', statement_timestamp() FROM guard
)"""
_END = """
UPDATE aft_runs SET seq = seq + 1, status = 'completed', result = '3', worker_id = NULL,
       ended_at = statement_timestamp(), updated_at = statement_timestamp()
WHERE id = ANY(%s::text[]) AND epoch = 1 AND worker_id = 'nobody' AND seq = %s
"""
_SUBMIT = """
WITH made AS (
    INSERT INTO aft_runs (id, namespace, flow, version, args, status, root_id, wake_id, due_at, sweep_at, created_at,
                          updated_at)
    VALUES (%(run)s, 'limits', 'happy', 1, '{"steps":1}', 'running', %(run)s, %(order)s, statement_timestamp(),
            statement_timestamp() + interval '5s', statement_timestamp(), statement_timestamp())
)
INSERT INTO aft_outbox (namespace, queue, body, taken_until) VALUES ('limits', 'limits.resume', %(body)s,
                                                                     statement_timestamp())
"""


class Raw:
    """Writes the rows of flows in batches of a certain size, on one connection."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.connection = psycopg.connect(job["database"], autocommit=True, prepare_threshold=0)
        self.steps: int = job.get("steps", 3)
        self.batch: int = job.get("batch", 1)
        self.owing = bool(job.get("owing"))
        activity = _ACTIVITY.replace(") %s SELECT", f") {_FRAME if self.owing else ''} SELECT")
        # One run alone is looked up by its id: the shortest way there is.
        self._begin, self._activity, self._end = (
            text if self.batch > 1 else text.replace(many, one)
            for text, many, one in (
                (_BEGIN, "unnest(%s::text[]) AS id", "(VALUES (%s::text)) AS given (id)"),
                (
                    activity,
                    "\n    FROM unnest(%s::text[]) AS given\n    WHERE aft_runs.id = given",
                    "\n    WHERE id = %s",
                ),
                (_END, "id = ANY(%s::text[])", "id = %s"),
            )
        )

    def flow(self, number: int = 0) -> None:
        """Write the rows of a flow for each run of the batch."""
        ids = [new_id() for _ in range(self.batch)]
        which = ids if self.batch > 1 else ids[0]
        self._execute(self._begin, which)
        for seq in range(self.steps):
            path = str(seq + 1)
            self._execute(self._activity, which, seq, path, *((path,) if self.owing else ()))
        self._execute(self._end, which, self.steps)

    def _execute(self, statement: str, *values: object) -> None:
        self.connection.execute(statement.encode(), values)

    def submit(self, number: int) -> None:
        """Write the rows of a submit."""
        run, order = new_id(), new_id()
        body = f'{{"v":1,"id":"{order}","kind":"resume","run":"{run}","order":"{order}","at":"2026-01-01T00:00:00Z"}}'
        self.connection.execute(_SUBMIT.encode(), {"run": run, "order": order, "body": body})

    def commit(self, number: int) -> None:
        """Write the smallest row."""
        self._execute("INSERT INTO bench_commits (number) VALUES (%s)", number)


def prepare(job: dict[str, Any]) -> None:
    """Empty the tables."""
    with psycopg.connect(job["database"], autocommit=True) as connection:
        connection.execute("TRUNCATE aft_runs, aft_journal, aft_frames, aft_outbox CASCADE")
        connection.execute("CREATE TABLE IF NOT EXISTS bench_commits (number bigint)")
        connection.execute("TRUNCATE bench_commits")


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Run the job on one connection, and return the rate."""
    raw = Raw(job)
    if job.get("way") == "commits":
        return {"commits": jobs.in_threads(1, job["seconds"], raw.commit)}
    if job.get("way") == "submit":
        return {"submits": jobs.in_threads(1, job["seconds"], raw.submit)}
    raw.flow()
    rate = jobs.in_threads(1, job["seconds"], raw.flow) * raw.batch
    return {"flows": rate, "activity": 1e6 / rate / raw.steps}


def main() -> None:
    """Run the job of this program, alone or in several processes."""
    job = jobs.given()
    if job.get("crew"):
        jobs.wait_for_go()
        jobs.answer(measure(job))
        return
    prepare(job)
    if job.get("processes", 1) == 1:
        jobs.answer(measure(job))
        return
    crew = jobs.Crew("bench.limits.statements", [{**job, "crew": True}] * job["processes"])
    crew.wait_until_ready()
    answers = crew.go()
    jobs.answer({name: sum(answer[name] for answer in answers) for name in ("flows", "commits") if name in answers[0]})


if __name__ == "__main__":
    main()
