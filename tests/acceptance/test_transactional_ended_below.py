"""A transactional activity that ends its transaction below SQLAlchemy has failed: its record is in another one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import aft
from tests.setups import Setup

#: More calls than connections are kept.
CALLS = 25


def driver() -> Any:
    return aft.session().connection().connection.driver_connection


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


@aft.activity(name="ended_below_ordinary", transactional=True, levels=[])
def work() -> int:
    return int(aft.session().execute(text("SELECT 1")).scalar_one())


@aft.flow(name="ended_below_working")
def working() -> int:
    return sum(work() for _ in range(CALLS))


def check(setup: Setup, how: str, then: str) -> None:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS ended_below (id VARCHAR(20) PRIMARY KEY)"))
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
def test_so_has_one_that_does_it_in_a_way_of_sqlites(tmp_path: Path, how: str, then: str) -> None:
    setup = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded")
    try:
        check(setup, how, then)
    finally:
        setup.close()
