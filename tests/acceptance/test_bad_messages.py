"""Messages that nobody can read, or that are about nothing, harm no run."""

from __future__ import annotations

import json

import aft
from aft import names
from aft.brokers.base import Outgoing
from aft.runs.records import quarantine
from tests.acceptance import shop
from tests.setups import Setup, eventually
from tests.world import Busy, trouble

BAD = {
    "malformed": b"{",
    "not utf-8": b"\xff\xfe",
    "oversized": b'{"v":1,"x":"' + b"x" * 10_000 + b'"}',
    "unknown version": b'{"v":99,"id":"a","kind":"fault","run":"r","fault":"f","at":"2026-01-01T00:00:00+00:00"}',
    "unknown kind": b'{"v":1,"id":"a","kind":"dance","run":"r","fault":"f","at":"2026-01-01T00:00:00+00:00"}',
    "too deep": b"[" * 1000 + b"]" * 1000,
    "duplicate key": b'{"v":1,"v":1}',
}


def test_bad_messages_on_any_queue_are_quarantined_and_good_ones_still_work(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "reserve"] = [Busy()]
    queues = [names.faults(app.namespace), names.resume(app.namespace), names.compensate(app.namespace)]
    with app.dispatcher():
        app.broker.publish([Outgoing(queue, body) for queue in queues for body in BAD.values()])
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
        eventually(lambda: len(_quarantined(app)) == len(queues) * len(BAD))
    found = _quarantined(app)
    assert {refusal.queue for refusal in found} == set(queues)
    assert all(refusal.reason for refusal in found)


def _quarantined(app: aft.Aft) -> list[quarantine.Refusal]:
    with app.store.read() as connection:
        return quarantine.listing(connection, app.namespace, limit=1000)


def test_messages_about_runs_that_do_not_exist_are_ignored(setup: Setup, order: str) -> None:
    app = setup.app()
    body = {"v": 1, "id": "a", "kind": "fault", "run": "r", "fault": "f", "at": "2026-01-01T00:00:00+00:00"}
    with app.dispatcher():
        for queue in (names.faults(app.namespace), names.resume(app.namespace)):
            app.broker.publish([Outgoing(queue, json.dumps(body | {"kind": "resume"}).encode())])
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
