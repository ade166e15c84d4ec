"""A person gives a failed step other arguments, or its result, lets it fail for good, or tries it before it is due."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import aft
from aft.app.views.story import read_story
from aft.errors import CodecError, OrderRefused
from aft.fault import Fault
from aft.flows.declare.registry import Registry
from aft.rules.rule_types import RuleType
from aft.rules.trees.tree import Node, Tree
from tests.setups import Setup, eventually
from tests.world import ledger


@dataclass
class Receipt:
    """What a bank answers."""

    number: str
    cents: int


def give_back(order: str, iban: str) -> None:
    ledger[order].append(f"back to {iban}")


@aft.compensate_with(give_back)
@aft.activity(name="steer_transfer", levels=["1h"])
def transfer(order: str, iban: str, cents: int = 100) -> Receipt:
    ledger[order].append(f"to {iban}")
    if iban == "typo":
        raise ValueError("no such account")
    if iban == "busy" and ledger[order].count("to busy") < 3:
        raise ConnectionError("the bank is busy")
    return Receipt(f"R-{iban}", cents)


def unwrap(order: str) -> None:
    ledger[order].append("unwrap")


@aft.compensate_with(unwrap)
@aft.activity(name="steer_wrap")
def wrap(order: str) -> None:
    ledger[order].append("wrap")


@aft.flow(name="steer_paying")
def paying(order: str, iban: str) -> str:
    wrap(order)
    return transfer(order, iban).number


@aft.flow(name="steer_catching")
def catching(order: str, iban: str) -> str:
    try:
        return transfer(order, iban).number
    except (ValueError, ConnectionError) as error:
        return f"paid in cash, as {error}"


@aft.flow(name="steer_both")
def both(order: str) -> list[str]:
    first, second = aft.parallel(transfer.call(order, "typo"), transfer.call(order, "typo", 200))
    return [first.number, second.number]


@pytest.fixture
def parks(setup: Setup) -> aft.Aft:
    """An app whose rules park a run when an account does not exist."""
    app = setup.app()
    rule = Node(1, "fault.type == 'builtins.ValueError'", "park")
    app.rules.save_all([Tree("*", RuleType.FAULT, transfer.name, 0, {1: rule}, 1)], [])
    return app


def faults_of(app: aft.Aft, run: aft.Run, state: str | None = None) -> list[Fault]:
    return [fault for fault in app.faults(state=state) if fault.run_id == run.id]


def park(app: aft.Aft, flow: aft.Flow[..., object], *args: str) -> aft.Run:
    run = app.submit(flow, *args)
    eventually(lambda: run.status == "parked")
    return run


def in_its_ladder(app: aft.Aft, order: str, flow: aft.Flow[..., object] = paying) -> aft.Run:
    run = app.submit(flow, order, "busy")
    eventually(lambda: [fault.state for fault in faults_of(app, run)] == ["waiting"])
    return run


def test_a_parked_step_is_tried_again_with_other_arguments_and_undone_with_them(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        run.retry(args={"iban": "DE1"}, note="a typing error", by="ann")
        assert run.result(60) == "R-DE1"
        run.compensate()
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["wrap", "to typo", "to DE1", "back to DE1", "unwrap"]
    (fault,) = faults_of(parks, run)
    assert "typo" in (fault.step_snapshot or "")  # the old ones are kept


def test_arguments_of_another_type_or_name_are_refused_at_the_door(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        with pytest.raises(CodecError, match="cents"):
            run.retry(args={"cents": "a lot"})
        with pytest.raises(CodecError, match=r"'account'.*'iban'"):
            run.retry(args={"account": "DE1"})
        assert run.status == "parked"
        assert not run.row.wake_id


def test_the_result_of_a_parked_step_is_given_and_it_is_not_executed_again(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        run.force_complete(Receipt("R-by-hand", 100), note="paid at the counter", by="ann")
        assert run.result(60) == "R-by-hand"
    assert ledger[order] == ["wrap", "to typo"]


def test_a_result_of_another_type_is_refused_with_its_path(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        with pytest.raises(CodecError, match="result"):
            run.force_complete(7, note="x")
        assert run.status == "parked"


def test_a_process_without_the_code_may_give_a_result_and_the_run_says_if_it_does_not_fit(
    parks: aft.Aft, setup: Setup, order: str
) -> None:
    stranger = setup.app()
    stranger.registry = Registry()
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        stranger.run(run.id).force_complete({"number": "R-7"}, note="x")
        eventually(lambda: "cents" in (run.row.reason or "") and run.row.wake_id is None)
        assert run.status == "parked"
        stranger.run(run.id).force_complete({"number": "R-7", "cents": 7}, note="x")
        assert run.result(60) == "R-7"


def test_a_failed_step_fails_for_good_and_the_flow_catches_it(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, catching, order, "typo")
        run.force_fail(note="the account is closed", by="ann")
        assert run.result(60) == "paid in cash, as no such account"


def test_a_failed_step_fails_for_good_and_the_run_is_undone(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        run.force_fail(note="the account is closed")
        with pytest.raises(aft.FlowCompensated, match="no such account"):
            run.result(60)
    assert ledger[order] == ["wrap", "to typo", "unwrap"]


def test_a_step_in_its_ladder_is_tried_before_it_is_due_and_its_ladder_goes_on(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = in_its_ladder(app, order)
        run.retry(note="the bank says that it works")
        eventually(lambda: ledger[order].count("to busy") == 2)
        with pytest.raises(aft.FlowCompensated):  # "1h" is one try
            run.result(60)


def test_a_step_in_its_ladder_gets_its_result_or_fails_for_good(setup: Setup, order: str, show: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run, other = in_its_ladder(app, order), in_its_ladder(app, show, catching)
        run.force_complete(Receipt("R-7", 7), note="x")
        other.force_fail(note="x")
        assert run.result(60) == "R-7"
        assert other.result(60) == "paid in cash, as the bank is busy"
    assert ledger[order] == ["wrap", "to busy"]


def test_a_compensator_in_its_ladder_is_tried_before_it_is_due(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(undone_slowly, order)
        eventually(lambda: ledger[order] == ["release"])
        eventually(lambda: [fault.state for fault in faults_of(app, run, "waiting")] == ["waiting"])
        run.retry()
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["release", "release"]


def release(order: str) -> None:
    ledger[order].append("release")
    if ledger[order] == ["release"]:
        raise ConnectionError("busy")


@aft.compensate_with(release)
@aft.activity(name="steer_reserve", levels=["1h"])
def reserve(order: str) -> None:
    pass


@aft.activity(name="steer_refuse", unrecoverable=(ValueError,))
def refuse(order: str) -> None:
    raise ValueError("no")


@aft.flow(name="steer_undone_slowly")
def undone_slowly(order: str) -> None:
    reserve(order)
    refuse(order)


def test_of_several_failed_steps_the_order_says_which_and_the_others_stay_parked(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, both, order)
        eventually(lambda: len(faults_of(parks, run, "parked")) == 2)
        with pytest.raises(OrderRefused, match="several failed steps"):
            run.force_complete(Receipt("R-1", 100), note="x")
        paths = sorted(str(fault.path) for fault in faults_of(parks, run))
        run.force_complete(Receipt("R-1", 100), note="x", step=paths[0])
        eventually(lambda: len(faults_of(parks, run, "parked")) == 1 and run.row.worker_id is None)
        assert run.status == "parked"
        run.retry(args={"iban": "DE2"})
        assert run.result(60) == ["R-1", "R-DE2"]
    assert ledger[order].count("to typo") == 2


def test_what_cannot_be_done_says_why_and_what_can(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        with pytest.raises(OrderRefused, match="note"):
            run.force_fail(note=" ")
        with pytest.raises(OrderRefused, match=r"'9'.*has not failed; failed are 2 \(steer_transfer\)"):
            run.force_fail(note="x", step="9")
        run.force_complete(Receipt("R-7", 7), note="x")
        run.result(60)
        with pytest.raises(OrderRefused, match="completed"):
            run.retry()
        with pytest.raises(OrderRefused, match="completed"):
            run.retry(args={"iban": "x"})
        with pytest.raises(OrderRefused, match="completed"):
            run.force_fail(note="x")


def test_a_second_order_is_told_of_the_first(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
    run.force_fail(note="x", by="ann")
    with pytest.raises(OrderRefused, match="has an order already"):
        run.force_complete(Receipt("R-7", 7), note="x", by="bob")


def test_what_people_ordered_is_told_in_the_story(parks: aft.Aft, order: str) -> None:
    with parks.dispatcher():
        run = park(parks, paying, order, "typo")
        run.force_complete(Receipt("R-7", 7), note="paid at the counter", by="ann")
        run.result(60)
    with parks.store.read() as connection:
        story = read_story(connection, parks.namespace, run.id)
    told = [event.detail for event in story.happenings if event.name == "complete"]
    assert told == ["by ann: steer_transfer (step 2): paid at the counter"]


@aft.activity(name="steer_refill", levels=["1h"])
def refill(order: str) -> str:
    ledger[order].append("refill")
    if ledger[order] == ["refill"]:
        raise aft.Recoverable("empty", on_signal="refilled")
    return "full"


@aft.flow(name="steer_refilling")
def refilling(order: str) -> str:
    return refill(order)


def test_a_step_that_waits_for_a_signal_is_tried_without_it(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(refilling, order)
        eventually(lambda: [fault.state for fault in faults_of(app, run)] == ["waiting"])
        run.retry(note="it was refilled by hand")
        assert run.result(60) == "full"
    assert run.row.waits == ()
