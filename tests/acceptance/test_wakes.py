"""A wake-up reaches a dispatcher that has the run's flow at that version, whatever other dispatchers there are.

``GRACE`` is longer than any wait here: a run whose wake-up went to a dispatcher without its flow would be taken by the
timer long after the test has failed.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select, update

import aft
from aft import names
from aft.app.views import versions
from aft.brokers.base import Outgoing
from aft.flows.declare.registry import Registry
from aft.runs.wakes import unserved_runs
from aft.store.db_time import later
from aft.store.leases import end_leases
from aft.store.tables import messages, runs
from aft.telemetry import Event, RunClaimed
from tests.acceptance import shop
from tests.conftest import make_setup
from tests.setups import Setup, eventually
from tests.storing import Stage
from tests.world import Busy, ledger, trouble

GRACE = 600.0
#: Seconds in which everything here is done, on a busy machine.
SOON = 180.0
#: With the usual broker rotation, an even share of these goes to each dispatcher that takes part.
RUNS = 9


def make_app(setup: Setup, *flows: aft.Flow[..., object], **settings: object) -> aft.Aft:
    """An app whose process has these flows only, and every activity of the shop."""
    made = setup.app(**{"grace": GRACE} | settings)
    known = Registry()
    for flow in flows:
        known.add_flow(flow)
    for activity in (shop.reserve, shop.pay, shop.ship):
        known.add_activity(activity)
    made.registry = known
    return made


def named(name: str, version: int = 1) -> aft.Flow[..., object]:
    return aft.Flow(shop.buy.fn, name=name, version=version)


def submit(app: aft.Aft, flow: aft.Flow[..., object], order: str) -> list[aft.Run]:
    """Runs that each come back from a fault's level, so that each is woken twice."""
    orders = [f"{order}-{number}" for number in range(RUNS)]
    for one in orders:
        trouble[one, "reserve"].append(Busy())
    return [app.submit(flow, one) for one in orders]


def finish(runs: list[aft.Run]) -> None:
    eventually(lambda: all(run.row.ended_as == "completed" for run in runs), within=SOON)


def listen(app: aft.Aft) -> list[RunClaimed]:
    claims: list[RunClaimed] = []

    def hear(event: Event) -> None:
        if isinstance(event, RunClaimed):
            claims.append(event)

    app.telemetry.subscribe(hear)
    return claims


def test_beside_dispatchers_without_the_flow_runs_start_and_come_back_by_their_messages(
    setup: Setup, order: str
) -> None:
    mine, other = named("mine"), named("other")
    has = make_app(setup, mine)
    claims = listen(has)
    with ExitStack() as running:
        for app in (make_app(setup, other), make_app(setup, other), has):
            running.enter_context(app.dispatcher())
        finish(submit(has, mine, order))
    assert len(claims) == 2 * RUNS
    assert "due" not in {claim.wake for claim in claims}


def test_in_a_rolling_deploy_old_and_new_versions_start_by_their_messages(setup: Setup, order: str) -> None:
    first, second = named("rolling", 1), named("rolling", 2)
    old, new = make_app(setup, first), make_app(setup, first, second)
    with old.dispatcher(), new.dispatcher():
        finish(submit(old, first, f"{order}-1") + submit(new, second, f"{order}-2"))


def test_what_was_submitted_before_any_dispatcher_ran_starts_by_its_message(setup: Setup, order: str) -> None:
    mine = named("early")
    app = make_app(setup, mine)
    runs = submit(app, mine, order)
    with app.dispatcher():
        finish(runs)


def test_a_worker_whose_lease_returns_brings_back_what_was_put_off_meanwhile(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause, by SIGSTOP or of the whole machine, in which a sweeper found that nobody had the flow."""
    monkeypatch.setattr(unserved_runs, "LONGEST", 2 * GRACE)
    mine = named("paused")
    app = make_app(setup, mine, lease="2s")
    with app.dispatcher() as dispatcher:
        finish([app.submit(mine, f"{order}-before")])
        run = app.submit(mine.options(after="1h"), order)
        Stage(app.store, app.namespace).change(run.id, due_at=later(-3), sweep_at=later(GRACE))
        with app.store.write() as connection:
            end_leases(connection, app.namespace, [dispatcher._lease.worker])
        finish([run])


@pytest.mark.parametrize("set_up", ["sqlite", "postgresql"])
def test_messages_that_the_embedded_broker_keeps_for_nobody_are_deleted_in_the_end(
    set_up: str, request: pytest.FixtureRequest, tmp_path: Path, order: str
) -> None:
    app = make_app(make_setup(set_up, request, tmp_path), mine := named("mine"))

    def left() -> list[str]:
        with app.store.read() as connection:
            ours = messages.c.target.startswith(app.namespace)
            return sorted(connection.execute(select(messages.c.target).where(ours)).scalars())

    gone, newer = f"{names.resume(app.namespace)}/gone@1", f"{names.resume(app.namespace)}/newer@1"
    app.delays().declare(())
    app.broker.publish([Outgoing(names.resume(app.namespace), b"{}", key) for key in ("gone@1", "newer@1")])
    with app.store.write() as connection:
        connection.execute(update(messages).where(messages.c.target == gone).values(visible_at=later(-4000)))
    with app.dispatcher():
        finish([app.submit(mine, order)])
        eventually(lambda: left() == [newer])
    app.close()


# Flows whose code is gone ----------------------------------------------------------------------------------------


def test_a_completed_run_whose_flow_is_gone_is_undone_by_a_worker_that_has_the_compensators(
    setup: Setup, order: str
) -> None:
    gone, newer = named("leaving", 1), named("leaving", 2)
    old, new = make_app(setup, gone), make_app(setup, newer)
    run = old.start(gone, order)
    assert run.status == "completed"
    with new.dispatcher():
        # Though no message that wakes it is received, it is not undone after the grace only.
        run.compensate(note="the customer has sent it back")
        eventually(lambda: run.status == "compensated", within=SOON)
    assert ledger[order] == ["reserve", "pay", "ship", "refund", "release"]


def test_a_run_that_waits_and_whose_flow_is_gone_is_cancelled_and_undone_with_its_child(
    setup: Setup, order: str
) -> None:
    def child(order: str) -> str:
        return shop.reserve(order)

    inner: aft.Flow[..., object] = aft.Flow(child, name="inner")

    def outer(order: str) -> object:
        inner(order)
        return aft.wait_for("go")

    gone: aft.Flow[..., object] = aft.Flow(outer, name="outer")
    old, new = make_app(setup, gone, inner, grace=1.0), make_app(setup, named("other"), grace=1.0)
    with old.dispatcher():
        run = old.submit(gone, order)
        eventually(lambda: run.status == "waiting" and ledger[order])
        eventually(lambda: [wait.name for wait in run.row.waits] == ["go"])
    with new.dispatcher():
        run.cancel(note="nobody needs it")
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["reserve", "release"]


def test_a_run_whose_flow_is_gone_is_undone_alone_if_workers_have_died_on_it(setup: Setup, order: str) -> None:
    gone = named("leaving", 1)
    old, new = make_app(setup, gone), make_app(setup, named("leaving", 2))
    run = old.start(gone, order)
    with old.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run.id).values(deaths=2))
    with new.dispatcher():
        run.compensate(note="the customer has sent it back")
        eventually(lambda: run.status == "compensated", within=SOON)


def test_a_run_whose_flow_is_gone_and_whose_step_is_in_doubt_is_cancelled_only_when_a_person_says_so_again(
    setup: Setup, order: str
) -> None:
    def lose(order: str) -> str:
        shop.reserve(order)
        old.run(str(aft.current().run_id)).release()
        return shop.reserve(order)

    gone: aft.Flow[..., object] = aft.Flow(lose, name="loses")
    old, new = make_app(setup, gone, grace=1.0), make_app(setup, named("other"), grace=1.0)
    run = old.start(gone, order)
    with new.dispatcher():
        run.cancel(note="nobody needs it")
        eventually(lambda: run.status == "parked")
        assert "no worker has its flow" in (run.row.reason or "")
        run.cancel(note="all the same")
        # What the lost worker did with its step was never seen: nobody may read that all of it was undone.
        eventually(lambda: run.status == "failed")
    assert "release" in ledger[order]


def test_a_worker_without_the_compensators_leaves_the_run_to_one_that_has_them(setup: Setup, order: str) -> None:
    gone = named("leaving", 1)
    run = make_app(setup, gone).start(gone, order)
    other = make_app(setup, named("other"), grace=1.0)
    lacks = make_app(setup, named("other"), grace=1.0)
    lacks.registry = Registry()
    lacks.registry.add_flow(named("other"))
    with lacks.dispatcher():
        run = lacks.run(run.id)
        run.compensate(note="asked for")
        with other.dispatcher():
            eventually(lambda: run.status == "compensated")


def test_a_version_without_runs_says_whether_its_compensators_are_still_needed(setup: Setup, order: str) -> None:
    first, second = named("leaving", 1), named("leaving", 2)
    app = make_app(setup, first, second)
    with app.dispatcher():
        with app.store.read() as connection:
            before = {one.version: one.undoable for one in versions.read_versions(connection, app.namespace)}
        app.start(first, order)
        with app.store.read() as connection:
            after = {one.version: one.undoable for one in versions.read_versions(connection, app.namespace)}
    assert (before, after) == ({1: False, 2: False}, {1: True, 2: False})
