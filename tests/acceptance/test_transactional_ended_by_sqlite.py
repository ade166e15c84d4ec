"""SQLite may end a transaction by itself: then the activity has failed, and nothing of what it did remains."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

import aft
from tests.setups import Setup


class OutOfStock(Exception):
    """What an activity makes of a row that is there already."""


def insert(session: Session, name: str) -> None:
    session.execute(text("INSERT INTO ended_rows (name) VALUES (:name)"), {"name": name})


def conflict(session: Session) -> None:
    session.execute(text("INSERT OR ROLLBACK INTO ended_rows (name) VALUES ('there already')"))


def conflict_below(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.execute("INSERT OR ROLLBACK INTO ended_rows (name) VALUES ('there already')")


def fill(session: Session) -> None:
    """Reach the bound of the file: SQLite gives up the transaction as on a full disk."""
    session.execute(text("PRAGMA max_page_count = 1"))
    session.execute(text("INSERT INTO ended_rows (name) VALUES (hex(zeroblob(100000)))"))


def interrupt(session: Session) -> None:
    """Interrupt a statement that writes, as a timer may."""
    driver: Any = session.connection().connection.driver_connection
    driver.create_function("interrupt", 0, driver.interrupt)
    session.execute(
        text(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
            "INSERT INTO ended_rows (name) SELECT 'n' || i || coalesce(interrupt(), '') FROM n"
        )
    )


#: How SQLite comes to end a transaction, and what it raises.
ENDS: dict[str, tuple[Callable[[Session], None], str]] = {
    "a conflict": (conflict, "UNIQUE constraint failed"),
    "a conflict below SQLAlchemy": (conflict_below, "SQLite itself has ended the transaction"),
    "a full file": (fill, "database or disk is full"),
    "an interrupt": (interrupt, "interrupted"),
}


def go_on(session: Session, order: str) -> None:
    insert(session, f"{order}-2")


def roll_back(session: Session, order: str) -> None:
    session.rollback()
    insert(session, f"{order}-2")


def nest(session: Session, order: str) -> None:
    with contextlib.suppress(DBAPIError), session.begin_nested():
        insert(session, f"{order}-2")
    session.commit()
    insert(session, f"{order}-3")


def begin_anew(session: Session, order: str) -> None:
    driver: Any = session.connection().connection.driver_connection
    with contextlib.suppress(Exception):
        driver.execute("BEGIN IMMEDIATE")
    driver.execute("INSERT INTO ended_rows (name) VALUES (?)", [f"{order}-2"])
    driver.execute("COMMIT")


def return_(session: Session, order: str) -> None:
    pass


#: What the activity makes of it.
THEN: dict[str, Callable[[Session, str], None]] = {
    "goes on": go_on,
    "rolls back": roll_back,
    "nests": nest,
    "begins anew below": begin_anew,
    "returns": return_,
}


@aft.activity(name="ended_by_sqlite", transactional=True, levels=[])
def work(how: str, then: str, order: str) -> str:
    session = aft.session()
    insert(session, f"{order}-1")
    session.commit()
    if then == "leaves a with":
        with session:
            ENDS[how][0](session)
    if then == "leaves a savepoint":
        with session.begin_nested():
            ENDS[how][0](session)
    try:
        ENDS[how][0](session)
    except (DBAPIError, sqlite3.Error) as error:
        if then == "raises its own":
            raise OutOfStock("no more") from error
        THEN[then](session, order)
    return "worked"


@aft.flow(name="ended_by_sqlite_flow")
def ending(how: str, then: str, order: str) -> str:
    return work(how, then, order)


def fail(setup: Setup, how: str, then: str) -> str:
    """Have the activity fail, and nothing remain; returns what it has failed with."""
    app, order = setup.app(), secrets.token_hex(4)
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE ended_rows (name TEXT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO ended_rows (name) VALUES ('there already')"))
    with app.dispatcher(), pytest.raises(aft.FlowCompensated) as failed:
        app.submit(ending, how, then, order).result(60)
    with app.store.read() as connection:
        assert list(connection.execute(text("SELECT name FROM ended_rows")).scalars()) == ["there already"]
    return str(failed.value)


@pytest.mark.parametrize("then", [*THEN, "leaves a with", "leaves a savepoint"])
@pytest.mark.parametrize("how", ENDS)
def test_an_activity_whose_transaction_sqlite_ended_has_failed_with_what_sqlite_said(
    embedded: Setup, how: str, then: str
) -> None:
    said = "UNIQUE constraint failed" if then.startswith("leaves") and "conflict" in how else ENDS[how][1]
    assert said in fail(embedded, how, then)


@pytest.mark.parametrize("how", ENDS)
def test_or_with_what_it_raises_itself(embedded: Setup, how: str) -> None:
    assert "OutOfStock: no more" in fail(embedded, how, "raises its own")
