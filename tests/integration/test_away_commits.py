"""A COMMIT whose answer is lost, at each moment of a run's life: it happened, nobody knows. Nothing is done twice."""

from __future__ import annotations

import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, select

import aft
from aft.errors import StoreError
from aft.runs.states import Status
from aft.store import Store
from aft.store.tables import runs
from tests.setups import Setup, eventually

did: dict[str, list[str]] = defaultdict(list)


class Declined(aft.Unrecoverable):
    """For good."""


def refund(order: str) -> None:
    did[order].append("refund")


@aft.compensate_with(refund)
@aft.activity(name="unanswered_charge")
def charge(order: str) -> None:
    did[order].append("charge")


@aft.activity(name="unanswered_flaky", levels=["20ms"])
def flaky(order: str) -> None:
    did[order].append("flaky")
    if did[order].count("flaky") == 1:
        raise ConnectionError("try again")


@aft.activity(name="unanswered_decline", levels=[])
def decline(order: str) -> None:
    raise Declined(order)


@aft.flow(name="unanswered")
def journey(order: str) -> None:
    charge(order)
    flaky(order)
    decline(order)


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
    try:
        yield line
    finally:
        dialect.do_commit = real  # type: ignore[method-assign]
        event.remove(store.engine, "before_cursor_execute", line.notice)


@pytest.fixture(params=["sqlite", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[aft.Aft]:
    sqlite = f"sqlite:///{tmp_path / 'aft.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    with Setup(request.param, url, "embedded").app(lease="1500ms", grace="300ms") as made:
        made.check()
        yield made


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("coalesce(aft_runs.started_at", id="claim"),
        pytest.param("INSERT INTO aft_journal", id="record"),
        pytest.param("INSERT INTO aft_faults", id="fault"),
        pytest.param("verdict=", id="decision"),
        pytest.param("DELETE FROM aft_outbox", id="confirm"),
        pytest.param("UPDATE aft_frames", id="undo"),
        pytest.param("ended_as=", id="end"),
    ],
)
def test_an_answer_that_is_lost_changes_nothing_that_a_run_does(app: aft.Aft, statement: str) -> None:
    order = secrets.token_hex(4)
    with losing_the_answer_to(app.store, statement) as line, app.dispatcher():
        run = app.submit(journey, order)
        eventually(lambda: run.status.ended, within=30)
        eventually(lambda: line.lost)
    assert run.status is Status.COMPENSATED
    assert did[order] == ["charge", "flaky", "flaky", "refund"]


@pytest.mark.parametrize("begin", ["submit", "start"])
def test_a_run_whose_making_had_no_answer_is_asked_for_again_by_its_key(app: aft.Aft, begin: str) -> None:
    order = secrets.token_hex(4)
    keyed = journey.options(key=order)
    with app.dispatcher():
        with losing_the_answer_to(app.store, "INSERT INTO aft_runs"), pytest.raises(StoreError) as told:
            getattr(app, begin)(keyed, order)
        assert told.value.transient
        run = getattr(app, begin)(keyed, order)
        eventually(lambda: run.status.ended, within=30)
    with app.store.read() as connection:
        made = connection.execute(select(runs.c.id).where(runs.c.namespace == app.namespace)).all()
    assert len(made) == 1
    assert did[order] == ["charge", "flaky", "flaky", "refund"]
