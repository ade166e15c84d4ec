"""What a transactional activity begins on the connection of psycopg, and does not end, keeps nobody waiting."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

import aft
from tests.acceptance.transactions import CALLS, driver, prepare, working, written
from tests.setups import Setup


def stream() -> object:
    rows = driver().cursor().stream("SELECT * FROM generate_series(1, 100000)")
    next(rows)
    return rows


def copy_in() -> object:
    copying = driver().cursor().copy("COPY left_unfinished (id) FROM STDIN")
    copying.__enter__().write_row(["copied"])
    return copying


def copy_out() -> object:
    copying = driver().cursor().copy("COPY (SELECT * FROM generate_series(1, 100000)) TO STDOUT")
    copying.__enter__().read()
    return copying


def pipe() -> object:
    piping = driver().pipeline()
    piping.__enter__()
    driver().execute("SELECT 1")
    return piping


def transact() -> object:
    transaction = driver().transaction()
    transaction.__enter__()
    return transaction


#: What can be begun on psycopg's connection; each returns what has to be ended.
BEGINS: dict[str, Callable[[], object]] = {
    "a stream": stream,
    "a copy to the server": copy_in,
    "a copy from the server": copy_out,
    "a pipeline": pipe,
    "a transaction": transact,
}
#: What activities have begun: somebody keeps it.
kept: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    while kept:
        begun = kept.pop()
        with contextlib.suppress(psycopg.Error, aft.DefinitionError):
            getattr(begun, "gen", begun).close()


@aft.activity(name="left_unfinished_by", transactional=True, levels=[])
def begin(how: str, then: str, order: str) -> str:
    session = aft.session()
    session.execute(text("INSERT INTO left_unfinished (id) VALUES (:id)"), {"id": order})
    if then == "raises inside a with":
        with session:
            kept.append(BEGINS[how]())
            raise LookupError(order)
    kept.append(BEGINS[how]())
    if then == "raises":
        raise LookupError(order)
    return "begun"


@aft.activity(name="left_unfinished_copy", transactional=True, levels=[])
def copy(then: str, order: str) -> str:
    """Say COPY where it cannot be answered."""
    session = aft.session()
    session.execute(text("INSERT INTO left_unfinished (id) VALUES (:id)"), {"id": order})
    if then == "inside a with":
        with session:
            session.execute(text("COPY left_unfinished FROM STDIN"))
    try:
        session.execute(text("COPY left_unfinished FROM STDIN"))
    except DBAPIError:
        if then == "leaves":
            raise
        if then == "goes on":
            session.rollback()
            session.execute(text("INSERT INTO left_unfinished (id) VALUES (:id)"), {"id": order})
    return "copied"


@aft.activity(name="left_finished", transactional=True, levels=[])
def finish(order: str) -> list[int]:
    """Use all of it, in order."""
    with driver().pipeline():
        driver().execute("INSERT INTO left_unfinished (id) VALUES (%s)", [order])
        aft.session().commit()
    with driver().transaction(), driver().cursor().copy("COPY left_unfinished (id) FROM STDIN") as copying:
        copying.write_row([f"{order}-2"])
    return [number for (number,) in driver().cursor().stream("SELECT * FROM generate_series(1, 3)")]


@aft.flow(name="left_unfinished_flow")
def beginning(how: str, then: str, order: str) -> str:
    return begin(how, then, order)


@aft.flow(name="left_unfinished_copying")
def copying(then: str, order: str) -> str:
    return copy(then, order)


@aft.flow(name="left_finished_flow")
def finishing(order: str) -> list[int]:
    return finish(order)


@pytest.mark.parametrize(
    ("then", "failure"),
    [
        ("returns", "DefinitionError: .* in the middle of something"),
        ("raises", "LookupError"),
        ("raises inside a with", "LookupError"),
    ],
)
@pytest.mark.parametrize("how", BEGINS)
def test_an_activity_that_leaves_its_connection_in_the_middle_of_something_has_failed(
    production: Setup, how: str, then: str, failure: str
) -> None:
    app, order = prepare(production, "left_unfinished"), secrets.token_hex(4)
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match=failure):
            app.submit(beginning, how, then, order).result(60)
        assert app.submit(working).result(60) == CALLS  # its connection is in nobody's way
    assert written(app, "left_unfinished", order) == []


@pytest.mark.parametrize("then", ["leaves", "inside a with", "goes on", "returns"])
def test_a_copy_that_sqlalchemy_cannot_answer_is_a_failure_of_the_activity_and_no_lost_connection(
    production: Setup, then: str
) -> None:
    app, order = prepare(production, "left_unfinished"), secrets.token_hex(4)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match=r"ProgrammingError: .*COPY"):
        app.submit(copying, then, order).result(60)
    assert written(app, "left_unfinished", order) == []


def test_what_was_begun_in_a_session_and_ended_again_is_nobodys_concern(production: Setup) -> None:
    app, order = prepare(production, "left_unfinished"), secrets.token_hex(4)
    with app.dispatcher():
        assert app.submit(finishing, order).result(60) == [1, 2, 3]
    assert written(app, "left_unfinished", order) == ["", "2"]


drivers: list[Any] = []


@aft.activity(name="left_unfinished_keep", transactional=True)
def keep_driver() -> str:
    drivers.append(driver())
    return "kept"


@aft.flow(name="left_unfinished_keeping")
def keeping() -> str:
    return keep_driver()


def test_a_connection_that_somebody_uses_after_its_activity_has_ended_is_nobodys(production: Setup) -> None:
    """A thread of the activity's, say: it is refused, and the connection is nobody else's any more."""
    app = production.app()
    for _ in range(CALLS):
        assert app.start(keeping).result(0) == "kept"
        for connection in drivers:
            if not connection.closed:
                with pytest.raises(aft.DefinitionError, match="has ended"):
                    connection.execute("SELECT 1")
    drivers.clear()
