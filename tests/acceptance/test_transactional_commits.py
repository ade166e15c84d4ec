"""A commit that is lost is tried again as the same attempt; one that the database refuses has failed the activity."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

import aft
from aft.errors import StoreError
from aft.flows.steps import attempt
from aft.flows.steps.attempt import MOST_LOST
from aft.runs.ownership.owner import Owner
from tests.setups import Setup, eventually
from tests.world import ledger


@aft.activity(transactional=True, levels=[])
def transact(order: str) -> int:
    ledger[order].append(f"transact {aft.current().attempt}")
    return int(aft.session().execute(text("SELECT 1")).scalar_one())


@aft.flow
def transacting(order: str) -> int:
    return transact(order)


def lose_transactions(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Have so many transactions lost when they are about to commit."""
    real: Any = Owner.write_in
    left = iter(range(times))

    def away(*args: Any, **kwargs: Any) -> None:
        if next(left, None) is not None:
            raise StoreError("the connection was lost", transient=True)
        real(*args, **kwargs)

    monkeypatch.setattr(Owner, "write_in", away)


def test_a_transaction_that_is_lost_is_made_once_more_as_the_same_attempt(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    lose_transactions(monkeypatch, MOST_LOST - 1)
    with app.dispatcher():
        assert app.submit(transacting, order).result(60) == 1
    assert ledger[order] == ["transact 1"] * MOST_LOST
    assert app.faults() == []


def test_an_activity_whose_transaction_is_lost_again_and_again_has_failed(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    lose_transactions(monkeypatch, MOST_LOST)
    with app.dispatcher():
        run = app.submit(transacting, order)
        eventually(lambda: run.status == "compensated")
    (fault,) = app.faults()
    assert (
        fault.message == f"the connection was lost; its transaction could not be committed, {MOST_LOST} times in a row"
    )
    assert ledger[order] == ["transact 1"] * MOST_LOST


def test_a_process_that_stops_gives_a_run_back_whose_transaction_was_lost(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PAUSE", 0.2)  # so all tries would take a quarter of a minute
    lose_transactions(monkeypatch, MOST_LOST)
    app = setup.app(lease="30s")
    dispatcher = app.dispatcher()
    dispatcher.start()
    run = app.submit(transacting, order)
    eventually(lambda: ledger[order])
    assert dispatcher.stop(20)
    assert len(ledger[order]) < MOST_LOST
    assert (run.status, app.faults()) == ("running", [])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@aft.activity(transactional=True, levels=[])
def transact_mutely(order: str) -> None:
    ledger[order].append("transact")
    raise Mute


@aft.flow
def transacting_mutely(order: str) -> None:
    transact_mutely(order)


def test_an_exception_without_a_text_fails_a_transactional_step_like_any_other(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(transacting_mutely, order)
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["transact"]
    assert ["Mute" in fault.type for fault in app.faults()] == [True]


@aft.activity(transactional=True, levels=[])
def use_up_inside(order: str, items: list[str]) -> int:
    return use_up(order, items)


@aft.activity(immediate=1, levels=[], recoverable=(ConnectionError,))
def use_up_outside(order: str, items: list[str]) -> int:
    if (used := use_up(order, items)) == len(ledger[order]):
        raise ConnectionError
    return used


def use_up(order: str, items: list[str]) -> int:
    """Take everything out of a list that was given."""
    before = len(ledger[order])
    while items:
        ledger[order].append(items.pop())
    return len(ledger[order]) - before


@aft.flow
def using_up(order: str) -> tuple[int, int]:
    return use_up_outside(f"{order} outside", ["a", "b"]), use_up_inside(order, ["a", "b"])


def test_each_try_gets_its_arguments_as_they_were_stored(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    lose_transactions(monkeypatch, 1)
    with app.dispatcher():
        assert app.submit(using_up, order).result(60) == (2, 2)
    assert ledger[order] == ledger[f"{order} outside"] == ["b", "a", "b", "a"]
    assert app.faults() == []


@aft.activity(name="deferred_shelve", transactional=True, levels=[])
def shelve(book: str, shelf: str) -> str:
    session = aft.session()
    session.execute(text("INSERT INTO deferred_books (id, shelf) VALUES (:id, :shelf)"), {"id": book, "shelf": shelf})
    return "shelved"


@aft.activity(name="deferred_build", transactional=True, levels=[])
def build(shelf: str) -> str:
    aft.session().execute(text("INSERT INTO deferred_shelves (id) VALUES (:id)"), {"id": shelf})
    return "built"


@aft.flow(name="deferred_flow")
def shelving(order: str) -> str:
    try:
        return shelve(f"{order}-1", order)
    except IntegrityError as error:
        said = str(error)
    assert "deferred_books" in said or "FOREIGN KEY" in said
    build(order)
    return shelve(f"{order}-2", order)


def test_an_activity_has_failed_with_what_the_database_refuses_to_commit(setup: Setup) -> None:
    app, order = setup.app(), secrets.token_hex(4)
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS deferred_shelves (id VARCHAR(20) PRIMARY KEY)"))
        connection.execute(
            text(
                "CREATE TABLE IF NOT EXISTS deferred_books (id VARCHAR(20) PRIMARY KEY, shelf VARCHAR(20) "
                "REFERENCES deferred_shelves (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        )
    with app.dispatcher():
        assert app.submit(shelving, order).result(60) == "shelved"
    with app.store.read() as connection:
        found = connection.execute(text("SELECT id FROM deferred_books WHERE shelf = :shelf"), {"shelf": order})
        assert list(found.scalars()) == [f"{order}-2"]
