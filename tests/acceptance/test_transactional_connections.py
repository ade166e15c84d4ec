"""What a transactional activity sets or leaves on its connection is nobody else's, and in nobody's way."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.numeric import FloatLoader
from sqlalchemy import event, text

import aft
from tests.acceptance.transactions import CALLS, driver, prepare, working, written
from tests.setups import Setup

#: What stays with a session after its transaction: how to look for it, and how to leave it there.
LEFT = {
    "a setting": (
        "SELECT coalesce(current_setting('app.tenant', true), '')",
        "SELECT set_config('app.tenant', 'a tenant', false)",
    ),
    "read only": ("SHOW default_transaction_read_only", "SET default_transaction_read_only = on"),
    "a lock": (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        "SELECT pg_advisory_lock_shared(20260101)",
    ),
    "a listener": ("SELECT count(*) FROM pg_listening_channels()", "LISTEN given_back"),
    "a statement": (
        "SELECT count(*) FROM pg_prepared_statements WHERE name = 'given_back'",
        "PREPARE given_back AS SELECT 1",
    ),
    "a temporary table": (
        "SELECT coalesce(to_regclass('pg_temp.given_back')::text, '')",
        "CREATE TEMP TABLE given_back (id INT)",
    ),
}
#: The same on SQLite.
LEFT_IN_SQLITE = {
    "a setting": ("PRAGMA recursive_triggers", "PRAGMA recursive_triggers = ON"),
    "a temporary table": (
        "SELECT count(*) FROM sqlite_temp_master WHERE name = 'given_back'",
        "CREATE TEMP TABLE given_back (id INT)",
    ),
}


@aft.activity(name="given_back_leave", transactional=True, levels=[])
def leave(look: str, what: str, fails: bool) -> str:
    """Look for what another left, and leave the same."""
    session = aft.session()
    found = str(session.execute(text(look)).scalar())
    session.execute(text(what))
    if fails:
        raise LookupError(found)
    return found


@aft.activity(name="given_back_change", transactional=True, levels=[])
def change(how: str) -> str:
    """Change the driver's connection itself; returns what it gave for a number before."""
    connection = driver()
    assert isinstance(connection, sqlite3.Connection)
    found = repr(connection.execute("SELECT abs(-1)").fetchone())
    if how == "a function":
        connection.create_function("abs", 1, lambda number: 0)
    elif how == "rows":
        connection.row_factory = sqlite3.Row
    elif how == "rows that no code of aft's expects":
        connection.row_factory = lambda cursor, row: {
            key: value for (key, *_), value in zip(cursor.description, row, strict=True)
        }
    else:
        connection.text_factory = bytes
    return found


@aft.flow(name="given_back_changing")
def changing(how: str) -> list[str]:
    return [change(how) for _ in range(CALLS)]


#: What an activity can set on psycopg's connection itself.
CHANGES: dict[str, Callable[[psycopg.Connection[Any]], object]] = {
    "rows": lambda driver: setattr(driver, "row_factory", dict_row),
    "cursors": lambda driver: setattr(driver, "cursor_factory", psycopg.ClientCursor),
    "values": lambda driver: driver.adapters.register_loader("numeric", FloatLoader),
    "notices": lambda driver: driver.add_notice_handler(heard.append),
    "an attribute": lambda driver: setattr(driver, "tenant", "a tenant"),
}
#: The notices that somebody's handler was told.
heard: list[object] = []


@aft.activity(name="given_back_change_psycopg", transactional=True, levels=[])
def change_psycopg(how: str) -> str:
    """Change the driver's connection itself, and what SQLAlchemy notes of it; returns what there was before."""
    connection = aft.session().connection()
    psycopg = driver()
    told = len(heard)
    psycopg.execute("DO $$ BEGIN RAISE NOTICE 'of somebody else'; END $$")
    (number,) = psycopg.execute("SELECT 1.5::numeric").fetchone()
    found = [type(number).__name__, psycopg.cursor_factory.__name__, len(heard) - told]
    found.append(getattr(psycopg, "tenant", None))
    found.append(connection.info.get("tenant"))
    CHANGES[how](psycopg)
    connection.info["tenant"] = "a tenant"
    return repr(found)


@aft.flow(name="given_back_changing_psycopg")
def changing_psycopg(how: str) -> list[str]:
    return [change_psycopg(how) for _ in range(CALLS)]


#: Results that somebody keeps, though their activity has ended.
results: list[object] = []


@aft.activity(name="given_back_half_read", transactional=True, levels=[])
def half_read(number: int) -> int:
    names = aft.session().execute(text("SELECT name FROM sqlite_master"))
    names.fetchone()
    results.append(names)
    return number


@aft.flow(name="given_back_reading")
def reading() -> int:
    return half_read(1)


@aft.activity(name="given_back_set", transactional=True, levels=[])
def set_for_the_session(what: str) -> str:
    aft.session().execute(text(what))
    return "set"


@aft.flow(name="given_back_setting")
def setting(what: str) -> str:
    return set_for_the_session(what)


@aft.flow(name="given_back_leaving")
def leaving(look: str, what: str, fails: bool) -> list[str]:
    found = []
    for _ in range(CALLS):
        try:
            found.append(leave(look, what, fails))
        except LookupError as error:
            found.append(str(error))
    return found


def check(setup: Setup, look: str, what: str, *, fails: bool) -> None:
    app = setup.app()
    app.check()
    with app.store.read() as connection:
        nothing = str(connection.execute(text(look)).scalar())
    with app.dispatcher():
        assert app.submit(leaving, look, what, fails).result(60) == [nothing] * CALLS


@pytest.mark.parametrize("left", LEFT)
def test_what_an_activity_leaves_in_its_session_nobody_else_finds(production: Setup, left: str) -> None:
    check(production, *LEFT[left], fails=False)


@pytest.mark.parametrize("left", ["a lock", "a statement"])
def test_nor_does_anybody_find_what_a_rollback_does_not_take_back(production: Setup, left: str) -> None:
    check(production, *LEFT[left], fails=True)


@pytest.mark.parametrize(("left", "fails"), [("a setting", False), ("a setting", True), ("a temporary table", False)])
def test_what_an_activity_leaves_in_its_connection_to_sqlite_nobody_else_finds(
    embedded: Setup, left: str, fails: bool
) -> None:
    check(embedded, *LEFT_IN_SQLITE[left], fails=fails)


@pytest.mark.parametrize("how", ["a function", "rows", "rows that no code of aft's expects", "texts"])
def test_a_connection_to_sqlite_that_was_changed_by_its_driver_is_nobody_elses(embedded: Setup, how: str) -> None:
    app = embedded.app()
    with app.dispatcher():
        assert app.submit(changing, how).result(60) == ["(1,)"] * CALLS


def test_a_connection_to_sqlite_is_kept_where_nothing_was_changed(embedded: Setup) -> None:
    app = embedded.app()
    app.check()
    opened: list[object] = []
    event.listen(app.store.engine, "connect", lambda connection, _: opened.append(connection))
    assert app.start(working).result(60) == CALLS
    assert len(opened) < CALLS


@pytest.mark.parametrize("how", CHANGES)
def test_what_an_activity_sets_on_the_connection_of_psycopg_nobody_else_finds(production: Setup, how: str) -> None:
    app = production.app()
    with app.dispatcher():
        assert app.submit(changing_psycopg, how).result(60) == [repr(["Decimal", "Cursor", 0, None, None])] * CALLS


def test_a_result_that_an_activity_did_not_read_to_its_end_keeps_nobody_in_the_past(embedded: Setup) -> None:
    app = embedded.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE given_back_news (id INT)"))
    with app.dispatcher():
        assert app.submit(reading).result(60) == 1
    assert app.store.file is not None
    with closing(sqlite3.connect(app.store.file, isolation_level=None)) as other:
        other.execute("INSERT INTO given_back_news VALUES (1)")
    for _ in range(CALLS):
        with app.store.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM given_back_news")).scalar() == 1


@pytest.mark.parametrize(
    "what",
    [
        "SET search_path TO pg_catalog",
        "SET LOCAL search_path TO pg_catalog",
        "SET ROLE pg_monitor",
        "SET LOCAL ROLE pg_monitor",
        "SET SESSION AUTHORIZATION pg_monitor",
    ],
)
def test_an_outcome_is_recorded_whatever_the_activity_has_set_for_its_session(production: Setup, what: str) -> None:
    app = production.app()
    with app.dispatcher():
        assert app.submit(setting, what).result(60) == "set"


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
IN_THE_WAY: dict[str, Callable[[], object]] = {
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
def obstruct(what: str, order: str) -> str:
    aft.session().execute(text("INSERT INTO in_the_way (id) VALUES (:id)"), {"id": f"{order}-1"})
    aft.session().execute(text("INSERT INTO in_the_way (id) VALUES (:id)"), {"id": f"{order}-2"})
    IN_THE_WAY[what]() if what in IN_THE_WAY else shadow("public")
    if order.startswith("fails"):
        raise LookupError(what)
    return "left"


@aft.flow(name="in_the_way_flow")
def obstructing(what: str, order: str) -> str:
    return obstruct(what, order)


@pytest.fixture
def closing_what_is_kept() -> Iterator[None]:
    yield
    while kept:
        with contextlib.suppress(sqlite3.Error):
            kept.pop().close()


@pytest.mark.usefixtures("closing_what_is_kept")
@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_an_activity_leaves_on_its_connection_to_sqlite_is_not_in_the_way(embedded: Setup, what: str) -> None:
    app, order = prepare(embedded, "in_the_way"), secrets.token_hex(4)
    with app.dispatcher():
        assert (run := app.submit(obstructing, what, order)).result(60) == "left"
        assert run.status == "completed"
        assert written(app, "in_the_way", order) == ["1", "2"]
        with pytest.raises(aft.FlowCompensated, match="LookupError"):
            app.submit(obstructing, what, f"fails-{order}").result(60)
    assert written(app, "in_the_way", "fails") == []


@pytest.mark.usefixtures("closing_what_is_kept")
@pytest.mark.parametrize("what", ["a cursor", "a blob"])
def test_nor_does_it_keep_anybody_in_the_past(embedded: Setup, what: str) -> None:
    app, order = prepare(embedded, "in_the_way"), secrets.token_hex(4)
    assert app.start(obstructing, what, order).result(60) == "left"
    with pytest.raises(aft.FlowCompensated), app.dispatcher():
        app.submit(obstructing, what, f"fails-{order}").result(60)
    assert app.store.file is not None
    with closing(sqlite3.connect(app.store.file, isolation_level=None)) as other:
        other.execute("INSERT INTO in_the_way VALUES ('news')")
        for _ in range(CALLS):
            assert written(app, "in_the_way", "news") == [""]
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0  # nobody reads


def test_temporary_tables_of_names_of_afts_are_not_in_the_way(production: Setup) -> None:
    app, order = prepare(production, "in_the_way"), secrets.token_hex(4)
    with app.dispatcher():
        assert (run := app.submit(obstructing, "tables of PostgreSQL", order)).result(60) == "left"
    assert run.status == "completed"
    assert written(app, "in_the_way", order) == ["1", "2"]
