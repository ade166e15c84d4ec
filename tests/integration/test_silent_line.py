"""One dispatcher's line to the database falls silent; the broker goes on giving it messages. Others work them off."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import aft
from aft.runs.states import Status
from aft.store import connecting
from tests.conftest import make_setup
from tests.contract.proxy import Proxy
from tests.setups import Setup, eventually

#: So long that nobody but a message wakes a run, or has its fault decided, within a test.
NEVER = "10m"


@aft.activity(name="silent_step", levels=[aft.Level("10ms", tries=9)])
def step(fails: int) -> int:
    if aft.current().attempt <= fails:
        raise aft.Recoverable("not yet")
    return fails


@aft.flow(name="silent_order")
def order(fails: int) -> int:
    return step(fails)


@pytest.fixture
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    made = make_setup("postgresql+rabbitmq", request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def line(setup: Setup) -> Iterator[Proxy]:
    with Proxy(urlsplit(setup.database).port or 5432) as proxy:
        yield proxy


@pytest.mark.parametrize("role", ["work", "intake"])
def test_messages_for_a_dispatcher_that_lost_the_database_are_worked_off_by_others(
    setup: Setup, line: Proxy, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets every second message; with what it got it can do nothing."""
    monkeypatch.setitem(connecting._POSTGRESQL, "connect_timeout", 60)  # it does not find out by itself either
    port = urlsplit(setup.database).port or 5432
    behind = Setup("silent", setup.database.replace(f":{port}/", f":{line.port}/"), setup.broker, setup.namespace)
    fails = 1 if role == "intake" else 0
    others = {"work", "intake", "relay", "sweep"}
    app, cut_off = setup.app(grace=NEVER, lease="2s"), behind.app(grace=NEVER, lease="2s")
    with app, cut_off, app.dispatcher(only=others), cut_off.dispatcher(only=[role]):
        assert app.submit(order, fails).result(30) == fails
        line.hold()
        try:
            runs = [app.submit(order.options(key=secrets.token_hex(4)), fails) for _ in range(20)]
            eventually(lambda: all(run.status is Status.COMPLETED for run in runs))
        finally:
            line.release()
        assert app.submit(order, fails).result(30) == fails
