"""A COMMIT whose answer is lost, at each moment of a run's life: it happened, nobody knows. Nothing is done twice."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, PoolProxiedConnection, event, select

import aft
from aft.errors import StoreError
from aft.runs.new_runs import NewRunWrite
from aft.runs.ownership.owner_writes import FencedWrite
from aft.runs.states import Status
from aft.store import Store
from aft.store.batch.statements import PreparedQuery
from aft.store.tables import runs
from tests.setups import Setup, eventually
from tests.world import ledger


class Declined(aft.Unrecoverable):
    """For good."""


def refund(order: str) -> None:
    ledger[order].append("refund")


@aft.compensate_with(refund)
@aft.activity(name="unanswered_charge")
def charge(order: str) -> None:
    ledger[order].append("charge")


@aft.activity(name="unanswered_flaky", levels=["20ms"])
def flaky(order: str) -> None:
    ledger[order].append("flaky")
    if ledger[order].count("flaky") == 1:
        raise ConnectionError("try again")


@aft.activity(name="unanswered_decline", levels=[])
def decline(order: str) -> None:
    raise Declined(order)


@aft.flow(name="unanswered")
def journey(order: str) -> None:
    charge(order)
    flaky(order)
    decline(order)


#: What a deed holds instead of a statement.
HELD: dict[str, Callable[[Any], bool]] = {
    "INSERT INTO aft_journal": lambda item: isinstance(item, FencedWrite) and item.write.entry is not None,
    "INSERT INTO aft_faults": lambda item: isinstance(item, FencedWrite) and item.write.fault is not None,
    "UPDATE aft_frames": lambda item: isinstance(item, FencedWrite) and item.write.undone is not None,
    "SET state = 'resolved'": lambda item: isinstance(item, FencedWrite) and item.write.ends,
    "INSERT INTO aft_runs": lambda item: isinstance(item, NewRunWrite),
    "why=": lambda item: isinstance(item, dict) and "why" in item,
    "DELETE FROM aft_outbox": lambda item: isinstance(item, int),
}


class Line:
    """The line to the database; loses the answer to the first COMMIT of a transaction that held a certain statement."""

    def __init__(self, store: Store, statement: str) -> None:
        self._dialect = store.engine.dialect
        self._real = self._dialect.do_commit
        self._statement = statement
        self._marked: set[int] = set()
        self.lost = 0

    def notice(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if self._statement in statement and not self.lost:
            self._marked.add(id(connection.connection.dbapi_connection))

    def write_deeds(self, real: Any, lent: PoolProxiedConnection, deed: Any, items: Any) -> Any:
        answers = real(lent, deed, items)
        if not self.lost and any(HELD[self._statement](item) for item in items if self._statement in HELD):
            self.lost += 1
            lent.invalidate()
            raise StoreError("the answer was lost", transient=True)
        return answers

    def tell(self, real: Any, words: PreparedQuery, given: str) -> Any:
        answer = real(words, given)
        if not self.lost and answer and self._statement in words.sqlite:
            self.lost += 1
            raise StoreError("the answer was lost", transient=True)
        return answer

    def forget(self, connection: Connection) -> None:
        self._marked.discard(id(connection.connection.dbapi_connection))

    def commit(self, pooled: Any) -> None:
        self._real(pooled)
        connection = pooled.dbapi_connection
        if id(connection) in self._marked and not self.lost:
            self.lost += 1
            if isinstance(connection, sqlite3.Connection):
                raise sqlite3.OperationalError("disk I/O error: the answer was lost")
            connection.close()
            raise psycopg.OperationalError("the answer was lost")


@contextmanager
def losing_the_answer_to(store: Store, statement: str) -> Iterator[Line]:
    line = Line(store, statement)
    dialect = store.engine.dialect
    real = dialect.do_commit
    event.listen(store.engine, "before_cursor_execute", line.notice)
    dialect.do_commit = line.commit  # type: ignore[assignment, method-assign]
    event.listen(store.engine, "rollback", line.forget)
    real_deeds, real_tell = store.write_batch, store.execute
    store.write_batch = partial(line.write_deeds, real_deeds)  # type: ignore[method-assign]
    store.execute = partial(line.tell, real_tell)  # type: ignore[method-assign]
    try:
        yield line
    finally:
        dialect.do_commit = real  # type: ignore[method-assign]
        store.write_batch, store.execute = real_deeds, real_tell  # type: ignore[method-assign]
        event.remove(store.engine, "rollback", line.forget)
        event.remove(store.engine, "before_cursor_execute", line.notice)


@pytest.fixture(params=["sqlite", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path: Path, quick_beats: float) -> Iterator[aft.Aft]:
    sqlite = f"sqlite:///{tmp_path / 'aft.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    with Setup(request.param, url, "embedded").app(lease=quick_beats, grace="300ms") as made:
        made.check()
        yield made


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("coalesce(r.started_at", id="claim"),
        pytest.param("INSERT INTO aft_journal", id="record"),
        pytest.param("INSERT INTO aft_faults", id="fault"),
        pytest.param("why=", id="decision"),
        pytest.param("DELETE FROM aft_outbox", id="confirm"),
        pytest.param("UPDATE aft_frames", id="undo"),
        pytest.param("SET state = 'resolved'", id="end"),
    ],
)
def test_an_answer_that_is_lost_changes_nothing_that_a_run_does(app: aft.Aft, statement: str) -> None:
    order = secrets.token_hex(4)
    with losing_the_answer_to(app.store, statement) as line, app.dispatcher():
        run = app.submit(journey, order)
        eventually(lambda: run.status.ended)
        eventually(lambda: line.lost)
    assert run.status is Status.COMPENSATED
    assert ledger[order] == ["charge", "flaky", "flaky", "refund"]


@pytest.mark.parametrize("begin", ["submit", "start"])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_run_whose_making_had_no_answer_is_made_once(app: aft.Aft, begin: str, keyed: bool) -> None:
    order = secrets.token_hex(4)
    flow = journey.options(key=order) if keyed else journey
    with app.dispatcher():
        with losing_the_answer_to(app.store, "INSERT INTO aft_runs") as line:
            run = getattr(app, begin)(flow, order)
        assert line.lost
        eventually(lambda: run.status.ended)
    with app.store.read() as connection:
        made = connection.execute(select(runs.c.id).where(runs.c.namespace == app.namespace)).all()
    assert len(made) == 1
    assert ledger[order] == ["charge", "flaky", "flaky", "refund"]
