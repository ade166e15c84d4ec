"""Mistakes of people and of code: each has a clear answer, and none loses or undoes anything by accident."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import aft
from aft import names
from aft.brokers.base import Outgoing
from aft.flows.declare.registry import Registry
from aft.runs.records import quarantine
from tests.acceptance import shop
from tests.setups import Setup, eventually
from tests.world import Busy, ledger, trouble


def changing(name: str, body: Callable[[str], Any]) -> aft.Flow[[str], Any]:
    """Declare a flow whose code can be changed by declaring it again, as a deploy does."""

    @aft.flow(name=name)
    def changed(order: str) -> Any:
        return body(order)

    return changed


def parked(app: aft.Aft, run: aft.Run) -> str:
    eventually(lambda: run.status == "parked")
    return run.row.reason or ""


def test_code_that_no_longer_matches_its_journal_parks_and_names_the_step(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]

    def before(order: str) -> str:
        shop.reserve(order)
        return shop.ship(order)

    def after(order: str) -> str:
        shop.label(order)
        return shop.ship(order)

    run = app.start(changing(f"deploy_{order}", before), order)
    changing(f"deploy_{order}", after)
    with app.dispatcher():
        reason = parked(app, run)
        assert "ReplayDiverged" in reason
        assert "step 1 is activity 'reserve'" in reason
        assert "'label'" in reason
        assert ledger[order] == ["reserve", "ship!"]  # nothing undone
        changing(f"deploy_{order}", before)
        run.retry(note="rolled back")
        assert run.result(60) == f"parcel-{order}"


def test_code_that_ends_before_its_journal_parks(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]

    def before(order: str) -> str:
        shop.reserve(order)
        return shop.ship(order)

    run = app.start(changing(f"short_{order}", before), order)
    changing(f"short_{order}", lambda order: None)
    with app.dispatcher():
        assert "the flow returned, but the journal goes on with step 1, activity 'reserve'" in parked(app, run)


def test_code_that_now_raises_before_its_journal_ends_is_not_undone_by_accident(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]

    def before(order: str) -> str:
        shop.reserve(order)
        return shop.ship(order)

    def after(order: str) -> str:
        raise RuntimeError("changed my mind")

    run = app.start(changing(f"raise_{order}", before), order)
    changing(f"raise_{order}", after)
    with app.dispatcher():
        assert "the flow now raises RuntimeError" in parked(app, run)
    assert ledger[order] == ["reserve", "ship!"]


def test_a_bug_in_the_flows_own_code_parks_and_goes_on_after_the_fix(setup: Setup, order: str) -> None:
    app = setup.app()

    def buggy(order: str) -> str:
        shop.reserve(order)
        return undefined_name  # type: ignore[name-defined, no-any-return]  # noqa: F821

    def fixed(order: str) -> str:
        shop.reserve(order)
        return "fine"

    run = app.start(changing(f"bug_{order}", buggy), order)
    assert "NameError" in parked(app, run)
    (fault,) = app.faults()
    assert "undefined_name" in fault.traceback
    changing(f"bug_{order}", fixed)
    with app.dispatcher():
        run.retry()
        assert run.result(60) == "fine"
    assert ledger[order] == ["reserve"]


def test_any_other_exception_of_flow_code_undoes_everything(setup: Setup, order: str) -> None:
    def refusing(order: str) -> str:
        shop.reserve(order)
        raise ValueError("changed my mind")

    run = setup.app().start(changing(f"own_{order}", refusing), order)
    with pytest.raises(aft.FlowCompensated, match="changed my mind"):
        run.result(0)
    assert ledger[order] == ["reserve", "release"]


@pytest.mark.parametrize("what", ["sleep", "future", "thread"])
def test_awaiting_anything_but_an_activity_is_refused_and_undoes_nothing(setup: Setup, order: str, what: str) -> None:
    async def body(order: str) -> None:
        shop.reserve(order)
        if what == "thread":
            await asyncio.to_thread(print)
        if what == "future":
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(1.0)

    @aft.flow(name=f"foreign_{order}")
    async def foreign(order: str) -> None:
        await body(order)

    run = setup.app().start(foreign, order)
    assert "may await activities only" in (run.row.reason or "")
    assert run.status == "parked"
    assert ledger[order] == ["reserve"]


def test_an_activity_that_is_called_but_not_awaited_parks(setup: Setup, order: str) -> None:
    @aft.flow(name=f"forgot_{order}")
    async def forgot(order: str) -> None:
        shop.pay(order, 1)  # type: ignore[call-overload]

    assert "never awaited" in (setup.app().start(forgot, order).row.reason or "")


def test_an_argument_that_cannot_be_stored_is_refused_at_the_call_with_its_path(setup: Setup, order: str) -> None:
    app = setup.app()
    with pytest.raises(aft.CodecError, match="order") as refused:
        app.start(shop.buy, object())  # type: ignore[call-overload]
    assert refused.value.path == "order"
    assert app.runs() == []

    run = app.start(changing(f"argument_{order}", lambda order: shop.reserve(object())), order)  # type: ignore[arg-type, call-overload]
    assert run.status == "parked"
    assert "CodecError" in (run.row.reason or "")


def test_a_result_that_cannot_be_stored_parks_because_its_effect_has_happened(setup: Setup, order: str) -> None:
    @aft.activity(name=f"returns_{order}")
    def returns(order: str) -> int:
        return order  # type: ignore[return-value]

    run = setup.app().start(changing(f"result_{order}", lambda order: returns(order)), order)
    assert run.status == "parked"
    assert "cannot be stored" in (run.row.reason or "")


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


def test_a_run_of_a_flow_that_this_worker_does_not_know_is_left_untouched(setup: Setup, order: str) -> None:
    app = setup.app()

    @aft.flow(name=f"elsewhere_{order}")
    def elsewhere(order: str) -> str:
        return shop.ship(order)

    run = app.submit(elsewhere, order)
    knows_not = setup.app()
    knows_not.registry = Registry()
    knows_not.registry.add_flow(shop.buy)
    with knows_not.dispatcher():
        assert knows_not.submit(shop.buy, order).result(60) == f"parcel-{order}"
        assert run.status == "running"
        assert run.row.epoch == 0
    with app.dispatcher():
        assert run.result(60) == f"parcel-{order}"


def test_somebody_who_waits_for_a_run_that_nobody_can_execute_is_told(setup: Setup, order: str) -> None:
    run = setup.app().submit(shop.buy, order)
    with pytest.warns(aft.NoWorkerWarning, match="aft dispatcher"), pytest.raises(TimeoutError, match="running"):
        run.result(2.0)  # not longer than it takes to be told


def heart_that_stops(app: aft.Aft, run: aft.Run) -> None:
    """Be a worker that knows the run's flow, and never send a heartbeat."""
    lease = app.make_lease()
    lease._stopping.set()
    lease.begin(roles=["work"], flows=[f"{run.row.flow}@{run.row.version}"])


def test_a_worker_that_is_late_with_its_heartbeat_is_not_taken_for_nobody(setup: Setup, order: str) -> None:
    """As after a machine stood still for longer than a lease: whoever waits there looks before the heart beats."""
    app = setup.app(lease="1900ms")
    run = app.submit(shop.buy, order)
    heart_that_stops(app, run)
    with pytest.raises(TimeoutError, match="running"):  # and no warning
        run.result(2.0)


def test_somebody_who_waits_when_the_last_worker_goes_is_told(setup: Setup, order: str) -> None:
    """Whoever could execute it was there before the first look, and is gone at the next."""
    app = setup.app(lease="1900ms")
    run = app.submit(shop.buy, order)
    heart_that_stops(app, run)
    with pytest.raises(aft.NoWorkerWarning, match="aft dispatcher"):  # warnings are errors here
        run.result(60)


def test_a_run_that_was_told_to_try_again_waits_for_a_worker_and_for_nobody_else(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]
    run = app.start(changing(f"told_{order}", lambda order: (shop.reserve(order), shop.ship(order))), order)
    changing(f"told_{order}", lambda order: (shop.label(order), shop.ship(order)))
    with app.dispatcher():
        parked(app, run)
    run.retry()
    with pytest.raises(aft.NoWorkerWarning):  # warnings are errors here
        run.result(60)


def test_an_order_to_a_run_that_is_not_parked_is_refused_and_changes_nothing(setup: Setup, order: str) -> None:
    run = setup.app().start(shop.buy, order)
    before = run.row
    with pytest.raises(aft.OrderRefused, match="completed, not parked"):
        run.retry()
    assert run.row == before


def test_starting_a_run_inside_a_flows_code_is_refused(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.start(changing(f"nested_{order}", lambda order: app.start(shop.buy, order).id), order)
    assert "start it in an activity" in (run.row.reason or "")


def test_a_key_for_a_child_is_refused_before_it_is_started(setup: Setup, order: str) -> None:
    app = setup.app()
    keyed = changing(f"keyed_{order}", lambda order: shop.booked.options(key="one")(order))
    with app.dispatcher():
        run = app.submit(keyed, order)
        assert "child flow 'booked' was called with key='one'" in parked(app, run)
    assert [found.id for found in app.runs()] == [run.id]


def test_texts_that_are_too_long_are_refused_before_the_database_does(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.submit(shop.buy, order)
    assert run.signal("go", key="k" * 378)
    assert run.signal("n" * 200, key="k/" * 90)
    for name, key in [("go", "k" * 379), ("n" * 200, "k" * 181)]:
        with pytest.raises(aft.DefinitionError, match="are the most: give a shorter one"):
            run.signal(name, key=key)
    with pytest.raises(aft.DefinitionError, match="has 201 characters; 200 are the most"):
        run.signal("go", by="b" * 201)
    with pytest.raises(aft.OrderRefused, match="has 201 characters; 200 are the most"):
        run.suspend("for a while", by="b" * 201)


def test_an_unknown_run_is_named(setup: Setup) -> None:
    with pytest.raises(aft.UnknownRun, match="nonsense"):
        setup.app().run("nonsense")


def test_a_postgresql_that_is_not_migrated_says_what_to_do(production: Setup) -> None:
    empty = production.database.rsplit("/", 1)[0] + "/postgres"
    with aft.Aft(database=empty) as app, pytest.raises(aft.NotMigrated, match="aft db upgrade"):
        app.submit(shop.buy, "x")
