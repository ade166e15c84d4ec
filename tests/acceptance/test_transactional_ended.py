"""Transactions that the activity in them, its session or the database ends: nothing is recorded without its effects."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import aft
from tests.acceptance.transactions import CALLS, driver, prepare, working, written
from tests.setups import Setup
from tests.world import Refused


def invalidate() -> None:
    session = aft.session()
    session.connection()
    session.invalidate()


def in_a_with() -> None:
    with driver():
        pass


#: How a transaction can be ended so that SQLAlchemy does not notice.
ENDS: dict[str, Callable[[], object]] = {
    "the driver commits": lambda: driver().commit(),
    "the driver rolls back": lambda: driver().rollback(),
    "a statement commits": lambda: aft.session().connection().exec_driver_sql("COMMIT"),
    "a statement rolls back": lambda: aft.session().connection().exec_driver_sql("ROLLBACK"),
    "the driver closes": lambda: driver().close(),
    "it is invalidated": lambda: aft.session().connection().invalidate(),
    "its session is invalidated": invalidate,
}
#: The same on SQLite.
ENDS_OF_SQLITE: dict[str, Callable[[], object]] = {
    "a script": lambda: driver().executescript("SELECT 1"),
    "a with": in_a_with,
    "an isolation level": lambda: setattr(driver(), "isolation_level", None),
}


@aft.activity(name="ended_below_by", transactional=True, levels=[])
def end(how: str, then: str, order: str) -> str:
    session = aft.session()
    session.execute(text("INSERT INTO ended_below (id) VALUES (:id)"), {"id": order})
    session.commit()
    {**ENDS, **ENDS_OF_SQLITE}[how]()
    if then == "raises":
        raise LookupError(order)
    if then == "works on":
        session.execute(text("SELECT 1"))
    return "ended"


@aft.flow(name="ended_below")
def ending(how: str, then: str, order: str) -> str:
    return end(how, then, order)


def check(setup: Setup, how: str, then: str) -> None:
    app = prepare(setup, "ended_below")
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match=r"DefinitionError: .* ended the transaction of its connection"):
            app.submit(ending, how, then, secrets.token_hex(4)).result(60)
        assert app.submit(working).result(60) == CALLS  # its connection is in nobody's way


@pytest.mark.parametrize("then", ["returns", "raises", "works on"])
@pytest.mark.parametrize("how", ENDS)
def test_an_activity_that_ends_its_transaction_below_sqlalchemy_has_failed(setup: Setup, how: str, then: str) -> None:
    check(setup, how, then)


@pytest.mark.parametrize("then", ["returns", "raises", "works on"])
@pytest.mark.parametrize("how", ENDS_OF_SQLITE)
def test_so_has_one_that_does_it_in_a_way_of_sqlites(embedded: Setup, how: str, then: str) -> None:
    check(embedded, how, then)


class OutOfStock(Exception):
    """What an activity makes of a row that is there already."""


def insert(session: Session, name: str) -> None:
    session.execute(text("INSERT INTO ended_rows (name) VALUES (:name)"), {"name": name})


def conflict(session: Session) -> None:
    session.execute(text("INSERT OR ROLLBACK INTO ended_rows (name) VALUES ('there already')"))


def conflict_below(session: Session) -> None:
    driver().execute("INSERT OR ROLLBACK INTO ended_rows (name) VALUES ('there already')")


def fill(session: Session) -> None:
    """Reach the bound of the file: SQLite gives up the transaction as on a full disk."""
    session.execute(text("PRAGMA max_page_count = 1"))
    session.execute(text("INSERT INTO ended_rows (name) VALUES (hex(zeroblob(100000)))"))


def interrupt(session: Session) -> None:
    """Interrupt a statement that writes, as a timer may."""
    driver().create_function("interrupt", 0, driver().interrupt)
    session.execute(
        text(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
            "INSERT INTO ended_rows (name) SELECT 'n' || i || coalesce(interrupt(), '') FROM n"
        )
    )


#: How SQLite comes to end a transaction, and what it raises.
ENDS_BY_SQLITE: dict[str, tuple[Callable[[Session], None], str]] = {
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
    with contextlib.suppress(Exception):
        driver().execute("BEGIN IMMEDIATE")
    driver().execute("INSERT INTO ended_rows (name) VALUES (?)", [f"{order}-2"])
    driver().execute("COMMIT")


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
def meet(how: str, then: str, order: str) -> str:
    session = aft.session()
    insert(session, f"{order}-1")
    session.commit()
    if then == "leaves a with":
        with session:
            ENDS_BY_SQLITE[how][0](session)
    if then == "leaves a savepoint":
        with session.begin_nested():
            ENDS_BY_SQLITE[how][0](session)
    try:
        ENDS_BY_SQLITE[how][0](session)
    except (DBAPIError, sqlite3.Error) as error:
        if then == "raises its own":
            raise OutOfStock("no more") from error
        THEN[then](session, order)
    return "worked"


@aft.flow(name="ended_by_sqlite_flow")
def meeting(how: str, then: str, order: str) -> str:
    return meet(how, then, order)


def fail(setup: Setup, how: str, then: str) -> str:
    """Have the activity fail, and nothing remain; returns what it has failed with."""
    app, order = setup.app(), secrets.token_hex(4)
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE ended_rows (name TEXT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO ended_rows (name) VALUES ('there already')"))
    with app.dispatcher(), pytest.raises(aft.FlowCompensated) as failed:
        app.submit(meeting, how, then, order).result(60)
    with app.store.read() as connection:
        assert list(connection.execute(text("SELECT name FROM ended_rows")).scalars()) == ["there already"]
    return str(failed.value)


@pytest.mark.parametrize("then", [*THEN, "leaves a with", "leaves a savepoint"])
@pytest.mark.parametrize("how", ENDS_BY_SQLITE)
def test_an_activity_whose_transaction_sqlite_ended_has_failed_with_what_sqlite_said(
    embedded: Setup, how: str, then: str
) -> None:
    said = "UNIQUE constraint failed" if then.startswith("leaves") and "conflict" in how else ENDS_BY_SQLITE[how][1]
    assert said in fail(embedded, how, then)


@pytest.mark.parametrize("how", ENDS_BY_SQLITE)
def test_or_with_what_it_raises_itself(embedded: Setup, how: str) -> None:
    assert "OutOfStock: no more" in fail(embedded, how, "raises its own")


class Base(DeclarativeBase):
    """What is mapped here."""


class Book(Base):
    """A row that can be there once."""

    __tablename__ = "left_books"
    id: Mapped[str] = mapped_column(primary_key=True)


def _add_twice(order: str) -> None:
    """Fail to flush: SQLAlchemy takes back what was done since the last commit."""
    session = aft.session()
    session.add(Book(id=f"{order}-1"))
    session.flush()
    session.expunge_all()
    session.add(Book(id=f"{order}-1"))
    session.flush()


@aft.activity(name="left_by", transactional=True, levels=[])
def leave(how: str, order: str) -> str:
    session = aft.session()
    match how:
        case "swallows":
            with contextlib.suppress(IntegrityError):
                _add_twice(order)
        case "swallows inside a with":
            with session, contextlib.suppress(IntegrityError):
                _add_twice(order)
        case "swallows and closes":
            with contextlib.suppress(IntegrityError):
                _add_twice(order)
            session.close()
            session.add(Book(id=f"{order}-2"))
        case "closes on its way out":
            try:
                _add_twice(order)
            finally:
                session.close()
        case "rolls back":
            try:
                _add_twice(order)
            except IntegrityError:
                session.rollback()
            session.add(Book(id=f"{order}-2"))
        case "thinks better of it":
            session.add(Book(id=f"{order}-1"))
            session.commit()
            with contextlib.suppress(Refused), session:
                session.execute(text("INSERT INTO left_books (id) VALUES (:id)"), {"id": f"{order}-2"})
                raise Refused
            session.add(Book(id=f"{order}-3"))
        case "handles what ends a with":
            session.add(Book(id=f"{order}-1"))
            session.commit()
            session.expunge_all()
            with contextlib.suppress(IntegrityError), session:
                session.execute(text("INSERT INTO left_books (id) VALUES (:id)"), {"id": f"{order}-2"})
                session.add(Book(id=f"{order}-1"))
            session.add(Book(id=f"{order}-3"))
        case "handles what a close says":
            session.add(Book(id=f"{order}-1"))
            session.commit()
            session.expunge_all()
            session.add(Book(id=f"{order}-1"))
            with contextlib.suppress(IntegrityError):
                session.close()
            session.add(Book(id=f"{order}-3"))
        case "resets":
            session.add(Book(id=f"{order}-1"))
            session.reset()
            session.add(Book(id=f"{order}-3"))
    return "left"


@aft.flow(name="left")
def leaving(how: str, order: str) -> str:
    return leave(how, order)


def prepare_books(setup: Setup) -> aft.Aft:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        Base.metadata.create_all(connection)
    return app


@pytest.mark.parametrize(
    ("how", "failure"),
    [
        ("swallows", "PendingRollbackError"),
        ("swallows inside a with", "PendingRollbackError"),
        ("swallows and closes", "PendingRollbackError"),
        ("closes on its way out", "IntegrityError"),
    ],
)
def test_an_activity_that_passes_over_a_failed_flush_has_failed(
    setup: Setup, order: str, how: str, failure: str
) -> None:
    app = prepare_books(setup)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match=failure):
        app.submit(leaving, how, order).result(60)
    assert written(app, "left_books", order) == []


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ("rolls back", "2"),
        ("thinks better of it", "13"),
        ("handles what ends a with", "13"),
        ("handles what a close says", "13"),
        ("resets", "13"),
    ],
)
def test_what_was_taken_back_in_order_is_not_there_and_everything_else_is(
    setup: Setup, order: str, how: str, left: str
) -> None:
    app = prepare_books(setup)
    with app.dispatcher():
        assert app.submit(leaving, how, order).result(60) == "left"
    assert written(app, "left_books", order) == list(left)
