"""The same key is the same run: what was submitted is compared, as by a replay, not how it is spelled or stands now."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import pytest

import aft
from aft.flows.declare.flow import Flow
from aft.runs import submit
from aft.runs.new_runs import NewRunWrite
from aft.runs.run_rows import RunRow
from aft.store import Store
from tests.setups import Setup, eventually


@pytest.fixture
def key() -> str:
    return secrets.token_hex(4)


# Runs that begin anew -------------------------------------------------------------------------------------------


@aft.flow(name="keys_subscription")
def subscription(who: str, month: int = 1) -> str:
    if month < 3:
        aft.continue_as_new(who, month + 1)
    aft.wait_for("stop")
    return f"{who} {month}"


def is_in_its_third_month(run: aft.Run[str]) -> bool:
    return run.row.key_generation == 2 and run.status == "waiting"


def check_what_was_submitted(app: aft.Aft, key: str, run: aft.Run[str]) -> None:
    keyed = subscription.options(key=key)
    assert app.submit(keyed, "ann").id == app.start(keyed, "ann").id == app.submit(keyed, "ann", 1).id == run.id
    for who, month in (("ann", 3), ("bob", 1)):
        with pytest.raises(
            aft.KeyConflict, match=f"already names run {run.id}, which was started with other arguments"
        ):
            app.submit(keyed, who, month)


def test_a_key_stands_for_what_was_submitted_however_often_the_run_began_anew(setup: Setup, key: str) -> None:
    app = setup.app()
    run = app.start(subscription.options(key=key), "ann")
    assert is_in_its_third_month(run)
    check_what_was_submitted(app, key, run)
    run.signal("stop")
    with app.dispatcher():
        assert run.result(60) == "ann 3"
    check_what_was_submitted(app, key, run)


@pytest.mark.parametrize("options", [{}, {"key": "unanswered"}], ids=["without a key", "with a key"])
def test_a_submit_whose_commit_had_no_answer_finds_its_run_though_that_began_anew(
    setup: Setup, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    make, made = submit._make, []

    def make_without_an_answer(store: Store, beginning: NewRunWrite) -> RunRow | None:
        row = make(store, beginning)
        assert row is not None
        made.append(row.id)
        eventually(lambda: is_in_its_third_month(app.run(row.id)))
        return None

    with app.dispatcher():
        monkeypatch.setattr(submit, "_make", make_without_an_answer)
        run = app.submit(subscription.options(**options), "ann")
        assert [run.id] == made
        run.cancel()
        eventually(lambda: run.status.ended)


# What is the same call ------------------------------------------------------------------------------------------


@dataclass
class Item:
    name: str


@dataclass
class GrownItem:
    name: str
    gift: bool = False


def before(options: dict[str, int], names: list[str], item: Item, count: int = 1) -> None: ...


def after(options: dict[str, int], names: list[str], item: GrownItem, count: int = 2, extra: int = 0) -> None: ...


BEFORE: Flow[Any, Any] = Flow(before, name="keys_deployed")
#: The same flow after a deploy: a default has changed, a parameter and a field have come.
AFTER: Flow[Any, Any] = Flow(after, name="keys_deployed")

USUAL: dict[str, Any] = {"options": {"a": 1, "b": 2}, "names": ["x", "y"], "item": Item("pen")}
GROWN: dict[str, Any] = {**USUAL, "item": GrownItem("pen")}

SAME: dict[str, tuple[dict[str, Any], Flow[Any, Any], dict[str, Any]]] = {
    "a dict in another order": (USUAL, BEFORE, {**USUAL, "options": {"b": 2, "a": 1}}),
    "a default is given": (USUAL, BEFORE, {**USUAL, "count": 1}),
    "a default is left out": ({**USUAL, "count": 1}, BEFORE, USUAL),
    "after a deploy": (USUAL, AFTER, GROWN),
    "after a deploy, as it was": ({**USUAL, "count": 1}, AFTER, {**GROWN, "count": 1}),
    "after a deploy, the default of then": (USUAL, AFTER, {**GROWN, "count": 1}),
    "after a deploy, with a new parameter's default": (USUAL, AFTER, {**GROWN, "extra": 0}),
}
OTHERS: dict[str, tuple[dict[str, Any], Flow[Any, Any], dict[str, Any], str]] = {
    "a value": (USUAL, BEFORE, {**USUAL, "options": {"a": 1, "b": 3}}, "options"),
    "a key more": (USUAL, BEFORE, {**USUAL, "options": {"a": 1, "b": 2, "c": 3}}, "options"),
    "a list in another order": (USUAL, BEFORE, {**USUAL, "names": ["y", "x"]}, "names"),
    "two values": (USUAL, BEFORE, {**USUAL, "names": [], "item": Item("ink")}, "names, item"),
    "not the default": (USUAL, BEFORE, {**USUAL, "count": 3}, "count"),
    "the default instead": ({**USUAL, "count": 3}, BEFORE, USUAL, "count"),
    "after a deploy, another value": (USUAL, AFTER, {**GROWN, "names": []}, "names"),
    "after a deploy, the new default of what was given": ({**USUAL, "count": 1}, AFTER, GROWN, "count"),
    "after a deploy, another value than the default of then": (USUAL, AFTER, {**GROWN, "count": 2}, "count"),
    "after a deploy, a new parameter with another value": (USUAL, AFTER, {**GROWN, "extra": 5}, "extra"),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_call_is_the_same_run(setup: Setup, key: str, case: str) -> None:
    app = setup.app()
    first, flow, again = SAME[case]
    run = app.submit(BEFORE.options(key=key), **first)
    assert app.submit(flow.options(key=key), **again).id == run.id


@pytest.mark.parametrize("case", OTHERS)
def test_another_call_is_refused_and_what_differs_is_named(setup: Setup, key: str, case: str) -> None:
    app = setup.app()
    first, flow, again, differs = OTHERS[case]
    app.submit(BEFORE.options(key=key), **first)
    with pytest.raises(aft.KeyConflict, match=rf"\(what differs: {differs}\)"):
        app.submit(flow.options(key=key), **again)
