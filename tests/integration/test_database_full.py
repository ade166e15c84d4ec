"""A database with no room: a full disk, more threads than connections. Waited for within bounds, then gone on with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

import aft
from aft.errors import StoreError
from aft.runs.states import Status
from aft.store import Store, connect
from aft.store.postgres import dedicated_connection
from aft.telemetry import RunReleased
from tests.servers import PrivatePostgres
from tests.setups import Setup, eventually, migrate
from tests.world import gates, ledger

T = TypeVar("T")
#: SQLite's own limit of pages.
UNLIMITED = 2**30


@aft.activity(name="roomless_write")
def write(order: str) -> str:
    """Its result needs room."""
    ledger[order].append(aft.current().key)
    assert gates[order].wait(60)
    return "x" * 200_000


@aft.flow(name="roomless")
def writing(order: str) -> int:
    return len(write(order))


class Disk:
    """The room that a SQLite database has: as much as it likes, or not a page more."""

    def __init__(self, store: Store) -> None:
        self._full = False
        event.listen(store.engine, "checkout", self._measure)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Leave no room for a while."""
        self._full = True
        try:
            yield
        finally:
            self._full = False

    def _measure(self, connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {1 if self._full else UNLIMITED}")


def test_a_run_waits_for_room_on_a_full_disk_and_goes_on(tmp_path: Path) -> None:
    order = secrets.token_hex(4)
    app = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded").app(lease="2s", grace="300ms")
    disk = Disk(app.store)
    refused: list[str] = []
    with app, app.dispatcher():
        event.listen(app.store.engine, "handle_error", lambda context: refused.append(str(context.original_exception)))
        run = app.submit(writing, order)
        eventually(lambda: ledger[order])
        with disk.filled():
            gates[order].set()
            eventually(lambda: refused.count("database or disk is full") > 2)
        assert run.result(60) == 200_000
        another = secrets.token_hex(4)
        gates[another].set()
        assert app.submit(writing, another).result(60) == 200_000
    assert set(ledger[order]) == {ledger[order][0]}


def test_a_disk_that_stays_full_stops_the_run_and_not_the_process(tmp_path: Path) -> None:
    """Room for a heartbeat, none for a result: a thread must not try for ever what it may not be able to write."""
    order = secrets.token_hex(4)
    app = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded").app(lease="1s", grace="300ms")
    disk = Disk(app.store)
    events: list[Any] = []
    app.telemetry.subscribe(events.append)
    with app, app.dispatcher():
        run = app.submit(writing, order)
        eventually(lambda: ledger[order])
        with disk.filled():
            gates[order].set()
            eventually(lambda: any(isinstance(each, RunReleased) and each.run == run.id for each in events))
        assert run.result(60) == 200_000
    assert set(ledger[order]) == {ledger[order][0]}
    assert run.status is Status.COMPLETED


# Connections --------------------------------------------------------------------------------------------------------


def test_a_pool_that_is_exhausted_is_waited_for_in_bounds(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "MOST_OVERFLOW", 0)
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", 3)
    store = Store(migrated_url, pool_size=2)
    with ThreadPoolExecutor(6) as pool:

        def work(_: int) -> int:
            with store.write() as connection:
                return int(connection.execute(text("SELECT 1 FROM pg_sleep(0.05)")).scalar_one())

        assert sum(pool.map(work, range(12))) == 12
    started = time.monotonic()
    with store.write(), store.write(), pytest.raises(StoreError) as told, store.write():
        pass
    assert time.monotonic() - started < 60
    assert told.value.transient
    store.close()


def test_a_transaction_that_the_server_ended_because_we_were_paused_may_be_tried_again(migrated_url: str) -> None:
    store = Store(migrated_url, lease=3.0)

    def be_paused() -> None:
        with store.write() as connection:
            mine = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            eventually(lambda: is_gone(migrated_url, mine))
            connection.execute(text("SELECT 1"))

    with pytest.raises(StoreError, match="idle-in-transaction") as told:
        be_paused()
    assert told.value.transient
    with store.write() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    store.close()


def test_whoever_only_reads_may_be_paused(migrated_url: str) -> None:
    """It keeps nobody waiting: the server sees no transaction that it would have to end."""
    store = Store(migrated_url)
    with store.read() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with psycopg.connect(migrated_url) as other:
            asked = other.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid])
            assert asked.fetchone() == ("idle",)
    with store.write() as connection:  # the same connection: it has transactions again
        assert connection.execute(text("SELECT pg_backend_pid()")).scalar_one() == pid
        with psycopg.connect(migrated_url) as other:
            asked = other.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid])
            assert asked.fetchone() == ("idle in transaction",)
    store.close()


def test_the_server_notices_soon_when_a_machine_is_gone_that_has_locks(migrated_url: str) -> None:
    """By itself it would ask after two hours; until then nobody could take over, or count it as a death."""
    store = Store(migrated_url)
    with store.write() as connection, dedicated_connection.connect(store.engine) as other:
        for name, wanted in (("tcp_keepalives_idle", "15"), ("tcp_user_timeout", "30000")):
            assert connection.execute(text(f"SHOW {name}")).scalar_one() == wanted
            assert other.execute(f"SHOW {name}").fetchone() == (wanted,)
    store.close()


def test_a_server_that_cannot_watch_its_lines_so_closely_is_used_all_the_same(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedicated_connection, "_HEARD", "SET tcp_no_such_setting = 1")
    store = Store(migrated_url, lease=4.0)
    with store.write() as connection, dedicated_connection.connect(store.engine) as other:
        assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "4s"
        assert other.execute("SHOW tcp_keepalives_idle").fetchone() == ("15",)
    store.close()


def is_gone(url: str, pid: int) -> bool:
    with psycopg.connect(url) as other:
        return other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() is None


@aft.activity(name="patience", transactional=True)
def patience() -> str:
    return str(aft.session().execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one())


@aft.flow(name="patient_at_work")
def patient() -> str:
    return patience()


def test_an_activity_may_be_about_something_else_between_two_statements_of_its_transaction(migrated_url: str) -> None:
    with Setup("patient", migrated_url, "embedded").app(lease="5s") as app:
        assert app.start(patient).result(60) == "1min"
        with app.store.write() as connection:  # without one: as long as its lease
            assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "5s"


@aft.activity(name="cut_off", transactional=True, levels=[])
def cut_off(order: str, how: str) -> int:
    """Lose the connection the first time: seen by a statement that fails, swallowed, or taken for a failed one."""
    ledger[order].append(f"attempt {aft.current().attempt}")
    session = aft.session()
    connection = session.connection()
    if len(ledger[order]) == 1:
        try:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        except DBAPIError:
            if how == "seen":
                raise
            if how == "rolled back":
                connection.rollback()
            return 0
    return int(session.execute(text("SELECT 2")).scalar_one())


@aft.flow(name="cutting_off")
def cutting_off(order: str, how: str) -> int:
    return cut_off(order, how)


@pytest.mark.parametrize("how", ["seen", "swallowed", "rolled back"])
def test_what_an_activity_says_whose_connection_was_lost_means_nothing(migrated_url: str, how: str) -> None:
    order = secrets.token_hex(4)
    with Setup("cut off", migrated_url, "embedded").app() as app:
        assert app.start(cutting_off, order, how).result(60) == 2
        assert app.faults() == []
    assert ledger[order] == ["attempt 1", "attempt 1"]


@aft.activity(name="crowded_work", transactional=True)
def crowd(order: str) -> int:
    ledger[order].append(aft.current().key)
    return int(aft.session().execute(text("SELECT 1 FROM pg_sleep(0.1)")).scalar_one())


@aft.flow(name="crowded")
def crowding(order: str) -> int:
    return crowd(order) + crowd(order)


def patiently(ask: Callable[[], T]) -> T:
    """Ask as a caller does that may be refused for the moment: again."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except StoreError as error:
            if not error.transient:
                raise
        return bool(answers)

    eventually(answered, within=60)
    return answers[0]


def test_a_server_with_fewer_connections_than_we_have_threads_is_shared() -> None:
    with PrivatePostgres() as server:
        migrate(server.url)
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET max_connections = 12")
            admin.execute("ALTER SYSTEM SET max_wal_senders = 0")
        server.restart()
        app = Setup("crowded", server.url, "embedded").app(lease="3s", grace="300ms", levels="100ms*9")
        orders = [secrets.token_hex(4) for _ in range(40)]
        with app, app.dispatcher(concurrency=24):
            options = {order: crowding.options(key=order) for order in orders}
            started = [patiently(partial(app.submit, flow, order)) for order, flow in options.items()]
            assert [patiently(partial(run.result, 60)) for run in started] == [2] * 40
        assert all(len(set(ledger[order])) == 2 for order in orders), "a step has one key, however often it is tried"
