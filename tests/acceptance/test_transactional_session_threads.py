"""A thread that uses the session of a transactional activity after its end: nothing of that remains."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

import aft
from tests.acceptance.transactions import CALLS, prepare, written
from tests.setups import Setup, eventually

INSERT = "INSERT INTO session_threads (id) VALUES ('{}')"


def by_session(session: Session, name: str) -> None:
    session.execute(text(INSERT.format(name)))
    session.commit()


def by_connection(session: Session, name: str) -> None:
    connection: Any = session.bind
    connection.execute(text(INSERT.format(name)))
    connection.commit()


#: How a thread writes with what it was given; the last one with the connection of the driver.
WAYS: dict[str, Callable[[Session, str], None]] = {"its session": by_session, "its connection": by_connection}
HOW = [*WAYS, "the driver's connection", "a cursor of the driver's"]


class Helper:
    """A thread that an activity has begun, and that goes on when the activity has ended."""

    def __init__(self, how: str, order: str) -> None:
        self._how = how
        self._order = order
        self._thread = ThreadPoolExecutor(1)
        self.tries = 0

    def meet(self, *, at_work: bool) -> None:
        """Get to know the session; try it out, too, while the activity is at work."""
        self._session = aft.session()
        driver: Any = self._session.connection().connection.driver_connection
        self.driver, self._cursor = driver, driver.cursor()
        if at_work:
            self._thread.submit(self._session.execute, text(INSERT.format(f"{self._order}-before"))).result(30)

    def try_again(self) -> None:
        """Write something more; whatever comes of it."""
        self.tries += 1
        self._thread.submit(self._write).result(30)

    def _write(self) -> None:
        with contextlib.suppress(Exception):
            name = f"{self._order}-after"
            if self._how in WAYS:
                WAYS[self._how](self._session, name)
            else:
                with_what = self.driver if self._how.startswith("the driver") else self._cursor
                with_what.execute(INSERT.format(name))

    def end(self) -> None:
        self._thread.shutdown()


helpers: dict[str, Helper] = {}


@aft.activity(name="session_threads_help", transactional=True, levels=[])
def help_along(order: str, fails: bool, at_work: bool) -> str:
    helpers[order].meet(at_work=at_work)
    aft.session().execute(text(INSERT.format(f"{order}-own")))
    if fails:
        raise LookupError(order)
    return "helped"


@aft.flow(name="session_threads_helping")
def helping(order: str, fails: bool, at_work: bool) -> str:
    return help_along(order, fails, at_work)


@aft.activity(name="session_threads_ordinary", transactional=True, levels=[])
def work(order: str) -> int:
    helpers[order].try_again()
    return int(aft.session().execute(text("SELECT 1")).scalar_one())


@aft.flow(name="session_threads_working")
def working(order: str) -> int:
    return sum(work(order) for _ in range(CALLS))


@contextlib.contextmanager
def helper(how: str) -> Iterator[tuple[str, Helper]]:
    order = secrets.token_hex(4)
    made = helpers[order] = Helper(how, order)
    yield order, made
    made.end()


def outcome(fails: bool) -> contextlib.AbstractContextManager[object]:
    return pytest.raises(aft.FlowCompensated, match="LookupError") if fails else contextlib.nullcontext()


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "returns"])
@pytest.mark.parametrize("when", ["commit or rollback", "reset", "checkin"])
def test_what_a_thread_does_with_the_session_when_the_activity_has_ended_is_refused(
    setup: Setup, when: str, fails: bool
) -> None:
    """While the transaction ends, before its connection is given back, and when it has been."""
    app, found = prepare(setup, "session_threads"), {}
    name = when if "or" not in when else "rollback" if fails else "commit"
    helping_now: list[Helper] = []

    def interfere(connection: Any, *_: object) -> None:
        driver = connection.connection.driver_connection if name in ("commit", "rollback") else connection
        for thread in helping_now:
            if driver is getattr(thread, "driver", None) and not thread.tries:
                thread.try_again()

    event.listen(app.store.engine, name, interfere, insert=True)
    with app.dispatcher():
        for how in HOW:
            with helper(how) as (order, thread):
                helping_now[:] = [thread]
                with outcome(fails):
                    assert app.submit(helping, order, fails, False).result(60) == "helped"
                assert thread.tries == 1
                found[how] = written(app, "session_threads", order)
    assert found == dict.fromkeys(HOW, [] if fails else ["own"])


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "returns"])
def test_nor_does_it_write_in_the_transactions_of_others(setup: Setup, fails: bool) -> None:
    app, found = prepare(setup, "session_threads"), {}
    with app.dispatcher():
        for how in HOW:
            with helper(how) as (order, thread):
                with outcome(fails):
                    assert app.submit(helping, order, fails, True).result(60) == "helped"
                assert app.submit(working, order).result(60) == CALLS
                assert thread.tries == CALLS
                found[how] = written(app, "session_threads", order)
    assert found == dict.fromkeys(HOW, [] if fails else ["before", "own"])


_MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)"
#: Statements that last for longer than they are waited for: one that writes, and one that reads.
LONG = {
    ("postgresql", True): "INSERT INTO session_threads SELECT '{}-after' FROM pg_sleep(12)",
    ("postgresql", False): "SELECT '{}-after' FROM pg_sleep(12)",
    ("sqlite", True): f"{_MANY} INSERT INTO session_threads SELECT '{{}}-after' FROM n WHERE i < 0",
    ("sqlite", False): f"{_MANY} SELECT '{{}}-after' FROM n WHERE i < 0",
}
threads: list[threading.Thread] = []


@aft.activity(name="session_threads_long", transactional=True, levels=[])
def begin_long(order: str, fails: bool, writes: bool) -> str:
    session = aft.session()
    driver: Any = session.connection().connection.driver_connection
    if session.get_bind().dialect.name == "sqlite":
        driver.create_function("session_threads", 0, lambda: 1)
    begins = threading.Event()

    def execute() -> None:
        begins.set()
        with contextlib.suppress(Exception):
            driver.execute(LONG[session.get_bind().dialect.name, writes].format(order))

    threads.append(threading.Thread(target=execute, daemon=True))
    threads[-1].start()
    assert begins.wait(30)
    eventually(lambda: not driver_is_free(driver))
    if fails:
        raise LookupError(order)
    return "begun"


def driver_is_free(driver: Any) -> bool:
    free = bool(driver.access.acquire(blocking=False))
    if free:
        driver.access.release()
    return free


@aft.flow(name="session_threads_being_long")
def being_long(order: str, fails: bool, writes: bool) -> str:
    return begin_long(order, fails, writes)


@pytest.mark.parametrize("writes", [True, False], ids=["writes", "reads"])
@pytest.mark.parametrize(("fails", "failure"), [(True, "LookupError"), (False, "in the middle of something")])
def test_a_statement_of_another_thread_that_lasts_too_long_is_the_activitys_failure(
    setup: Setup, fails: bool, failure: str, writes: bool
) -> None:
    app, order = prepare(setup, "session_threads"), secrets.token_hex(4)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match=failure):
        app.submit(being_long, order, fails, writes).result(60)
    threads.pop().join(30)
    assert written(app, "session_threads", order) == []
