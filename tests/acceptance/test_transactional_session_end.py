"""How a transactional activity leaves its session: what it did is a part of the outcome, unless it rolled back."""

from __future__ import annotations

import contextlib

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import aft
from tests.setups import Setup


class Base(DeclarativeBase):
    """What is mapped here."""


class Book(Base):
    """A row that can be there once."""

    __tablename__ = "left_books"
    id: Mapped[str] = mapped_column(primary_key=True)


class Refused(Exception):
    """Somebody thinks better of it."""


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


def books(setup: Setup, order: str) -> list[str]:
    with setup.app().store.read() as connection:
        found = connection.execute(select(Book.id).where(Book.id.like(f"{order}-%")))
        return sorted(one.removeprefix(f"{order}-") for one in found.scalars())


def prepare(setup: Setup) -> aft.Aft:
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
    app = prepare(setup)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match=failure):
        app.submit(leaving, how, order).result(60)
    assert books(setup, order) == []


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
    app = prepare(setup)
    with app.dispatcher():
        assert app.submit(leaving, how, order).result(60) == "left"
    assert books(setup, order) == list(left)
