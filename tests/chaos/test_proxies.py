"""A commit that is to be lost is lost, and nothing else: a fault that is not really injected proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from chaos.proxies import CommitProxy
from chaos.wire import Write

INSERT = b"INSERT INTO lossy (what) VALUES ($1)"
WITHIN = b"WITH made AS (INSERT INTO lossy (what) VALUES ($1) RETURNING what) SELECT what FROM made"
INSERTED = Write("statement", "INSERT lossy")


@pytest.fixture
def rows(postgres_url: str) -> Iterator[Callable[[], list[str]]]:
    """An empty table, and what is in it."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE lossy (what TEXT)")
        yield lambda: [what for (what,) in connection.execute("SELECT what FROM lossy ORDER BY what")]
        connection.execute("DROP TABLE lossy")


@pytest.fixture
def proxy(postgres_url: str, rows: object) -> Iterator[CommitProxy]:
    with CommitProxy(make_url(postgres_url).port or 5432) as made:
        yield made


def connect(url: str, proxy: CommitProxy, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    through = make_url(url).set(port=proxy.port, host="127.0.0.1").render_as_string(hide_password=False)
    return psycopg.connect(through, autocommit=autocommit)


def prepare(connection: psycopg.Connection[Any], statement: bytes = INSERT) -> None:
    connection.pgconn.prepare(b"write", statement)


def write(connection: psycopg.Connection[Any], what: bytes = b"a") -> bool:
    """Execute what was prepared, as aft does; tells whether there was an answer."""
    return not connection.pgconn.exec_prepared(b"write", [what]).error_message


@pytest.mark.parametrize("statement", [INSERT, WITHIN])
@pytest.mark.parametrize("at_once", [65_536, 7, 1], ids=["whole", "split", "bytes"])
def test_the_answer_to_a_prepared_statement_is_lost_though_its_row_is_there(
    postgres_url: str, rows: Callable[[], list[str]], statement: bytes, at_once: int
) -> None:
    with CommitProxy(make_url(postgres_url).port or 5432, at_once=at_once) as proxy:
        with connect(postgres_url, proxy) as connection:
            prepare(connection, statement)
            assert write(connection)
            proxy.lose_commit(carried_out=True)
            assert not write(connection, b"b")
            assert connection.broken
        assert rows() == ["a", "b"]
        assert proxy.answers_lost == {INSERTED: 1}
        assert not proxy.requests_lost


@pytest.mark.parametrize("at_once", [65_536, 1], ids=["whole", "bytes"])
def test_a_request_that_is_lost_leaves_no_row(postgres_url: str, rows: Callable[[], list[str]], at_once: int) -> None:
    with CommitProxy(make_url(postgres_url).port or 5432, at_once=at_once) as proxy:
        with connect(postgres_url, proxy) as connection:
            prepare(connection)
            proxy.lose_commit(carried_out=False)
            assert not write(connection)
            assert connection.broken
        assert rows() == []
        assert proxy.requests_lost == {INSERTED: 1}


def test_a_statement_that_is_parsed_and_executed_at_once_is_lost_as_well(
    postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]]
) -> None:
    proxy.lose_commit(carried_out=True)
    with connect(postgres_url, proxy) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO lossy (what) VALUES (%s)", ["a"])
    proxy.lose_commit(carried_out=True)
    with connect(postgres_url, proxy) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO lossy (what) VALUES ('b')")
    assert rows() == ["a", "b"]
    assert proxy.answers_lost == {INSERTED: 2}


@pytest.mark.parametrize("carried_out", [True, False])
def test_in_a_transaction_only_its_commit_is_lost(
    postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]], carried_out: bool
) -> None:
    with connect(postgres_url, proxy, autocommit=False) as connection:
        proxy.lose_commit(carried_out=carried_out)
        connection.execute("INSERT INTO lossy (what) VALUES (%s)", ["a"])
        connection.execute("UPDATE lossy SET what = 'b'")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert rows() == ["b"] * carried_out
    lost = proxy.answers_lost if carried_out else proxy.requests_lost
    assert lost == {Write("COMMIT", "INSERT lossy"): 1}


def test_what_writes_nothing_is_not_lost(postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]]) -> None:
    proxy.lose_commit(carried_out=False)
    with connect(postgres_url, proxy, autocommit=False) as connection:
        connection.execute("SET lock_timeout = '500ms'")
        connection.commit()
        connection.execute("SELECT what FROM lossy FOR UPDATE")
        connection.execute("WITH found AS (SELECT 1) SELECT what FROM lossy, found FOR NO KEY UPDATE")
        connection.commit()
        connection.execute("INSERT INTO lossy (what) VALUES ('a')")
        connection.rollback()
        connection.autocommit = True
        connection.execute("SELECT what FROM lossy WHERE what = %s", ["a"])
    assert not proxy.requests_lost


def test_an_answer_that_tells_of_nothing_is_heard_and_the_next_one_is_lost(
    postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]]
) -> None:
    proxy.lose_commit(carried_out=True)
    with connect(postgres_url, proxy) as connection:
        assert connection.execute("DELETE FROM lossy WHERE what = %s", ["a"]).rowcount == 0
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("INSERT INTO lossy (what) VALUES (1 / %s)", [0])
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO lossy (what) VALUES (%s)", ["a"])
    assert rows() == ["a"]
    assert proxy.answers_lost == {INSERTED: 1}


def test_a_kind_can_be_asked_for(postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]]) -> None:
    with connect(postgres_url, proxy) as connection:
        prepare(connection)
        proxy.lose_commit(carried_out=True, kind="COMMIT")
        assert write(connection)
        with pytest.raises(psycopg.OperationalError), connection.transaction():
            connection.execute("INSERT INTO lossy (what) VALUES ('b')")
        assert not proxy.is_armed
    assert rows() == ["a", "b"]
    assert proxy.answers_lost == {Write("COMMIT", "INSERT lossy"): 1}


def test_a_loss_can_be_taken_back(postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]]) -> None:
    proxy.lose_commit(carried_out=False)
    proxy.disarm()
    with connect(postgres_url, proxy) as connection:
        prepare(connection)
        assert write(connection)
    assert not proxy.is_armed
    assert rows() == ["a"]


def test_while_an_answer_is_outstanding_nothing_is_guessed(
    postgres_url: str, proxy: CommitProxy, rows: Callable[[], list[str]]
) -> None:
    proxy.lose_commit(carried_out=False, kind="statement")
    with connect(postgres_url, proxy, autocommit=False) as connection, connection.pipeline():
        connection.execute("INSERT INTO lossy (what) VALUES (%s)", ["a"])
        connection.commit()
    assert rows() == ["a"]
    assert not proxy.requests_lost
