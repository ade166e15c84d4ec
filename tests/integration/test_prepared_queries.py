"""Claims about questions: several in one round trip, each with its own rows, and nobody else is kept waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime

import psycopg
import pytest

from aft.errors import StoreError
from aft.store import Store
from aft.store.batch.statements import PreparedQuery
from tests.storing import Stage

LENGTH = PreparedQuery("SELECT length(%s)", "SELECT length(?)")
UPPER = PreparedQuery("SELECT upper(%s)", "SELECT upper(?)")
MOMENT = PreparedQuery("SELECT %s::timestamptz, 1.5::float8, true, NULL", "")
NUMBER = PreparedQuery("SELECT %s::int", "")
SLEEP = PreparedQuery("SELECT 1 FROM pg_sleep(%s::float8)", "")


@pytest.fixture
def store(migrated_url: str) -> Iterator[Store]:
    made = Store(migrated_url)
    yield made
    made.close()


def test_each_question_gets_its_own_rows(stage: Stage) -> None:
    for _ in range(3):  # made ready with the first use, and used again
        assert stage.store.query([(LENGTH, "abc"), (UPPER, "abc"), (LENGTH, "")]) == [[(3,)], [("ABC",)], [(0,)]]
        assert stage.store.query([(UPPER, "x")]) == [[("X",)]]


def test_values_come_as_python_has_them(store: Store) -> None:
    asked = [(MOMENT, "2024-05-17 12:30:15.123456+00"), (NUMBER, "7")]
    moment = datetime(2024, 5, 17, 12, 30, 15, 123456, tzinfo=UTC)
    assert store.query(asked) == [[(moment, 1.5, True, None)], [(7,)]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_refused_refuses_all_and_the_next_are_answered(store: Store, place: int) -> None:
    asked = [(LENGTH, "abc"), (UPPER, "abc")]
    asked.insert(place, (NUMBER, "no number"))
    for _ in range(2):
        with pytest.raises(StoreError, match="no number"):
            store.query(asked)
        assert store.query([(LENGTH, "abc"), (NUMBER, "7")]) == [[(3,)], [(7,)]]


def test_more_may_be_asked_than_a_line_takes_at_once(store: Store) -> None:
    many = "x" * 8_000_000
    assert store.query([(LENGTH, many), (UPPER, many), (LENGTH, many)]) == [
        [(len(many),)],
        [(many.upper(),)],
        [(len(many),)],
    ]


def test_other_threads_go_on_while_an_answer_is_awaited(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.query, [(SLEEP, "0"), (SLEEP, "0.6")])
        rounds = 0
        while not wait([asked], 0.001).done:
            rounds += 1
    assert rounds > 6


def test_a_line_that_is_lost_while_an_answer_is_awaited_may_be_tried_again(store: Store, migrated_url: str) -> None:
    mine = PreparedQuery("SELECT pg_backend_pid(), %s::text", "")
    ((pid, _),) = store.query([(mine, "")])[0]

    def end() -> None:
        with psycopg.connect(migrated_url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))

    ending = threading.Timer(0.1, end)
    ending.start()
    with pytest.raises(StoreError) as told:
        store.query([(SLEEP, "30"), (SLEEP, "0")])
    ending.join()
    assert told.value.transient
    assert store.query([(LENGTH, "abc")]) == [[(3,)]]
