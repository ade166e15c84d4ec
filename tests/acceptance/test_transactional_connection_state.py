"""What a transactional activity leaves on its connection is not in the way of aft, which records the outcome there."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import aft
from tests.setups import Setup

#: More reads than connections are kept.
READS = 25


def driver() -> Any:
    return aft.session().connection().connection.driver_connection


def deny(*_: object) -> int:
    return sqlite3.SQLITE_DENY


def shadow(schema: str) -> None:
    """Make tables of aft's names that are found first, with the same rows."""
    for table in ("aft_runs", "aft_journal"):
        aft.session().execute(text(f"CREATE TEMP TABLE {table} AS SELECT * FROM {schema}.{table}"))


def stray() -> None:
    kept.append(sqlite3.Cursor(driver()))
    kept[-1].execute("SELECT * FROM in_the_way")
    kept[-1].fetchone()


def open_a_blob() -> None:
    (number,) = driver().execute("SELECT min(rowid) FROM in_the_way").fetchone()
    kept.append(driver().blobopen("in_the_way", "id", number, readonly=True))


#: Cursors and blobs that somebody keeps.
kept: list[Any] = []
#: What can be left on a connection to SQLite.
LEFT_IN_SQLITE: dict[str, Callable[[], object]] = {
    "a pragma": lambda: driver().execute("PRAGMA query_only = ON"),
    "an authorizer": lambda: driver().set_authorizer(deny),
    "a progress handler": lambda: driver().set_progress_handler(lambda: 1, 1),
    "a limit": lambda: driver().setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10),
    "a tracer": lambda: driver().set_trace_callback(None),
    "tables": lambda: shadow("main"),
    "a trigger": lambda: driver().execute(
        "CREATE TEMP TRIGGER in_the_way_trigger BEFORE UPDATE ON main.aft_runs BEGIN SELECT RAISE(FAIL, 'mine'); END"
    ),
    "a cursor": stray,
    "a blob": open_a_blob,
}


@aft.activity(name="in_the_way_leave", transactional=True, levels=[])
def leave(what: str, order: str) -> str:
    aft.session().execute(text("INSERT INTO in_the_way (id) VALUES (:id)"), {"id": f"{order}-1"})
    aft.session().execute(text("INSERT INTO in_the_way (id) VALUES (:id)"), {"id": f"{order}-2"})
    LEFT_IN_SQLITE[what]() if what in LEFT_IN_SQLITE else shadow("public")
    if order.startswith("fails"):
        raise LookupError(what)
    return "left"


@aft.flow(name="in_the_way_flow")
def leaving(what: str, order: str) -> str:
    return leave(what, order)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded")
    yield setup
    setup.close()
    while kept:
        with contextlib.suppress(sqlite3.Error):
            kept.pop().close()


def prepare(setup: Setup) -> aft.Aft:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS in_the_way (id TEXT)"))
    return app


def written(app: aft.Aft, order: str) -> int:
    with app.store.read() as connection:
        found = connection.execute(text("SELECT count(*) FROM in_the_way WHERE id LIKE :id"), {"id": f"{order}%"})
        return int(found.scalar_one())


@pytest.mark.parametrize("what", LEFT_IN_SQLITE)
def test_what_an_activity_leaves_on_its_connection_to_sqlite_is_not_in_the_way(embedded: Setup, what: str) -> None:
    app, order = prepare(embedded), secrets.token_hex(4)
    with app.dispatcher():
        assert (run := app.submit(leaving, what, order)).result(60) == "left"
        assert run.status == "completed"
        assert written(app, order) == 2
        with pytest.raises(aft.FlowCompensated, match="LookupError"):
            app.submit(leaving, what, f"fails-{order}").result(60)
    assert written(app, "fails") == 0


@pytest.mark.parametrize("what", ["a cursor", "a blob"])
def test_nor_does_it_keep_anybody_in_the_past(embedded: Setup, what: str) -> None:
    app, order = prepare(embedded), secrets.token_hex(4)
    assert app.start(leaving, what, order).result(60) == "left"
    with pytest.raises(aft.FlowCompensated), app.dispatcher():
        app.submit(leaving, what, f"fails-{order}").result(60)
    assert app.store.file is not None
    with closing(sqlite3.connect(app.store.file, isolation_level=None)) as other:
        other.execute("INSERT INTO in_the_way VALUES ('news')")
        for _ in range(READS):
            assert written(app, "news") == 1
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0  # nobody reads


def test_temporary_tables_of_names_of_afts_are_not_in_the_way(production: Setup) -> None:
    app, order = prepare(production), secrets.token_hex(4)
    with app.dispatcher():
        assert (run := app.submit(leaving, "tables of PostgreSQL", order)).result(60) == "left"
    assert run.status == "completed"
    assert written(app, order) == 2
