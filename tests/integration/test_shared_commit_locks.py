"""Claims about what shared commits must not do to others: no waiting for a locked row, for oneself, or for a parent."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from aft.errors import StoreError
from aft.ids import StepPath
from aft.runs import submit
from aft.runs.ownership.claims import BACKLOG, find_due
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import MOST_SHARED
from aft.runs.records import journal
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.store import Store
from aft.store.batch.committer import Committer
from aft.store.connect import MOST_DRIVERS
from aft.store.db_time import later
from tests.storing import KNOWN, Stage, recording


def outcome(value: str = "1") -> Entry:
    return Entry(StepPath("1"), "", EntryKind.ACTIVITY, "charge", Outcome.OK, datetime.now(UTC), value=value)


def test_a_run_that_somebody_has_locked_does_not_stop_the_others(postgres_stage: Stage) -> None:
    stage = postgres_stage
    lease = stage.lease()
    first, locked, *others = [stage.owned(lease) for _ in range(6)]
    first.write(recording(first, outcome()))
    made = list[object]()
    event.listen(stage.store._drivers, "connect", lambda connection, record: made.append(connection))
    url = stage.store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as somebody, ThreadPoolExecutor(5) as pool:
        somebody.execute("SELECT 1 FROM aft_runs WHERE id = %s FOR UPDATE", (locked.run_id,))
        waits = pool.submit(locked.write, recording(locked, outcome()))
        done = [pool.submit(owner.write, recording(owner, outcome())) for owner in others]
        assert [each.result(60) for each in done] == [None] * 4
        assert not waits.done()
        somebody.rollback()
        assert waits.result(60) is None
    assert made == []  # the connection that met the lock is still good


def test_texts_are_kept_whatever_encoding_the_surroundings_prefer(
    postgres_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = postgres_stage.store.engine.url.render_as_string(hide_password=False)
    store = Store(url)
    row, _ = submit.begin_alone(store, postgres_stage.new(args='{"name": "é"}'), postgres_stage.lease().worker)
    store.close()
    assert postgres_stage.row(row.id).args == '{"name": "é"}'


def test_many_threads_wait_for_a_few_connections_instead_of_making_more(postgres_stage: Stage) -> None:
    store, made = postgres_stage.store, list[object]()
    owners = [postgres_stage.owned(postgres_stage.lease()) for _ in range(40)]
    event.listen(store._drivers, "connect", lambda connection, record: made.append(connection))

    def write_and_ask(owner: Owner) -> int:
        owner.write(recording(owner, outcome()))
        return sum(len(owner.query([(journal.OF_RUNS, json.dumps([owner.run_id]))])[0]) for _ in range(20))

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(write_and_ask, owners)) == [20] * 40
    assert len(made) <= MOST_DRIVERS


def test_what_is_large_is_written_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, shared = stage.owned(stage.lease()), list[object]()
    real = stage.store.write_batch

    def write_deeds(*given: Any) -> Any:
        shared.append(given)
        return real(*given)

    monkeypatch.setattr(stage.store, "write_batch", write_deeds)
    owner.write(recording(owner, outcome("x" * (MOST_SHARED + 1))))
    assert shared == []
    with stage.store.read() as connection:
        assert len(journal.load(connection, owner.run_id)[0].value or "") == MOST_SHARED + 1


def test_a_write_inside_a_write_of_the_same_thread_is_refused_before_it_joins_anybody(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads may be waiting for this very thread's turn."""
    stage = sqlite_stage
    new, worker = stage.new(), stage.lease().worker
    monkeypatch.setattr(Committer, "commit", lambda *given: pytest.fail("it has joined"))
    with stage.store.write(), pytest.raises(StoreError, match="begun inside another one of the same thread"):
        submit.begin_alone(stage.store, new, worker)


FORKS = """
import os, signal, sys, threading
from aft.ids import RunId, WorkerId, new_id
from aft.runs import submit
from aft.runs.new_runs import NewRun
from aft.store import Store, schema

store = Store(sys.argv[1])
schema.check(store)
begun, real = threading.Event(), store.write_batch
def write_batch(*given):
    begun.set()
    threading.Event().wait()
store.write_batch = write_batch
make = lambda: submit.begin_alone(store, NewRun(RunId(new_id()), "n", "order", 1, "{}"), WorkerId("w"))
threading.Thread(target=make, daemon=True).start()
begun.wait()
if (child := os.fork()) == 0:
    signal.alarm(20)
    store.write_batch = real
    os._exit(0 if make()[1] else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_wait_for_a_commit_of_its_parent(migrated_url: str) -> None:
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS, migrated_url], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("due", "sweep", "patient", "taken"),
    [
        (-2.0, -1.0, False, True),
        (-2.0, -1.0, True, False),  # its message may be on its way
        (-1.0, -1.0, True, True),  # its time is the timer's alone
        (-BACKLOG - 9.0, -BACKLOG - 4.0, True, True),  # no backlog explains that
    ],
)
def test_while_messages_flow_the_timer_takes_only_what_they_do_not_bring(
    stage: Stage, due: float, sweep: float, patient: bool, taken: bool
) -> None:
    row = stage.queued()
    stage.change(row.id, due_at=later(due), sweep_at=later(sweep))
    with stage.store.write() as connection:
        found = find_due(connection, stage.namespace, KNOWN, 10, patient=patient)
    assert [run for run, _ in found] == [row.id] * taken
