"""A run keeps only so many signals that it has not taken: each of its owners loads them all."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import insert, update

import aft
from aft.ids import new_id
from aft.runs.signals import MOST_UNREAD, MOST_UNREAD_TEXT
from aft.store.db_time import now
from aft.store.tables import inbox, runs
from tests.setups import Setup, eventually


@aft.flow(name="signals_limited_hearing")
def hearing(order: str) -> str:
    return str(aft.wait_for("word", str))


def send_many(app: aft.Aft, run: aft.Run[str], number: int, size: int) -> None:
    """Put signals of this size into a run's inbox, as if they had been sent."""
    payload = json.dumps({"name": "other", "value": "x" * size})
    sent = {"run_id": run.id, "kind": "signal", "payload": payload, "actor": "somebody"}
    with app.store.write() as connection:
        before = run.row.inbox_seq
        rows = [{**sent, "seq": before + place, "id": new_id()} for place in range(1, number + 1)]
        connection.execute(insert(inbox).values(at=now()), rows)
        connection.execute(update(runs).where(runs.c.id == run.id).values(inbox_seq=before + number))


def send_until_refused(run: aft.Run[str], most: int) -> int:
    """Send small signals until one is refused; return how many were not."""
    for sent in range(most):
        try:
            run.signal("other", "small")
        except aft.OrderRefused:
            return sent
    pytest.fail(f"none of {most} signals was refused")


def test_a_run_with_too_many_signals_refuses_more_until_it_has_taken_some(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.submit(hearing, order)
    assert run.signal("other", "known", key="a")
    send_many(app, run, MOST_UNREAD - 2, 1)
    assert run.signal("other", "the last one that fits")
    assert send_until_refused(run, 101) < 100
    with pytest.raises(aft.OrderRefused, match=r"'word' .* is refused: run .* has 10,\d+ that it has not taken"):
        run.signal("word", "now")
    assert not run.signal("other", "known", key="a"), "one that is dropped anyway is not refused"
    with app.store.write() as connection:
        some = (inbox.c.run_id == run.id, inbox.c.seq <= 200)
        connection.execute(update(inbox).where(*some).values(read_epoch=1))
    assert run.signal("word", "now")
    with app.dispatcher():
        assert run.result(60) == "now"


def test_a_run_with_too_large_signals_refuses_large_ones_at_once(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.submit(hearing, order)
    with app.dispatcher():
        eventually(lambda: run.status == "waiting" and run.row.worker_id is None)
    send_many(app, run, 2, MOST_UNREAD_TEXT // 2)
    with pytest.raises(aft.OrderRefused, match="64,000,000 are the most"):
        run.signal("word", "x" * 100_000)
    assert send_until_refused(run, 101) < 100
