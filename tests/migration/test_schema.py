"""Claims about the schema: the migrations build exactly the tables, up and down, one process at a time."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine, inspect, make_url, text

from aft.errors import NotMigrated, StoreError
from aft.store import Store, schema
from aft.store.tables import PREFIX, metadata

ROOT = Path(__file__).parents[2]


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Store]:
    """An empty PostgreSQL schema of the test's own, in the worker's database."""
    name = f"test_{secrets.token_hex(6)}"
    url = make_url(postgres_url).set(drivername="postgresql+psycopg")
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    ours = url.update_query_dict({"options": f"-csearch_path={name}"})
    store = Store(ours.render_as_string(hide_password=False), pool_size=8)
    yield store
    store.close()
    with admin.connect() as connection:
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    admin.dispose()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'aft.db'}")
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Store:
    """An empty database of either kind."""
    found: Store = request.getfixturevalue("sqlite_store" if request.param == "sqlite" else "postgres_store")
    return found


def tables_of(store: Store) -> set[str]:
    with store.read() as connection:
        return {name for name in inspect(connection).get_table_names() if name.startswith(PREFIX)}


def differences(store: Store) -> list[Any]:
    """What alembic would write into a new migration; a plain text column is not compared by length on SQLite."""
    with store.read() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"version_table": schema.VERSION_TABLE, "compare_type": True, "compare_server_default": True},
        )
        return list(compare_metadata(context, metadata))


def together(count: int, work: Callable[[], None]) -> None:
    """Do the same in several threads, begun at once; raises what the first of them raised."""
    gate = threading.Barrier(count)

    def one() -> None:
        gate.wait(60)
        work()

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(one) for _ in range(count)]:
            done.result(60)


# --- schema equals migrations ---


def test_the_migrations_build_exactly_the_tables(store: Store) -> None:
    schema.upgrade(store)
    assert differences(store) == []


def test_a_difference_would_be_noticed(store: Store) -> None:
    schema.upgrade(store)
    with store.write() as connection:
        connection.execute(text("DROP INDEX ix_aft_runs_root"))
        connection.execute(text("ALTER TABLE aft_runs ADD COLUMN surplus TEXT"))
    assert {difference[0] for difference in differences(store)} == {"add_index", "remove_column"}


def test_the_newest_migration_is_the_one_that_the_code_names() -> None:
    assert ScriptDirectory.from_config(schema.alembic_config()).get_heads() == [schema.HEAD]


def test_every_table_is_marked_as_aft_s() -> None:
    assert [name for name in metadata.tables if not name.startswith(PREFIX)] == []


# --- up and down ---


def test_up_down_and_up_again(store: Store) -> None:
    assert schema.current(store) is None
    schema.upgrade(store)
    assert schema.current(store) == schema.HEAD
    assert tables_of(store) == {*metadata.tables, schema.VERSION_TABLE}
    schema.downgrade(store, "base")
    assert schema.current(store) is None
    assert tables_of(store) <= {schema.VERSION_TABLE}
    schema.upgrade(store)
    assert differences(store) == []


def test_what_people_did_before_an_upgrade_stays_in_its_order(postgres_store: Store) -> None:
    schema.upgrade(postgres_store)
    schema.downgrade(postgres_store, "0017")
    add = "INSERT INTO aft_audit (id, run_id, actor, action, at, seq) VALUES ('{}', '', '{}', '', '2026-01-01', {})"
    with postgres_store.write() as connection:
        for row in ("c", "first", 1), ("a", "third", "NULL"), ("b", "second", 2):
            connection.execute(text(add.format(*row)))
    schema.upgrade(postgres_store)
    with postgres_store.write() as connection:
        connection.execute(text(add.format("0", "fourth", "NULL")))
        found = connection.execute(text("SELECT actor FROM aft_audit ORDER BY number")).scalars().all()
    assert found == ["first", "second", "third", "fourth"]


def test_upgrading_twice_is_upgrading_once(store: Store) -> None:
    schema.upgrade(store)
    schema.upgrade(store)
    assert schema.current(store) == schema.HEAD


def test_a_migration_that_fails_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = schema.alembic_config

    def config(connection: Any = None) -> Any:
        made = real(connection)
        # Something goes wrong after every table was made, before anything is committed.
        made.attributes["connection"] = connection
        original = connection.execute

        def execute(statement: Any, *args: Any, **kwargs: Any) -> Any:
            if "INSERT INTO aft_schema_version" in str(statement):
                raise StoreError("pulled the plug")
            return original(statement, *args, **kwargs)

        monkeypatch.setattr(connection, "execute", execute)
        return made

    monkeypatch.setattr(schema, "alembic_config", config)
    with pytest.raises(StoreError, match="pulled the plug"):
        schema.upgrade(store)
    monkeypatch.undo()
    assert tables_of(store) == set()
    schema.upgrade(store)
    assert differences(store) == []


def test_several_threads_that_upgrade_at_once_all_succeed(store: Store) -> None:
    together(6, lambda: schema.upgrade(store))
    assert schema.current(store) == schema.HEAD
    assert differences(store) == []


# --- locks of others ---


@contextmanager
def holding(store: Store, statement: str) -> Iterator[int]:
    """Hold a lock as another program; gives the pid of its session."""
    url = store.engine.url.update_query_dict({"application_name": "somebody else"})
    engine = create_engine(url, poolclass=NullPool)  # its session ends with the block, and with that its locks
    with engine.connect() as connection:
        connection.execute(text(statement))
        yield connection.execute(text("SELECT pg_backend_pid()")).scalar_one()


def refusal(store: Store, change: Callable[[], None], held: str) -> str:
    """What a change of the schema is refused with while somebody holds this lock; it ends in time."""
    with ThreadPoolExecutor(1) as pool:
        with holding(store, held) as pid:
            error = pool.submit(change).exception(30)
        assert isinstance(error, StoreError)
    assert f"session {pid} of 'postgres' ('somebody else', from 127.0.0.1)" in str(error)
    assert f"pg_terminate_backend({pid})" in str(error)
    return str(error)


@pytest.mark.parametrize("kind", ["pg_advisory_lock", "pg_advisory_lock_shared", "pg_advisory_xact_lock"])
def test_an_upgrade_does_not_wait_for_ever_and_says_who_holds_its_lock(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(schema, "LOCK_WAIT", 0.2, raising=False)
    why = refusal(postgres_store, lambda: schema.upgrade(postgres_store), f"SELECT {kind}({schema._LOCK})")
    assert "the lock of migrations" in why
    assert tables_of(postgres_store) == set()
    schema.upgrade(postgres_store)
    assert differences(postgres_store) == []


def test_a_change_of_tables_does_not_wait_for_ever_and_says_who_uses_them(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_WAIT", 0.2, raising=False)
    schema.upgrade(postgres_store)
    why = refusal(postgres_store, lambda: schema.downgrade(postgres_store, "base"), "SELECT 1 FROM aft_runs")
    assert "tables of aft" in why
    assert schema.current(postgres_store) == schema.HEAD


# --- checking ---


def test_an_empty_sqlite_file_migrates_itself(sqlite_store: Store) -> None:
    schema.check(sqlite_store)
    assert schema.current(sqlite_store) == schema.HEAD


def test_an_empty_postgresql_does_not_and_says_what_to_do(postgres_store: Store) -> None:
    with pytest.raises(NotMigrated) as caught:
        schema.check(postgres_store)
    said = str(caught.value)
    assert said.endswith(f"has no aft tables; this aft needs schema {schema.HEAD}: run `aft db upgrade`")
    assert tables_of(postgres_store) == set()


def test_a_right_schema_is_left_alone(store: Store) -> None:
    schema.upgrade(store)
    schema.check(store)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("0000", f"is at schema 0000; this aft needs schema {schema.HEAD}: run `aft db upgrade`$"),
        ("9999", "is at schema 9999; .*: run `aft db upgrade`, or use the newer aft that made it$"),
    ],
)
def test_another_schema_is_refused_with_what_to_do(store: Store, found: str, said: str) -> None:
    schema.upgrade(store)
    with store.write() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{found}'"))
    with pytest.raises(NotMigrated, match=said):
        schema.check(store)


def test_using_a_database_without_tables_says_what_to_do(store: Store) -> None:
    with pytest.raises(StoreError, match="has no aft tables; run `aft db upgrade`"), store.read() as connection:
        connection.execute(text("SELECT id FROM aft_runs"))


def test_several_threads_that_check_an_empty_file_at_once_all_succeed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'aft.db'}"
    stores: list[Store] = []

    def work() -> None:
        store = Store(url)
        stores.append(store)
        schema.check(store)

    together(8, work)
    assert {schema.current(store) for store in stores} == {schema.HEAD}
    for store in stores:
        store.close()


CHECK = """
import sys
from aft.store import Store, schema
store = Store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
schema.check(store)
print(schema.current(store))
"""


def test_several_processes_that_check_an_empty_file_at_once_all_succeed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHECK, f"sqlite:///{tmp_path / 'aft.db'}"]
    children = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60) for child in children]
    assert answers == [(f"{schema.HEAD}\n", "")] * 4
