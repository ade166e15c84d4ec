"""Claims about a flow's code that goes on while the outcome of its last activity is still being committed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import aft
from aft.store import Store
from aft.telemetry import Event
from tests.setups import Setup, dispatching, eventually
from tests.world import broken, ledger

#: Set when a commit of an outcome that was held back begins, by another thread than the run's.
committing = threading.Event()


@pytest.fixture(autouse=True)
def slow_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit of an outcome that was held back takes a while."""
    real = Store.write_now

    def write(store: Store, *given: Any) -> Any:
        if threading.current_thread().name == "aft-held-writes":
            committing.set()
            threading.Event().wait(0.2)
        return real(store, *given)

    monkeypatch.setattr(Store, "write_now", write)
    committing.clear()


def give_back(order: str, result: str) -> None:
    ledger[order].append(f"{result} given back")


@aft.compensate_with(give_back)
@aft.activity(name="after_activity_book")
def book(order: str, what: str) -> str:
    ledger[order].append(what)
    return what


class Sold(Exception):
    """What was booked is sold already."""


@aft.flow(name="after_activity_savepoint")
def travel(order: str) -> str:
    try:
        with aft.savepoint("sea"):
            book(order, "ship")
            assert committing.wait(20)
            raise Sold
    except Sold:
        return book(order, "train")


@aft.flow(name="after_activity_bug")
def mistaken(order: str) -> str:
    book(order, "ship")
    assert committing.wait(20)
    if order in broken:
        raise AttributeError("a mistake in the flow's code")
    return "done"


def test_a_savepoint_that_is_undone_meanwhile_undoes_the_activity(setup: Setup, show: str) -> None:
    app = setup.app()
    run = app.start(travel, show)
    assert run.result(timeout=60) == "train"
    assert ledger[show] == ["ship", "ship given back", "train"]


def test_a_mistake_meanwhile_leaves_the_outcome(setup: Setup, show: str) -> None:
    app = setup.app()
    broken.add(show)
    with dispatching(app):
        run = app.submit(mistaken, show)
        eventually(lambda: run.status == "parked")
        broken.discard(show)
        run.retry()
        assert run.result(timeout=60) == "done"
    assert ledger[show] == ["ship"]


def test_a_subscriber_that_waits_for_the_flow_s_code_does_not_hold_it_up(setup: Setup, show: str) -> None:
    """It is called by the run's own thread, so that it may take a lock which the flow's code has."""
    app, turn, threads = setup.app(), threading.RLock(), list[str]()

    def note(event: Event) -> None:
        with turn:
            threads.append(threading.current_thread().name)

    app.telemetry.subscribe(note)
    with turn:
        assert app.start(travel, show).result(timeout=60) == "train"
    assert threads
    assert "aft-held-writes" not in threads
