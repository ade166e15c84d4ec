"""What is asked of a run just before it is parked is carried out; and nothing but an order lets a parked run go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

import aft
from aft.flows.orders.interrupts import Interrupts
from aft.flows.session.blocks import InboxChanged
from aft.flows.session.inbox import RunInbox
from aft.flows.steps.request import OnRecorded, StepRequest
from aft.rules.rule_types import RuleType
from aft.rules.trees.tree import Node, Tree
from aft.runs.records.journal import Entry
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.store.tables import runs
from tests.acceptance.observe import answers
from tests.setups import Setup, eventually, run_to
from tests.world import fixed, gates, ledger

#: All of a dispatcher that decides about faults, and nobody who executes runs.
DECIDES = ["intake", "sweep", "relay"]


def unbook_seat(order: str) -> None:
    ledger[order].append("unbook_seat")


@aft.compensate_with(unbook_seat)
@aft.activity
def book_seat(order: str) -> None:
    ledger[order].append("book_seat")


@aft.activity(levels=["1h"])
def odd_seat(order: str) -> None:
    raise KeyError("odd_seat")


@aft.flow
def seat_booking(order: str) -> None:
    book_seat(order)
    odd_seat(order)


@aft.flow
def seat_trip(order: str) -> None:
    book_seat(order)
    seat_booking(order)


def parks(setup: Setup) -> aft.Aft:
    """An app whose rules park every run in which ``odd_seat`` fails."""
    app = setup.app()
    app.rules.save_all([Tree("*", RuleType.FAULT, "odd_seat", 0, {1: Node(1, "true", "park")}, 1)], [])
    return app


def decide_only(app: aft.Aft, run: aft.Run[None]) -> None:
    """Let the run's fault be decided about, while nobody executes anything."""
    with app.dispatcher(only=DECIDES):
        eventually(lambda: not app.faults(state="open"))
    assert run.status == "parked"


def test_a_cancel_is_carried_out_though_the_run_is_parked_before_it_is_read(setup: Setup, order: str) -> None:
    app = parks(setup)
    run = app.start(seat_booking, order)
    run.cancel(note="not wanted any more")
    decide_only(app, run)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert ledger[order] == ["book_seat", "unbook_seat"]
    assert [fault.state for fault in app.faults()] == ["resolved"]


def test_a_cancel_without_undoing_is_carried_out_though_the_run_is_parked_before_it_is_read(
    setup: Setup, order: str
) -> None:
    app = parks(setup)
    run = app.start(seat_booking, order)
    run.cancel(compensate=False)
    decide_only(app, run)
    with app.dispatcher():
        eventually(lambda: run.status == "cancelled")
    assert ledger[order] == ["book_seat"]
    assert [fault.state for fault in app.faults()] == ["resolved"]  # nobody is to look at it any more


def test_a_cancelled_parent_is_undone_though_its_child_is_parked_before_it_hears_of_it(
    setup: Setup, order: str
) -> None:
    app = parks(setup)
    run = app.start(seat_trip, order)
    with app.dispatcher(only=["work", "relay"]):
        eventually(lambda: app.runs(flow="seat_booking", status="recovering"))
    (child,) = app.runs(flow="seat_booking")
    run.cancel()
    child.cancel()
    decide_only(app, child)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert ledger[order] == ["book_seat", "book_seat", "unbook_seat", "unbook_seat"]


def broken_release(order: str) -> None:
    ledger[order].append("broken_release")
    raise ValueError("a bug in the compensator")


@aft.compensate_with(broken_release)
@aft.activity
def reserve_seat(order: str) -> None:
    ledger[order].append("reserve_seat")


@aft.activity(levels=[], unrecoverable=(ValueError,))
def seat_fails(order: str) -> None:
    raise ValueError("no")


@aft.flow
def seat_reserving(order: str) -> None:
    book_seat(order)
    with aft.savepoint("trial"):
        reserve_seat(order)
        seat_fails(order)


def test_a_cancel_is_carried_out_though_a_compensator_parks_the_run_before_it_is_read(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.start(seat_reserving, order)
    with app.dispatcher(only=DECIDES):
        eventually(lambda: not app.faults(state="open"))
    with app.dispatcher(only=["work", "relay"]):
        eventually(lambda: [fault for fault in app.faults(state="open") if fault.kind == "compensator"])
    run.cancel()
    decide_only(app, run)
    with app.dispatcher():
        eventually(lambda: (row := run.row).cause == "cancel" and rests(row) and row.status == "parked")
        run.frame_done(note="by hand")
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[order] == ["book_seat", "reserve_seat", "broken_release", "broken_release", "unbook_seat"]


@aft.flow
def seats_within(order: str) -> None:
    with aft.savepoint("outer"):
        book_seat(order)
        with aft.savepoint("inner"):
            reserve_seat(order)
            seat_fails(order)


def test_an_order_that_has_to_wait_for_a_compensator_does_not_try_it_again(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.start(seats_within, order)
    with app.dispatcher(only=DECIDES):
        eventually(lambda: not app.faults(state="open"))
    with app.dispatcher(only=["work", "relay"]):
        eventually(lambda: [fault for fault in app.faults(state="open") if fault.kind == "compensator"])
    run.compensate(to="outer")
    decide_only(app, run)
    with app.dispatcher():
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        run.frame_done(note="by hand")
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[order] == ["book_seat", "reserve_seat", "broken_release", "unbook_seat"]


@aft.flow
def seats_either_way(order: str) -> str:
    try:
        with aft.savepoint("around"):
            book_seat(order)
            try:
                with aft.savepoint("within"):
                    reserve_seat(order)
                    seat_fails(order)
            except ValueError:
                send_ticket(order)
    except aft.UndoneByHand:
        return "undone"
    return "sent"


@pytest.mark.parametrize("settles", ["frame_done", "retry"])
def test_an_order_for_a_run_that_is_parked_for_a_compensator_waits_until_a_person_has_settled_that(
    setup: Setup, order: str, settles: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(seats_either_way, order)
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        why = run.row.reason
        run.compensate(to="around")
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        assert (ledger[order], run.row.reason) == (["book_seat", "reserve_seat", "broken_release"], why)
        assert [fault.kind for fault in app.faults(state="parked")] == ["compensator"]
        if settles == "retry":
            run.retry()
            eventually(lambda: ledger[order].count("broken_release") == 2)
            eventually(lambda: rests(row := run.row) and row.status == "parked")
        run.frame_done(note="by hand")
        assert run.result(60) == "undone"
    tried = ["broken_release"] * (2 if settles == "retry" else 1)
    assert ledger[order] == ["book_seat", "reserve_seat", *tried, "unbook_seat"]


def test_a_resumed_run_stays_parked_if_it_was_parked_before_it_went_on(setup: Setup, order: str) -> None:
    app = parks(setup)
    run = app.start(seat_booking, order)
    run.suspend()
    run.resume()
    decide_only(app, run)
    why = run.row.reason
    with app.dispatcher():
        eventually(lambda: rests(row := run.row) and row.status == "parked")
    assert [fault.state for fault in app.faults()] == ["parked"]
    assert run.row.reason == why


@aft.activity(levels=[])
def print_ticket(order: str) -> int:
    ledger[order].append("printed")
    if ledger[order].count("printed") > 1:
        return 1
    gates[order].wait(60)
    return "not a number"  # type: ignore[return-value]


@aft.flow
def ticketing(order: str) -> int:
    with aft.savepoint("printing"):
        return print_ticket(order)


def stop_while_it_prints(app: aft.Aft, order: str, ask: Callable[[aft.Run[int]], object]) -> aft.Run[int]:
    """Ask something of a run while its step is executed, which then cannot keep its result."""
    run = app.submit(ticketing, order)
    eventually(lambda: ledger[order] == ["printed"])
    ask(run)
    gates[order].set()
    eventually(lambda: rests(run.row))
    return run


def read_answers(app: aft.Aft, run: aft.Run[Any]) -> list[str | None]:
    """What was answered to the orders that a run has read."""
    return [note for _, read, note in answers(app, run) if read]


def rests(row: RunRow) -> bool:
    return row.status is not Status.RUNNING and row.worker_id is None and row.wake_id is None


def test_a_run_that_parks_while_it_is_asked_to_stop_stays_parked_until_a_retry(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = stop_while_it_prints(app, order, lambda run: run.suspend("wait a bit"))
        assert (run.status, ledger[order]) == ("parked", ["printed"])
        assert "returned what cannot be stored" in (run.row.reason or "")
        assert [fault.state for fault in app.faults()] == ["parked"]
        with pytest.raises(aft.OrderRefused, match="parked"):
            run.resume()
        run.retry()
        assert run.result(60) == 1
    assert ledger[order] == ["printed", "printed"]


def test_an_order_to_undo_to_a_savepoint_that_a_parked_run_is_not_in_executes_nothing(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = stop_while_it_prints(app, order, lambda run: run.compensate(to="elsewhere"))
        assert (run.status, ledger[order]) == ("parked", ["printed"])
        run.retry()
        assert run.result(60) == 1


@aft.activity
def send_ticket(order: str) -> None:
    ledger[order].append("sent")


@aft.flow
def seat_selling(order: str) -> str:
    try:
        with aft.savepoint("selling"):
            book_seat(order)
            if order not in fixed:
                raise NameError("no such name")
            send_ticket(order)
    except aft.UndoneByHand:
        return "undone"
    return "sold"


def test_a_run_that_was_parked_for_its_code_is_undone_to_a_savepoint_and_begins_nothing(
    setup: Setup, order: str
) -> None:
    with run_to(setup.app(), seat_selling, order, status="parked") as run:
        fixed.add(order)
        run.compensate(to="selling")
        assert run.result(60) == "undone"
    assert ledger[order] == ["book_seat", "unbook_seat"]


@aft.flow
def ticketing_or_not(order: str) -> str:
    try:
        with aft.savepoint("printing"):
            print_ticket(order)
    except aft.UndoneByHand:
        return "undone"
    return "printed"


def test_a_step_that_a_run_is_parked_for_is_not_executed_again_when_it_is_undone_to_a_savepoint(
    setup: Setup, order: str
) -> None:
    gates[order].set()
    with run_to(setup.app(), ticketing_or_not, order, status="parked") as run:
        run.compensate(to="printing")
        assert run.result(60) == "undone"
    assert ledger[order] == ["printed"]


def test_an_order_that_a_mistake_of_the_code_keeps_from_being_heard_is_refused(setup: Setup, order: str) -> None:
    app = setup.app()
    with run_to(app, seat_selling, order, status="parked") as run:
        run.compensate(to="selling")
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        assert "refused: the flow's code raised NameError" in (read_answers(app, run)[0] or "")
        fixed.add(order)
        run.retry()
        assert run.result(60) == "sold"
    assert ledger[order] == ["book_seat", "sent"]


@aft.flow
def seat_printing(order: str) -> str:
    try:
        with aft.savepoint("printing"):
            book_seat(order)
            await_gate(order)
            if order not in fixed:
                raise NameError("no such name")
            send_ticket(order)
    except aft.UndoneByHand:
        return "undone"
    return "sold"


@aft.activity
def await_gate(order: str) -> None:
    ledger[order].append("gate")
    assert gates[order].wait(60)


def test_an_order_that_comes_before_a_mistake_of_the_code_is_refused_when_the_run_parks(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(seat_printing, order)
        eventually(lambda: "gate" in ledger[order])
        run.compensate(to="printing")
        gates[order].set()
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        assert "refused: the flow's code raised NameError" in (read_answers(app, run)[0] or "")
        fixed.add(order)
        run.retry()
        assert run.result(60) == "sold"
    assert ledger[order] == ["book_seat", "gate", "sent"]


def test_a_step_that_a_run_is_parked_for_is_not_executed_again_though_the_run_was_suspended_before_it_is_undone(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(ticketing_or_not, order)
        eventually(lambda: ledger[order] == ["printed"])
        run.suspend("wait a bit")
        run.compensate(to="printing")
        gates[order].set()
        eventually(lambda: rests(row := run.row) and row.status == "suspended")
        run.resume()
        assert run.result(60) == "undone"
    assert ledger[order] == ["printed"]
    assert read_answers(app, run) == [None] * 3


def test_a_step_that_a_run_is_parked_for_is_not_executed_again_though_its_owner_is_lost_before_it_is_undone(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    gates[order].set()
    lost: list[str] = []
    fail = Interrupts.fail

    def lose_and_fail(interrupts: Interrupts, ask: StepRequest, on_recorded: OnRecorded | None, **named: Any) -> Entry:
        if not lost:
            lost.append(ask.path)
            app.run(interrupts._owner.run_id).release()
        return fail(interrupts, ask, on_recorded, **named)

    monkeypatch.setattr(Interrupts, "fail", lose_and_fail)
    with run_to(app, ticketing_or_not, order, status="parked") as run:
        run.compensate(to="printing")
        assert run.result(60) == "undone"
    assert lost
    assert ledger[order] == ["printed"]


@aft.activity(levels=[])
def spoil_ticket(order: str) -> int:
    ledger[order].append("spoiled")
    if len(ledger[order]) == 1:
        assert gates[order].wait(60)
    return "not a number"  # type: ignore[return-value]


@aft.flow
def spoiling(order: str) -> str:
    try:
        with aft.savepoint("spoiling"):
            return str(spoil_ticket(order))
    except aft.UndoneByHand:
        return "undone"


def test_an_order_is_carried_out_though_a_step_that_was_in_doubt_parks_the_run_before(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher(only=["work", "relay"]):
        run = app.submit(spoiling, order)
        eventually(lambda: ledger[order] == ["spoiled"])
        run.release()
        run.compensate(to="spoiling")
        assert run.result(60) == "undone"
        gates[order].set()
    assert ledger[order] == ["spoiled"] * 2


@aft.flow
async def seat_and_ticket(order: str) -> list[str]:
    """Two branches: one waits in a savepoint, the other one has a step that parks the run."""

    async def seat() -> str:
        try:
            with aft.savepoint("seat"):
                await book_seat.call(order)
                return str(await aft.wait_for("seated"))
        except aft.UndoneByHand:
            await send_ticket.call(order)
            return "no seat"

    async def ticket() -> str:
        return str(await print_ticket.call(order))

    return list(await asyncio.gather(seat(), ticket()))


def test_a_step_that_parks_a_run_is_not_executed_again_when_another_branch_is_undone(setup: Setup, order: str) -> None:
    with run_to(setup.app(), seat_and_ticket, order) as run:
        eventually(lambda: len(ledger[order]) == 2)
        gates[order].set()
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        why = run.row.reason
        run.compensate(to="seat")
        eventually(lambda: "sent" in ledger[order] and rests(run.row))
        assert ((row := run.row).status, row.reason) == ("parked", why)
        assert ledger[order].count("printed") == 1
        run.retry()
        assert run.result(60) == ["no seat", "1"]
    assert sorted(ledger[order]) == ["book_seat", "printed", "printed", "sent", "unbook_seat"]


def test_a_step_that_parks_a_run_is_not_executed_again_though_another_branch_has_heard_of_an_order(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    heard = threading.Event()
    look = RunInbox.read_new

    def look_and_tell(mailbox: RunInbox) -> None:
        try:
            look(mailbox)
        except InboxChanged:
            heard.set()
            raise

    monkeypatch.setattr(RunInbox, "read_new", look_and_tell)
    with app.dispatcher():
        run = app.submit(seat_and_ticket, order)
        eventually(lambda: len(ledger[order]) == 2)
        run.suspend("wait a bit")
        assert heard.wait(60)
        gates[order].set()
        eventually(lambda: rests(row := run.row) and row.status == "parked")
        assert read_answers(app, run) == ["refused: the run is parked, and does nothing until a person lets it go on"]
        assert ledger[order].count("printed") == 1
        run.signal("seated", "here")
        run.retry()
        assert run.result(60) == ["here", "1"]


def leave_slowly(order: str) -> None:
    ledger[order].append("leaving")
    assert gates[order].wait(60)


@aft.compensate_with(leave_slowly)
@aft.activity
def enter_train(order: str) -> None:
    ledger[order].append("entered")


@aft.flow
def riding(order: str) -> None:
    enter_train(order)
    aft.wait_for("arrived")


@aft.activity(levels=[])
def spoil_at_once(order: str) -> int:
    ledger[order].append("spoiled")
    return "not a number"  # type: ignore[return-value]


@aft.flow
async def riding_and_spoiling(order: str) -> str:
    try:
        with aft.savepoint("trip"):
            await asyncio.gather(riding.call(order), spoil_at_once.call(order))
    except aft.UndoneByHand:
        return "undone"
    return "arrived"


def test_a_run_that_is_being_undone_to_a_savepoint_can_be_suspended_though_a_step_in_it_was_parked(
    setup: Setup, order: str
) -> None:
    with run_to(setup.app(), riding_and_spoiling, order) as run:
        eventually(lambda: rests(row := run.row) and row.status == "parked" and "entered" in ledger[order])
        run.compensate(to="trip")
        eventually(lambda: "leaving" in ledger[order] and run.row.worker_id is None)
        run.suspend("wait a bit")
        gates[order].set()
        eventually(lambda: rests(row := run.row) and row.status == "suspended")
        run.resume()
        assert run.result(60) == "undone"
    assert ledger[order].count("spoiled") == 1


def test_an_ended_run_that_is_parked_says_how_it_ended(setup: Setup, order: str) -> None:
    app = parks(setup)
    run = app.start(seat_booking, order)
    run.cancel(compensate=False)
    with app.dispatcher():
        eventually(lambda: run.status == "cancelled")
    with app.store.write() as connection:  # as for an effect that came late
        connection.execute(update(runs).where(runs.c.id == run.id).values(status="parked", reason="late"))
    with pytest.raises(aft.OrderRefused, match="has ended, it is cancelled, and parked since"):
        run.cancel()
    with pytest.raises(aft.OrderRefused, match="has ended cancelled, and parked since; only a completed one"):
        run.compensate()
