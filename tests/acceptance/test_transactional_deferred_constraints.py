"""What the database checks only at the commit belongs to the activity: it has failed with what is refused there."""

from __future__ import annotations

import secrets

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

import aft
from tests.setups import Setup


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
