"""With a key set, whoever has the broker and not the key wakes nothing; those who have it work as before."""

from __future__ import annotations

from datetime import UTC, datetime

import aft
from aft import names
from aft.brokers.base import Outgoing
from aft.envelope import Message, MessageKind
from aft.ids import FaultId, OrderId, RunId
from aft.runs.records import quarantine
from tests.setups import Setup, eventually, run_to
from tests.world import tries

KEY, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2


@aft.activity(name="sealed_pay", levels=["50ms"])
def pay(order: str) -> str:
    tries[order] += 1
    if tries[order] == 1:
        raise aft.Recoverable("this passes")
    return order


@aft.flow(name="sealed_order")
def ordering(order: str) -> str:
    aft.wait_for("go")
    return pay(order)


def quarantined(app: aft.Aft) -> list[quarantine.Refusal]:
    with app.store.read() as connection:
        return quarantine.listing(connection, app.namespace, limit=1000)


def forge(app: aft.Aft, body: str) -> None:
    for queue in (names.faults(app.namespace), names.resume(app.namespace)):
        app.broker.publish([Outgoing(queue, body.encode())])


def test_runs_go_their_way_while_their_messages_are_sealed(setup: Setup, order: str) -> None:
    app = setup.app(message_key=KEY, grace=30.0)
    with run_to(app, ordering, order, status="waiting") as run:
        run.signal("go")
        assert run.result(60) == order
    assert quarantined(app) == []


def test_forged_messages_are_kept_apart_with_their_reason(setup: Setup, order: str) -> None:
    app = setup.app(message_key=KEY)
    with run_to(app, ordering, order, status="waiting") as run:
        now = datetime.now(UTC)
        forge(app, Message.about_fault(MessageKind.FAULT, RunId(run.id), FaultId("none"), now).encode())
        forge(app, Message.about_order(RunId(run.id), OrderId("none"), now).encode()[:-1] + f',"seal":"{"0" * 64}"}}')
        found = eventually(lambda: len(quarantined(app)) == 4 and quarantined(app))
        assert {one.reason.split(";")[0].split(" (")[0] for one in found} == {
            "it is not sealed",
            "its seal was made with none of our keys",
        }
        run.signal("go")
        assert run.result(60) == order


def test_a_key_is_changed_while_runs_are_under_way(setup: Setup, order: str) -> None:
    before = setup.app(message_key=OTHER)
    during = setup.app(message_key=KEY, old_message_key=OTHER)
    with before.dispatcher():
        run = before.submit(ordering, order)
        eventually(lambda: run.status == "waiting" and run.row.worker_id is None)
    with during.dispatcher():
        run.signal("go")
        assert run.result(60) == order
    assert quarantined(during) == []
