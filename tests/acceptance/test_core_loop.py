"""The core loop as a user sees it, on every combination of database and broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

import aft
from aft.fault import FaultState
from tests.acceptance import shop
from tests.acceptance.observe import late_effects
from tests.acceptance.shop import OutOfStock
from tests.conftest import make_setup
from tests.setups import SETUPS, Setup, eventually, run_to
from tests.world import Busy, gates, keys, ledger, reached, trouble


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """Each combination of database and broker in turn."""
    made = make_setup(request.param, request, tmp_path)
    yield made
    made.close()


def test_a_flow_that_meets_no_trouble_completes_where_it_was_started(setup: Setup, order: str) -> None:
    run = setup.app().start(shop.buy, order)
    assert run.status == "completed"
    assert run.result(0) == f"parcel-{order}"
    assert ledger[order] == ["reserve", "pay", "ship"]


def test_a_recoverable_fault_is_retried_through_a_delay_queue_and_the_flow_goes_on(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "pay"] = [Busy()]
    with app.dispatcher():
        run = app.start(shop.buy, order)
        assert run.result(60) == f"parcel-{order}"
    assert ledger[order] == ["reserve", "pay!", "pay", "ship"]
    (fault,) = app.faults()
    assert (fault.state, fault.level, fault.attempt) == (FaultState.RESOLVED, 1, 1)


def test_levels_follow_one_another_and_the_last_one_still_recovers(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "reserve"] = [Busy(), Busy(), Busy()]
    with app.dispatcher():
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
    assert [(fault.level, fault.try_in_level) for fault in reversed(app.faults())] == [(1, 1), (1, 2), (2, 1)]


def test_exhausted_levels_undo_everything_in_reverse_order(setup: Setup, order: str) -> None:
    trouble[order, "ship"] = [Busy(), Busy(), Busy()]
    with run_to(setup.app(), shop.buy, order) as run, pytest.raises(aft.FlowCompensated, match="Busy") as ended:
        run.result(60)
    assert ended.value.fault is not None
    assert "exhausted" in (ended.value.fault.why or "")
    assert ledger[order] == ["reserve", "pay", "ship!", "ship!", "ship!", "refund", "release"]


def test_an_unrecoverable_fault_undoes_at_once(setup: Setup, order: str) -> None:
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    with run_to(setup.app(), shop.buy, order) as run, pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert run.status == "compensated"
    assert ledger[order] == ["reserve", "pay", "ship!", "refund", "release"]


def test_a_final_failure_is_raised_as_its_own_class_and_can_be_caught(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "reserve"] = [OutOfStock("book", 0)]
    with app.dispatcher():
        assert app.submit(shop.buy_or_apologise, order).result(60) == "sorry: ('book', 0), reserve"


def test_a_savepoint_undoes_only_what_was_pushed_under_it(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "label"] = [Busy(), Busy(), Busy()]  # leaves and replays after the savepoint was undone
    with app.dispatcher():
        assert app.submit(shop.with_savepoint, order).result(60) == "kept 4"
    assert ledger[order] == ["reserve", "pay", "ship!", "refund", "label!", "label!", "label!", "label"]


def test_a_savepoint_that_was_undone_stays_so_when_a_later_step_makes_the_run_replay(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "label"] = [Busy(), Busy(), Busy()]
    with app.dispatcher():
        assert app.submit(shop.with_savepoint_and_more, order).result(60) == 4
    assert ledger[order] == ["reserve", "ship!", "release", "ship", "label!", "label!", "label!", "label"]


def test_a_compensator_under_a_savepoint_that_fails_is_retried_and_the_flow_goes_on(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "refund"] = [Busy()]
    with app.dispatcher():
        assert app.submit(shop.with_savepoint, order).result(60) == "kept 1"
    assert ledger[order] == ["reserve", "pay", "ship!", "refund!", "refund", "label"]


def test_an_async_flow_awaits_its_activities(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "pay"] = [Busy()]
    with app.dispatcher():
        assert app.submit(shop.buy_async, order).result(60) == (f"parcel-{order}", Decimal("1.50"))
    assert ledger[order] == ["reserve", "pay!", "pay", "ship"]


def test_immediate_retries_happen_before_anything_becomes_a_fault(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "label"] = [Busy(), Busy()]
    assert app.start(shop.with_label, order).result(0) == 3
    assert app.faults() == []


def test_executions_are_immediate_plus_one_times_one_plus_tries(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "label"] = [Busy() for _ in range(6)]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(shop.with_label, order).result(60)
    assert ledger[order] == ["label!"] * 6


def test_every_attempt_of_a_step_has_the_same_key_and_its_undo_another(setup: Setup, order: str) -> None:
    trouble[order, "reserve"] = [Busy()]
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    with run_to(setup.app(), shop.buy, order) as run, pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert keys[order, "reserve"] == [f"{run.id}/0/1"]
    assert keys[order, "release"] == [f"{run.id}/0/1/undo"]


def test_a_compensator_that_fails_has_its_own_ladder_and_the_unwinding_resumes_at_its_frame(
    setup: Setup, order: str
) -> None:
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "refund"] = [Busy()]
    with run_to(setup.app(), shop.buy, order) as run, pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert ledger[order] == ["reserve", "pay", "ship!", "refund!", "refund", "release"]


def test_a_compensator_that_cannot_recover_parks_with_the_stack_intact(setup: Setup, order: str) -> None:
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "refund"] = [Busy(), Busy()]
    with run_to(setup.app(), shop.buy, order, status="parked") as run:
        assert "refund" in (run.row.reason or "")
        assert ledger[order][-1] == "refund!"
        run.retry(note="the bank is back")
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[order] == ["reserve", "pay", "ship!", "refund!", "refund!", "refund", "release"]


def test_a_frame_that_a_person_skips_makes_the_run_failed(setup: Setup, order: str) -> None:
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "refund"] = [ValueError("no such account")]
    with run_to(setup.app(), shop.buy, order, status="parked") as run:
        run.skip_frame(note="written off")
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert ledger[order] == ["reserve", "pay", "ship!", "refund!", "release"]


def test_a_frame_that_a_person_did_by_hand_counts_as_undone(setup: Setup, order: str) -> None:
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    trouble[order, "refund"] = [ValueError("no such account")]
    with run_to(setup.app(), shop.buy, order, status="parked") as run:
        with pytest.raises(aft.OrderRefused, match="note"):
            run.frame_done(note=" ")
        run.frame_done(note="sent a cheque")
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[order] == ["reserve", "pay", "ship!", "refund!", "release"]


def test_a_transactional_activity_commits_with_its_record_or_not_at_all(setup: Setup, order: str) -> None:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS shop_books (id VARCHAR(20) PRIMARY KEY)"))
    trouble[order, "book"] = [Busy()]
    with app.dispatcher():
        assert app.submit(shop.booked, order).result(60) == 1
    with app.store.read() as connection:
        booked = connection.execute(text("SELECT count(*) FROM shop_books WHERE id = :order"), {"order": order})
        assert booked.scalar() == 1
    assert ledger[order] == ["book!", "book"]


def _shelve(how: str, order: str) -> None:
    """Put books on the shelf; one of them is there already, and that is handled, in a way that ``how`` names."""
    session, add = aft.session(), text("INSERT INTO shop_shelf (id) VALUES (:id)")
    if how == "rollback":
        session.execute(add, {"id": f"{order}-1"})
        session.commit()
    try:
        session.execute(add, {"id": f"{order}-0"})
    except IntegrityError:
        session.rollback()
    if how == "with":
        with session:
            session.execute(add, {"id": f"{order}-2"})
    else:
        session.execute(add, {"id": f"{order}-2"})
    if how == "closes":
        session.close()


@aft.activity(name="shop_shelve", transactional=True)
def shelve(how: str, order: str) -> str:
    _shelve(how, order)
    return "shelved"


@aft.activity(name="shop_shelve_in_vain", transactional=True, unrecoverable=(LookupError,))
def shelve_in_vain(order: str) -> str:
    _shelve("rollback", order)
    raise LookupError("nobody reads it")


@aft.flow(name="shop_shelving")
def shelving(how: str, order: str) -> str:
    return shelve_in_vain(order) if how == "fails" else shelve(how, order)


@pytest.mark.parametrize(
    ("how", "shelved"), [("rollback", "012"), ("with", "02"), ("closes", "02"), ("plainly", "02"), ("fails", "0")]
)
def test_a_session_that_takes_back_what_was_refused_leaves_the_rest_to_the_outcome(
    setup: Setup, order: str, how: str, shelved: str
) -> None:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS shop_shelf (id VARCHAR(20) PRIMARY KEY)"))
        connection.execute(text("INSERT INTO shop_shelf (id) VALUES (:id)"), {"id": f"{order}-0"})
    with app.dispatcher():
        run = app.submit(shelving, how, order)
        if how == "fails":
            with pytest.raises(aft.FlowCompensated):
                run.result(60)
        else:
            assert run.result(60) == "shelved"
    with app.store.read() as connection:
        found = connection.execute(text("SELECT id FROM shop_shelf WHERE id LIKE :ours"), {"ours": f"{order}-%"})
        assert sorted(found.scalars()) == [f"{order}-{number}" for number in shelved]


@aft.activity(name="shop_shelve_over", transactional=True, levels=[], unrecoverable=(aft.DefinitionError,))
def shelve_over(how: str, order: str) -> str:
    """End the transaction itself, once; what it shelves then would be on the shelf twice after another try."""
    connection = aft.session().connection()
    connection.execute(text("INSERT INTO shop_shelf (id) VALUES (:id)"), {"id": f"{order}-1"})
    if how == "swallows":
        with contextlib.suppress(aft.DefinitionError):
            connection.commit()
    else:
        getattr(connection, how)()
    return "shelved"


@aft.flow(name="shop_shelving_over")
def shelving_over(how: str, order: str) -> str:
    return shelve_over(how, order)


@pytest.mark.parametrize("how", ["commit", "rollback", "close", "swallows"])
def test_an_activity_that_ends_its_transaction_itself_has_failed_and_nothing_of_it_remains(
    setup: Setup, order: str, how: str
) -> None:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS shop_shelf (id VARCHAR(20) PRIMARY KEY)"))
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match=r"call commit\(\) and rollback\(\) of aft.session\(\) itself"):
            app.submit(shelving_over, how, order).result(60)
        assert app.submit(shelving, "plainly", order).result(60) == "shelved"  # its connection is in nobody's way
    with app.store.read() as connection:
        found = connection.execute(text("SELECT id FROM shop_shelf WHERE id LIKE :ours"), {"ours": f"{order}-%"})
        assert sorted(found.scalars()) == [f"{order}-0", f"{order}-2"]


def test_a_started_activity_that_failed_is_undone_with_an_unknown_result(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "request"] = [Busy()]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(shop.requested, order).result(60)
    assert ledger[order] == ["request!", "cancel aft.UNKNOWN"]


def test_a_started_activity_that_succeeded_is_undone_with_its_result(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(shop.requested, order).result(60)
    assert ledger[order] == ["request", "ship!", "cancel 'asked'"]


def test_time_ids_and_chance_are_the_same_on_replay(setup: Setup, order: str) -> None:
    app = setup.app()
    trouble[order, "ship"] = [Busy()]
    seen: list[tuple[object, ...]] = []

    @aft.flow(name=f"witness_{order}")
    def witness() -> None:
        seen.append((aft.now(), aft.uuid(), aft.uuid(), aft.random().random()))
        shop.ship(order)
        seen.append((aft.now(),))

    with app.dispatcher():
        app.submit(witness).result(60)
    first, again, after = seen
    assert first == again
    assert len(set(first)) == 4
    assert after[0] > first[0]  # type: ignore[operator]


def test_a_timed_out_activity_is_retried_and_its_late_effect_dropped_once_recorded(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(shop.limited, order)
        assert reached[order].wait(60)
        eventually(lambda: app.faults())
        gates[order].set()
        assert run.result(60) == "in time"
        assert app.faults()[0].short_type == "TimeoutError"
        eventually(lambda: late_effects(app) == ["drop"])


def test_the_same_key_is_the_same_run_and_other_arguments_are_refused(setup: Setup, order: str) -> None:
    app = setup.app()
    first = app.start(shop.buy.options(key=order), order)
    again = app.start(shop.buy.options(key=order), order)
    assert first.id == again.id
    assert ledger[order] == ["reserve", "pay", "ship"]
    with pytest.raises(aft.KeyConflict, match=order):
        app.submit(shop.buy.options(key=order), "other")


def test_a_stop_gives_a_run_back_at_its_next_step_and_burns_no_attempt(setup: Setup, order: str) -> None:
    app = setup.app()
    stopping = app.dispatcher()
    stopping.start()
    run = app.submit(shop.with_slow, order)
    assert reached[order].wait(60)
    stopping.drain()
    gates[order].set()
    assert stopping.stop(20)
    assert ledger[order] == ["reserve", "slow"]
    assert run.status == "running"
    with setup.app().dispatcher():
        assert run.result(60) == f"parcel-{order}"
    assert ledger[order] == ["reserve", "slow", "ship"]
    assert app.faults() == []


@aft.activity(name="shop_mail", levels=[])
def mail(order: str) -> None:
    """Nothing undoes it."""


@aft.flow(name="shop_mailed")
def mailed(order: str) -> None:
    mail(order)
    raise LookupError("nobody there")


def test_what_nothing_undoes_is_named_when_a_run_was_compensated(setup: Setup, order: str) -> None:
    app = setup.app()
    told = "failed, and everything it had done was undone, but for 'shop_mail' without a compensator: LookupError"
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match=told):
        app.submit(mailed, order).result(60)


def test_a_flow_of_three_activities_is_written_three_times_once_it_is_claimed(setup: Setup, order: str) -> None:
    run = setup.app().start(shop.buy, order)
    assert run.result(0) == f"parcel-{order}"
    assert run.row.seq == 3  # the last outcome shares the commit of the end
