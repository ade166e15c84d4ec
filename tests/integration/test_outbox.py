"""Claims about the outbox: who holds a message, who may take it, and that none is passed over."""

from __future__ import annotations

import pytest
from sqlalchemy import text, update

from aft.store import Store, outbox
from aft.store.db_time import later
from aft.store.outbox import OutboxRow
from aft.store.tables import outbox as table
from tests.storing import Stage, at_once


def put(stage: Stage, *queues: str, hold: float = 0.0) -> list[OutboxRow]:
    with stage.store.write() as connection:
        return outbox.put(connection, stage.namespace, [(queue, "{}") for queue in queues], hold=hold)


def take(stage: Stage, limit: int = 100, hold: float = outbox.HOLD) -> list[str]:
    with stage.store.write() as connection:
        return [row.queue for row in outbox.take(connection, stage.namespace, limit, hold=hold)]


def any_free(stage: Stage) -> bool:
    return outbox.any_free(stage.store, stage.namespace)


def test_a_message_that_nobody_holds_is_free_at_once(stage: Stage) -> None:
    made = put(stage, "a")
    assert any_free(stage)
    with stage.store.write() as connection:
        assert outbox.take(connection, stage.namespace, 10) == made


def test_a_message_that_its_writer_holds_is_nobody_else_s(stage: Stage) -> None:
    put(stage, "a", hold=60)
    assert not any_free(stage)
    assert take(stage) == []


def test_a_hold_that_ran_out_is_none(stage: Stage) -> None:
    put(stage, "a", hold=60)
    with stage.store.write() as connection:
        connection.execute(update(table).where(table.c.namespace == stage.namespace).values(taken_until=later(-1)))
    assert take(stage) == ["a"]


def test_what_one_relay_has_taken_another_does_not_get(stage: Stage) -> None:
    put(stage, "a", "b", "c")
    assert take(stage, limit=2) == ["a", "b"]
    assert take(stage) == ["c"]
    assert take(stage) == []


def test_what_is_confirmed_is_gone(stage: Stage) -> None:
    made = put(stage, "a", "b")
    with stage.store.write() as connection:
        outbox.confirm(connection, [made[0].id])
        outbox.confirm(connection, [made[0].id])
    assert stage.posted() == ["b"]


def test_what_is_let_go_is_free_again(stage: Stage) -> None:
    made = put(stage, "a", hold=60)
    with stage.store.write() as connection:
        outbox.release_rows(connection, [made[0].id])
    assert take(stage) == ["a"]


def test_messages_are_taken_by_their_state_and_not_by_their_id(stage: Stage) -> None:
    low = put(stage, "low", hold=60)
    put(stage, "high")
    assert take(stage) == ["high"]
    with stage.store.write() as connection:
        outbox.release_rows(connection, [row.id for row in low])
    assert take(stage) == ["low"]


def test_a_lower_id_that_is_committed_later_is_not_passed_over(migrated_url: str) -> None:
    stage = Stage(Store(migrated_url))
    with stage.store.write() as slow:
        first = outbox.put(slow, stage.namespace, [("low", "{}")])
        second = put(stage, "high")
        assert first[0].id < second[0].id
        assert take(stage) == ["high"]
    assert take(stage) == ["low"]
    stage.close()


def test_a_relay_does_not_wait_for_rows_that_another_is_taking(migrated_url: str) -> None:
    stage = Stage(Store(migrated_url))
    put(stage, "a", "b")
    with stage.store.write() as slow:
        assert [row.queue for row in outbox.take(slow, stage.namespace, 1)] == ["a"]
        with stage.store.write() as quick:
            quick.execute(text("SET LOCAL lock_timeout = '5s'"))
            assert [row.queue for row in outbox.take(quick, stage.namespace, 2)] == ["b"]
    stage.close()


def test_messages_of_another_namespace_are_left_alone(stage: Stage) -> None:
    put(stage, "a")
    with stage.store.write() as connection:
        assert outbox.take(connection, stage.namespace + "x", 10) == []
    assert not outbox.any_free(stage.store, stage.namespace + "x")


def test_a_message_exists_only_with_the_state_that_it_announces(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError), stage.store.write() as connection:  # noqa: PT012
        outbox.put(connection, stage.namespace, [("a", "{}")])
        raise ZeroDivisionError
    assert stage.posted() == []


def test_no_message_is_taken_twice_by_relays_that_come_at_once(stage: Stage) -> None:
    put(stage, *(f"q{number:02}" for number in range(40)))
    found = at_once([lambda: take(stage, limit=15)] * 4)
    taken = [queue for batch in found for queue in batch]
    assert len(taken) == len(set(taken))
    assert sorted(taken + take(stage)) == [f"q{number:02}" for number in range(40)]
