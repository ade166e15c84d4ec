"""Calls that cannot be done are refused where they are made, and the refusal names what is wrong."""

from __future__ import annotations

import pytest

import aft
from tests.acceptance import shop
from tests.acceptance.shop import changing, parked
from tests.setups import Setup


def test_an_argument_that_cannot_be_stored_is_refused_at_the_call_with_its_path(setup: Setup, order: str) -> None:
    app = setup.app()
    with pytest.raises(aft.CodecError, match="order") as refused:
        app.start(shop.buy, object())  # type: ignore[call-overload]
    assert refused.value.path == "order"
    assert app.runs() == []

    run = app.start(changing(f"argument_{order}", lambda order: shop.reserve(object())), order)  # type: ignore[arg-type, call-overload]
    assert run.status == "parked"
    assert "CodecError" in (run.row.reason or "")


def test_an_order_to_a_run_that_is_not_parked_is_refused_and_changes_nothing(setup: Setup, order: str) -> None:
    run = setup.app().start(shop.buy, order)
    before = run.row
    with pytest.raises(aft.OrderRefused, match="completed, not parked"):
        run.retry()
    assert run.row == before


def test_starting_a_run_inside_a_flows_code_is_refused(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.start(changing(f"nested_{order}", lambda order: app.start(shop.buy, order).id), order)
    assert "start it in an activity" in (run.row.reason or "")


def test_a_key_for_a_child_is_refused_before_it_is_started(setup: Setup, order: str) -> None:
    app = setup.app()
    keyed = changing(f"keyed_{order}", lambda order: shop.booked.options(key="one")(order))
    with app.dispatcher():
        run = app.submit(keyed, order)
        assert "child flow 'booked' was called with key='one'" in parked(app, run)
    assert [found.id for found in app.runs()] == [run.id]


def test_texts_that_are_too_long_are_refused_before_the_database_does(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.submit(shop.buy, order)
    assert run.signal("go", key="k" * 378)
    assert run.signal("n" * 200, key="k/" * 90)
    for name, key in [("go", "k" * 379), ("n" * 200, "k" * 181)]:
        with pytest.raises(aft.DefinitionError, match="are the most: give a shorter one"):
            run.signal(name, key=key)
    with pytest.raises(aft.DefinitionError, match="has 201 characters; 200 are the most"):
        run.signal("go", by="b" * 201)
    with pytest.raises(aft.OrderRefused, match="has 201 characters; 200 are the most"):
        run.suspend("for a while", by="b" * 201)


def test_an_unknown_run_is_named(setup: Setup) -> None:
    with pytest.raises(aft.UnknownRun, match="nonsense"):
        setup.app().run("nonsense")


def test_a_postgresql_that_is_not_migrated_says_what_to_do(production: Setup) -> None:
    empty = production.database.rsplit("/", 1)[0] + "/postgres"
    with aft.Aft(database=empty) as app, pytest.raises(aft.NotMigrated, match="aft db upgrade"):
        app.submit(shop.buy, "x")
