"""One dispatcher's line to the database falls silent; the broker goes on giving it messages. Others work them off."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from threading import Event, Thread, get_ident
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Connection, event

import aft
from aft.app import DispatcherProcess
from aft.recovery.service import Service
from aft.runs.states import Status
from aft.store import connect
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


#: Threads on which a booking is about to commit.
booking: set[int] = set()


@aft.activity(name="silent_booking", transactional=True)
def book() -> int:
    booking.add(get_ident())
    return 1


@aft.flow(name="silent_purchase")
def purchase() -> int:
    return book()


@pytest.fixture
def line(production: Setup) -> Iterator[Proxy]:
    with Proxy(urlsplit(production.database).port or 5432) as proxy:
        yield proxy


def behind(line: Proxy, production: Setup) -> Setup:
    """The same place, reached by a line that can fall silent."""
    port = urlsplit(production.database).port or 5432
    return Setup(
        "silent", production.database.replace(f":{port}/", f":{line.port}/"), production.broker, production.namespace
    )


@pytest.mark.parametrize("role", ["work", "intake"])
def test_messages_for_a_dispatcher_that_lost_the_database_are_worked_off_by_others(
    production: Setup, line: Proxy, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets every second message; with what it got it can do nothing."""
    monkeypatch.setitem(connect._POSTGRESQL, "connect_timeout", 60)  # it does not find out by itself either
    fails = 1 if role == "intake" else 0
    others = {"work", "intake", "relay", "sweep"}
    app, cut_off = production.app(grace=NEVER), behind(line, production).app(grace=NEVER, lease="2s")
    with app, cut_off, app.dispatcher(only=others), cut_off.dispatcher(only=[role]):
        assert app.submit(order, fails).result(60) == fails
        line.hold()
        try:
            runs = [app.submit(order.options(key=secrets.token_hex(4)), fails) for _ in range(20)]
            eventually(lambda: all(run.status is Status.COMPLETED for run in runs))
        finally:
            line.release()
        assert app.submit(order, fails).result(60) == fails


def test_a_run_is_taken_over_whose_transaction_lost_the_line_before_its_commit(production: Setup, line: Proxy) -> None:
    """The record is written, so the run's row is locked; the server must not wait a minute for the COMMIT."""
    app, cut_off = production.app(), behind(line, production).app(lease="2s", grace="1s")

    silent = Event()

    def fall_silent(connection: Connection) -> None:
        if get_ident() in booking:
            booking.clear()
            line.hold()
            silent.set()

    with app, cut_off:
        event.listen(cut_off.store.engine, "commit", fall_silent)
        with cut_off.dispatcher(only=["work", "relay"]):
            run = app.submit(purchase)
            assert silent.wait(60)
            try:
                with app.dispatcher():
                    assert run.result(60) == 1
            finally:
                line.release()


def services(dispatcher: DispatcherProcess) -> list[Service]:
    worker = dispatcher._worker
    return [*dispatcher._services, *(worker._services if worker is not None else [])]


def test_whoever_is_stopped_while_the_database_does_not_answer_ends_in_time(production: Setup, line: Proxy) -> None:
    """Its threads are in calls that nobody answers, and does not cut either."""
    with behind(line, production).app(lease="10m") as cut_off:
        dispatcher = cut_off.dispatcher()
        dispatcher.start()
        assert cut_off.submit(order, 0).result(60) == 0
        line.hold()
        stopping = Thread(target=dispatcher.stop, args=[2.0])
        stopping.start()
        try:
            stopping.join(30)
            assert not stopping.is_alive()
        finally:
            line.release()
            # Not left to the tests that follow: its process would have ended.
            dispatcher._lease.end()
            eventually(lambda: not any(service._thread.is_alive() for service in services(dispatcher)))
