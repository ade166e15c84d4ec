"""What the database refuses is told apart: what may pass, what will not, and what only wants `aft db upgrade`."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from aft.errors import ConfigError, NotMigrated, StoreError
from aft.store import Store, engine, schema


def test_a_deadlock_may_pass(migrated_url: str) -> None:
    store = Store(migrated_url)
    with store.write() as connection:
        connection.execute(text("DELETE FROM aft_delays WHERE namespace = 'deadlock'"))
        for wait in (1, 2):
            connection.execute(
                text("INSERT INTO aft_delays (namespace, wait_ms, declared_at) VALUES ('deadlock', :wait, now())"),
                {"wait": wait},
            )
    together = threading.Barrier(2)
    touch = text("UPDATE aft_delays SET declared_at = now() WHERE namespace = 'deadlock' AND wait_ms = :wait")

    def lock(first: int, second: int) -> StoreError | None:
        try:
            with store.write() as connection, store.lend(connection):
                connection.execute(touch, {"wait": first})
                together.wait(60)
                connection.execute(touch, {"wait": second})
        except StoreError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = [error for error in pool.map(lock, (1, 2), (2, 1)) if error is not None]
    store.close()
    assert [error.transient for error in errors] == [True]
    assert "deadlock" in str(errors[0])


def test_a_violated_constraint_will_not_pass_and_is_not_taken_for_a_missing_table(migrated_url: str) -> None:
    store = Store(migrated_url)
    with pytest.raises(StoreError) as refused, store.write() as connection:
        connection.execute(text("INSERT INTO aft_delays (namespace) VALUES ('x')"))
    store.close()
    assert not isinstance(refused.value, NotMigrated)
    assert not refused.value.transient


def test_what_a_closed_store_had_lent_out_is_closed_when_it_comes_back(migrated_url: str) -> None:
    """As by a thread that was given up, and ends after its process has closed everything."""
    store = Store(migrated_url)
    with store.read() as connection:
        lent: Any = connection.connection.dbapi_connection
        store.close()
        assert connection.scalar(text("SELECT 1")) == 1
    assert lent.closed


def test_what_is_asked_of_a_closed_store_is_answered_and_leaves_nothing_open(migrated_url: str) -> None:
    """As by ``run.status`` after ``with aft.Aft() as app``."""
    store = Store(migrated_url)
    store.close()
    for _ in range(2):
        with store.read() as connection:
            asked: Any = connection.connection.dbapi_connection
            assert connection.scalar(text("SELECT 1")) == 1
        assert asked.closed
    store.close()


def test_a_missing_table_says_what_to_do(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(NotMigrated, match="aft db upgrade"), store.read() as connection:
        connection.execute(text("SELECT * FROM aft_runs"))
    store.close()


def test_a_missing_column_will_not_pass(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'aft.db'}")
    schema.check(store)
    with pytest.raises(StoreError) as refused, store.read() as connection:
        connection.execute(text("SELECT no_column FROM aft_runs"))
    store.close()
    assert not refused.value.transient


def test_a_database_that_another_process_writes_to_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SQLITE_BUSY", 0.1)
    url = f"sqlite:///{tmp_path / 'aft.db'}"
    store = Store(url)
    schema.check(store)
    other = sqlite3.connect(tmp_path / "aft.db", isolation_level=None)  # it knows nothing of turns
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as refused, store.write():
        pass
    other.close()
    store.close()
    assert refused.value.transient


def test_a_write_inside_a_write_is_refused_and_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SQLITE_BUSY", 0.1)
    store = Store(f"sqlite:///{tmp_path / 'aft.db'}")
    with store.write(), pytest.raises(StoreError, match="inside another one of the same thread"), store.write():
        pass
    store.close()


def test_many_that_open_a_new_file_at_once_all_find_it_ready(tmp_path: Path) -> None:
    def open_it(number: int) -> str | None:
        store = Store(f"sqlite:///{tmp_path / f'{number // 16}.db'}")
        schema.check(store)
        found = schema.current(store)
        store.close()
        return found

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(open_it, range(64))) == {schema.HEAD}


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory", "mysql://x", "?"])
def test_a_database_that_cannot_keep_a_promise_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Store(url)


def test_a_database_keeps_its_place_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store("sqlite:///aft.db").file == str(tmp_path / "aft.db")


def test_a_file_in_a_directory_that_does_not_exist_is_refused_with_the_directory(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/nowhere/aft.db")
    with pytest.raises(StoreError, match=r"unable to open database file; there is no directory '.*nowhere'"):
        schema.check(store)
    store.close()


def test_a_postgresql_database_that_is_not_there_is_to_be_created(postgres_url: str) -> None:
    store = Store(f"{postgres_url}_missing")
    with pytest.raises(StoreError, match=r"does not exist; create it, or correct the URL"), store.read():
        pass
    store.close()
