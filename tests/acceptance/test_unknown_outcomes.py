"""Nobody saw how an activity ended: its probe asks the other side before anything is executed again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import aft
from tests.acceptance.observe import late_effects
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, broken, gates, keys, ledger, paused_owner, trouble

#: What the next calls of an order's activity do: "refuse", "lose the answer", "hang", "hang without effect".
plans: dict[str, list[str]] = defaultdict(list)
#: What the bank says of an order instead of the truth.
scraps: dict[str, str] = {}
#: What happens once, when the flow of an order is entered.
on_entry: dict[str, Callable[[], None]] = {}


@dataclass(frozen=True)
class Receipt:
    order: str
    amount: Decimal


#: The bank: payments by idempotency key.
bank: dict[str, Any] = {}


def take_money(order: str) -> Receipt:
    """Do as the plan says."""
    plan = plans[order].pop(0) if plans[order] else "wire"
    key = aft.current().key
    ledger[order].append("wire")
    keys[order, "wire"].append(key)
    if plan == "refuse":
        raise Busy(order)
    if plan == "hang without effect":
        gates[order].wait(60)
        raise Busy(order)
    bank[key] = Receipt(order, Decimal("9.90"))
    if plan == "lose the answer":
        raise Busy(order)
    if plan == "hang":
        gates[order].wait(60)
    return Receipt(order, Decimal("9.90"))


def find_payment(order: str, key: str) -> Any:
    ledger[order].append("probe")
    keys[order, "wire"].append(key)
    assert aft.current().key == key
    if trouble[order, "probe"]:
        raise trouble[order, "probe"].pop(0)
    return scraps.get(order) or bank.get(key)


async def find_payment_later(key: str, order: str) -> Any:
    return find_payment(order, key)


def refund(order: str, result: Receipt | aft.Unknown, key: str) -> None:
    found = result.amount if isinstance(result, Receipt) else repr(result)
    ledger[order].append(f"refund {found}")
    assert key.endswith("/undo")


@aft.activity(levels=["20ms", "20ms"], recoverable=(Busy,), probe=find_payment)
def wire(order: str) -> Receipt:
    return take_money(order)


@aft.compensate_with(refund)
@aft.activity(levels=["20ms", "20ms"], recoverable=(Busy,), probe=find_payment)
def wire_undoably(order: str) -> Receipt:
    return take_money(order)


@aft.activity(levels=["20ms"], recoverable=(Busy,), probe=find_payment_later, timeout="30s")
@aft.compensate_with(refund)
async def wire_async(order: str) -> Receipt:
    return take_money(order)


@aft.activity(immediate=2, levels=[], recoverable=(Busy,), probe=find_payment)
def wire_insistently(order: str) -> Receipt:
    return take_money(order)


@aft.activity(timeout="1s", levels=["20ms"], probe=find_payment)
def wire_in_time(order: str) -> Receipt:
    return take_money(order)


def was_told(order: str, key: str) -> bool:
    return find_payment(order, key) is not None


@aft.activity(levels=["20ms"], recoverable=(Busy,), probe=was_told)
def wire_silently(order: str) -> None:
    take_money(order)


def was_refunded(order: str, key: str) -> bool | None:
    ledger[order].append("wired back?")
    assert key.endswith("/undo")
    return key in bank or None


@aft.activity(levels=["20ms"], recoverable=(Busy,), probe=was_refunded)
def wire_back(order: str) -> None:
    ledger[order].append("wire back")
    bank[aft.current().key] = "refund"
    raise Busy("the answer was lost")


@aft.compensate_with(wire_back)
@aft.activity(levels=[])
def wire_for_nothing(order: str) -> str:
    return "wired"


@aft.activity(levels=[])
def refuse_wire(order: str) -> str:
    raise ValueError("no")


@aft.activity
def confirm_wire(order: str) -> str:
    ledger[order].append("confirm")
    return f"confirmed {order}"


@aft.flow
def wiring(order: str) -> tuple[Receipt, str]:
    if order in broken:
        raise NameError("a bug")
    if (happens := on_entry.pop(order, None)) is not None:
        happens()
    return wire(order), confirm_wire(order)


@aft.flow
def wiring_undoably(order: str) -> tuple[Receipt, str]:
    return wire_undoably(order), confirm_wire(order)


@aft.flow
async def wiring_async(order: str) -> tuple[Receipt, str]:
    return await wire_async(order), confirm_wire(order)


@aft.flow
def wiring_insistently(order: str) -> Receipt:
    return wire_insistently(order)


@aft.flow
def wiring_in_time(order: str) -> tuple[Receipt, str]:
    return wire_in_time(order), confirm_wire(order)


@aft.flow
def wiring_silently(order: str) -> str:
    assert wire_silently(order) is None
    return confirm_wire(order)


@aft.flow
def wiring_and_regretting(order: str) -> str:
    wire_for_nothing(order)
    return refuse_wire(order)


@aft.flow
def wiring_twice(order: str) -> tuple[Receipt, Receipt]:
    return wire(order), wire(order)


# --- a worker died ---


@pytest.mark.parametrize("flow", [wiring, wiring_undoably, wiring_async], ids=lambda flow: flow.name)
def test_what_a_worker_did_before_it_died_is_found_and_not_done_again(
    setup: Setup, flow: aft.Flow[[str], Any], order: str
) -> None:
    plans[order] = ["hang"]
    with paused_owner(setup, flow, order) as run, setup.app(grace="300ms").dispatcher():
        assert run.result(60) == (Receipt(order, Decimal("9.90")), f"confirmed {order}")
        assert ledger[order] == ["wire", "probe", "confirm"]
        gates[order].set()
        # The dead worker comes back: its effect is the recorded one.
        eventually(lambda: late_effects(setup.apps[0]) == ["drop"])
    assert set(keys[order, "wire"]) == {f"{run.id}/0/1"}
    assert ledger[order] == ["wire", "probe", "confirm"]


@pytest.mark.parametrize("flow", [wiring, wiring_undoably], ids=lambda flow: flow.name)
def test_where_nothing_is_found_the_activity_is_executed_under_the_same_key(
    setup: Setup, flow: aft.Flow[[str], Any], order: str
) -> None:
    plans[order] = ["hang without effect"]
    with paused_owner(setup, flow, order) as run, setup.app(grace="300ms").dispatcher():
        assert run.result(60) == (Receipt(order, Decimal("9.90")), f"confirmed {order}")
    assert ledger[order] == ["wire", "probe", "wire", "confirm"]
    assert set(keys[order, "wire"]) == {f"{run.id}/0/1"}


def test_a_death_is_not_forgotten_when_a_bug_stops_the_run_first(setup: Setup, order: str) -> None:
    plans[order] = ["hang"]
    with paused_owner(setup, wiring, order) as run:
        broken.add(order)
        with setup.app(grace="300ms").dispatcher():
            eventually(lambda: run.status == "parked")
            broken.discard(order)
            run.retry()
            assert run.result(60)[1] == f"confirmed {order}"
    assert ledger[order] == ["wire", "probe", "confirm"]


def test_nor_when_the_next_process_stops_before_it_got_to_that_step(setup: Setup, order: str) -> None:
    """What the death had left was settled by the stop before a person; only that owner knew, and hands it on."""
    plans[order] = ["hang"]
    with paused_owner(setup, wiring, order) as run:
        broken.add(order)
        with setup.app(grace="300ms").dispatcher() as stopping:
            eventually(lambda: run.status == "parked")
            broken.discard(order)
            on_entry[order] = stopping.drain
            run.retry()
            eventually(lambda: order not in on_entry)
        assert ledger[order] == ["wire"]
        with setup.app(grace="300ms").dispatcher():
            assert run.result(60)[1] == f"confirmed {order}"
    assert ledger[order] == ["wire", "probe", "confirm"]


def test_only_the_first_new_step_after_a_death_is_in_doubt(setup: Setup, order: str) -> None:
    plans[order] = ["hang"]
    with paused_owner(setup, wiring_twice, order) as run, setup.app(grace="300ms").dispatcher():
        assert run.result(60) == (Receipt(order, Decimal("9.90")),) * 2
    assert ledger[order] == ["wire", "probe", "wire"]


# --- it raised, or timed out ---


def test_without_trouble_nobody_asks(setup: Setup, order: str) -> None:
    run = setup.app().start(wiring_undoably, order)
    assert run.result(0) == (Receipt(order, Decimal("9.90")), f"confirmed {order}")
    assert ledger[order] == ["wire", "confirm"]


def test_a_probe_costs_one_more_commit_only_beside_a_compensator(setup: Setup, order: str) -> None:
    app = setup.app()
    plain, undoable = app.start(wiring, order), app.start(wiring_undoably, order)
    assert (plain.row.seq, undoable.row.seq) == (2, 3)  # two outcomes, the last with the end; and the armed frame


@pytest.mark.parametrize("flow", [wiring, wiring_undoably, wiring_async], ids=lambda flow: flow.name)
def test_an_answer_that_was_lost_is_found(setup: Setup, flow: aft.Flow[[str], Any], order: str) -> None:
    app = setup.app()
    plans[order] = ["lose the answer"]
    with app.dispatcher():
        assert app.submit(flow, order).result(60) == (Receipt(order, Decimal("9.90")), f"confirmed {order}")
    assert ledger[order] == ["wire", "probe", "confirm"]
    assert [fault.state for fault in app.faults()] == ["resolved"]


def test_a_refusal_is_tried_again_after_the_probe_has_looked(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order] = ["refuse", "refuse"]
    with app.dispatcher():
        app.submit(wiring, order).result(60)
    assert ledger[order] == ["wire", "probe", "wire", "probe", "wire", "confirm"]


def test_an_activity_that_timed_out_after_its_effect_is_found(setup: Setup, order: str) -> None:
    plans[order] = ["hang"]
    with run_to(setup.app(), wiring_in_time, order) as run:
        assert run.result(60) == (Receipt(order, Decimal("9.90")), f"confirmed {order}")
        gates[order].set()
        eventually(lambda: late_effects(setup.apps[0]) == ["drop"])
    assert ledger[order] == ["wire", "probe", "confirm"]


def test_an_immediate_retry_asks_first(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order] = ["refuse", "lose the answer"]
    assert app.start(wiring_insistently, order).result(0) == Receipt(order, Decimal("9.90"))
    assert ledger[order] == ["wire", "probe", "wire", "probe"]
    assert app.faults() == []


def test_of_an_activity_without_result_it_is_enough_to_know_that_it_happened(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order] = ["refuse", "lose the answer"]
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(wiring_silently, order).result(60)  # one try: refused, not found, lost; and nobody asks any more
    assert ledger[order] == ["wire", "probe", "wire"]
    other = order + "x"
    plans[other] = ["lose the answer"]
    with app.dispatcher():
        assert app.submit(wiring_silently, other).result(60) == f"confirmed {other}"
    assert ledger[other] == ["wire", "probe", "confirm"]


# --- the probe itself fails ---


def test_a_probe_that_fails_goes_up_the_ladder_and_nothing_is_executed_blindly(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order], trouble[order, "probe"] = ["lose the answer"], [ConnectionError("the bank is away")]
    with app.dispatcher():
        app.submit(wiring, order).result(60)
    assert ledger[order] == ["wire", "probe", "probe", "confirm"]
    assert [(fault.short_type, fault.name, fault.attempt) for fault in reversed(app.faults())] == [
        ("Busy", "wire", 1),
        ("ConnectionError", "wire", 2),
    ]


def test_an_answer_that_cannot_be_the_result_parks_and_after_the_fix_it_is_found(setup: Setup, order: str) -> None:
    plans[order], scraps[order] = ["lose the answer"], "a scrap of paper"
    with run_to(setup.app(), wiring, order, status="parked") as run:
        assert "what probe 'find_payment' found" in (run.row.reason or "")
        del scraps[order]
        run.retry()
        assert run.result(60)[0] == Receipt(order, Decimal("9.90"))
    assert ledger[order] == ["wire", "probe", "probe", "confirm"]


# --- undoing what nobody saw end ---


@pytest.mark.parametrize(("plan", "known"), [("lose the answer", "9.90"), ("refuse", "aft.UNKNOWN")])
def test_the_compensator_of_an_unknown_outcome_gets_what_the_probe_finds(
    setup: Setup, order: str, plan: str, known: str
) -> None:
    plans[order] = [plan]
    trouble[order, "probe"] = [ConnectionError("the bank is away"), ValueError("no such account")]
    with (
        run_to(setup.app(), wiring_undoably, order) as run,
        pytest.raises(aft.FlowCompensated, match="no such account"),
    ):
        run.result(60)
    assert ledger[order] == ["wire", "probe", "probe", "probe", f"refund {known}"]
    assert set(keys[order, "wire"]) == {f"{run.id}/0/1"}


def test_a_probe_that_fails_while_undoing_is_asked_again_before_anything_is_undone(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order] = ["lose the answer"]
    trouble[order, "probe"] = [ValueError("no such account"), ConnectionError("the bank is away")]
    with app.dispatcher():
        run = app.submit(wiring_undoably, order)
        with pytest.raises(aft.FlowCompensated, match="no such account"):
            run.result(60)
    assert ledger[order] == ["wire", "probe", "probe", "probe", "refund 9.90"]
    newest = app.faults()[0]
    assert (newest.kind, newest.path, newest.name) == ("compensator", "1/undo", "refund")


def test_a_compensator_with_a_probe_of_its_own_undoes_once(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(wiring_and_regretting, order).result(60)
    assert ledger[order] == ["wire back", "wired back?"]
