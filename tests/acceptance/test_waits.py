"""Runs that wait: for signals, for their time, and as people ask. On every combination of database and broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import aft
from aft.flows.session import release
from aft.flows.worker.slots import Slots
from aft.runs.records import inbox
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from tests.acceptance import agency
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, gates, ledger, trouble


def is_in_its_ladder(row: RunRow) -> bool:
    return row.status is Status.RECOVERING and row.worker_id is None and row.due_at is not None


def test_a_run_waits_for_a_signal_and_holds_nothing_meanwhile(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.approval, journey, status=Status.WAITING) as run:
        assert run.row.worker_id is None
        assert [wait.name for wait in run.row.waits] == ["verdict"]
        assert run.signal("verdict", "yes")
        assert run.result(60) == "yes"
    assert ledger[journey] == ["draft", "verdict yes"]


def test_a_signal_may_come_before_its_wait_and_before_any_worker(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.submit(agency.approval, journey)
    run.signal("verdict", "no")
    with app.dispatcher():
        assert run.result(60) == "no"


def test_a_signal_that_comes_while_the_run_is_executed_is_not_lost(setup: Setup, journey: str) -> None:
    gates[journey, "draft"] = threading.Event()
    with run_to(setup.app(), agency.approval, journey) as run:
        eventually(lambda: run.row.worker_id is not None)
        run.signal("verdict", "yes")
        gates[journey, "draft"].set()
        assert run.result(60) == "yes"


def test_a_signal_that_comes_while_the_run_is_let_go_is_not_lost(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    real = release.release_run
    sent: list[bool] = []

    def let_go(*given: Any) -> None:
        if not sent:
            sent.append(app.run(given[1].run_id).signal("verdict", "yes"))
        real(*given)

    monkeypatch.setattr(release, "release_run", let_go)
    with app.dispatcher():
        run = app.submit(agency.approval, journey)
        assert run.result(60) == "yes"
    assert sent == [True]


def test_signals_are_taken_in_order_and_a_repeated_key_is_dropped(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.submit(agency.collects, journey, 3)
    assert [run.signal("number", number, key=str(number)) for number in (1, 2, 1, 3)] == [True, True, False, True]
    with app.dispatcher():
        assert run.result(60) == [1, 2, 3]


def test_a_key_belongs_to_its_signal_whatever_the_two_texts_hold(setup: Setup, journey: str) -> None:
    run = setup.app().submit(agency.collects, journey, 1)
    sent = [("a/b", "c"), ("a", "b/c"), ("3", "a/b/c"), ("a", "b"), ("a/", "b"), ("a", "/b")]
    assert [run.signal(name, key=key) for name, key in sent] == [True] * len(sent)
    assert [run.signal(name, key=key) for name, key in sent] == [False] * len(sent)


def test_a_value_of_another_type_is_refused_and_the_wait_goes_on(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.collects, journey, 1) as run:
        run.signal("number", "seven")
        run.signal("number", 7)
        assert run.result(60) == [7]


def test_what_a_flow_declares_is_checked_where_a_signal_is_sent(setup: Setup, journey: str) -> None:
    run = setup.app().submit(agency.approval, journey)
    with pytest.raises(aft.DefinitionError, match="waits for no signal 'veredict'; did you mean 'verdict'"):
        run.signal("veredict", "yes")
    with pytest.raises(aft.CodecError, match="value"):
        run.signal("verdict", "perhaps")
    assert run.row.inbox_seq == 0


def test_a_signal_to_an_ended_run_is_refused(setup: Setup, journey: str) -> None:
    run = setup.app().start(agency.pays, journey)
    with pytest.raises(aft.OrderRefused, match="has ended, it is completed; nobody would take signal 'verdict'"):
        run.signal("verdict", "yes")


def test_a_wait_that_is_over_raises_and_what_was_done_is_undone(setup: Setup, journey: str) -> None:
    with (
        run_to(setup.app(), agency.approval, journey, "50ms") as run,
        pytest.raises(aft.FlowCompensated, match="WaitTimeout"),
    ):
        run.result(60)
    assert ledger[journey] == ["draft", "undraft"]


def test_a_wait_with_a_default_lets_the_flow_remind_and_wait_again(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.reminded, journey) as run:
        eventually(lambda: ledger[journey] == ["reminder"])
        run.signal("verdict", "at last")
        assert run.result(60) == "at last"


def test_a_sleep_survives_the_worker_that_began_it(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(agency.naps, journey, "2s")
        eventually(lambda: run.status is Status.WAITING)
    with app.dispatcher():
        assert float(run.result(60)) >= 2.0
    assert ledger[journey] == ["before", "after"]


def test_a_wait_that_is_over_is_none_any_more(setup: Setup, journey: str) -> None:
    trouble[journey, "after"] = [aft.Recoverable("later", after="10m")]
    with run_to(setup.app(), agency.naps, journey, "50ms") as run:
        eventually(lambda: (row := run.row).status is Status.RECOVERING and row.wake_id is not None)
    assert run.row.waits == ()


def test_a_fault_may_wait_for_a_signal_instead_of_a_time(setup: Setup, journey: str) -> None:
    trouble[journey, "pay"] = [aft.Recoverable("no balance", on_signal="refilled")]
    with run_to(setup.app(), agency.pays, journey) as run:
        eventually(lambda: [wait.name for wait in run.row.waits] == ["refilled"])
        assert run.status is Status.RECOVERING
        run.signal("refilled")
        assert run.result(60) == "paid"
    assert ledger[journey] == ["pay!", "pay"]


def unlock(journey: str) -> None:
    if waiting := trouble.get((journey, "unlock")):
        raise waiting.pop(0)
    ledger[journey].append("unlock")


@aft.compensate_with(unlock)
@aft.activity(name="waits_lock", levels=["20ms"])
def lock(journey: str) -> None:
    ledger[journey].append("lock")


@aft.flow(name="waits_locks")
def locks(journey: str) -> None:
    lock(journey)
    raise ValueError("no further")


def test_an_undo_may_wait_for_a_signal_too(setup: Setup, journey: str) -> None:
    trouble[journey, "unlock"] = [aft.Recoverable("no key", on_signal="key")]
    with run_to(setup.app(), locks, journey) as run:
        eventually(lambda: [wait.name for wait in run.row.waits] == ["key"])
        assert run.status is Status.COMPENSATING
        run.signal("key")
        with pytest.raises(aft.FlowCompensated, match="no further"):
            run.result(60)
    assert ledger[journey] == ["lock", "unlock"]


def test_a_signal_is_good_for_one_try_of_the_fault_that_waited_for_it(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "pay"] = [aft.Recoverable("no balance", on_signal="refilled") for _ in range(2)]
    with app.dispatcher():
        run = app.submit(agency.pays, journey)
        eventually(lambda: run.row.waits)
        run.signal("refilled", 1)
        rests = eventually(
            lambda: ledger[journey] == ["pay!", "pay!"] and (row := run.row).worker_id is None and row.waits and row
        )
        assert rests.status is Status.RECOVERING
        run.signal("refilled", 2)
        assert run.result(60) == "paid"
    assert ledger[journey] == ["pay!", "pay!", "pay"]
    with app.store.read() as connection:
        assert inbox.unread(connection, run.id) == []


def test_a_suspended_run_stops_at_its_next_step_and_goes_on_when_it_is_resumed(setup: Setup, journey: str) -> None:
    gates[journey, "draft"] = threading.Event()
    with run_to(setup.app(), agency.approval, journey) as run:
        eventually(lambda: run.row.worker_id is not None)
        run.suspend("let us look", by="ann")
        gates[journey, "draft"].set()
        eventually(lambda: run.status is Status.SUSPENDED)
        run.signal("verdict", "yes")
        assert run.row.reason == "suspended by ann: let us look"
        assert ledger[journey] == ["draft"]
        run.resume()
        assert run.result(60) == "yes"


def test_a_waiting_run_is_suspended_at_once_and_its_time_does_not_wake_it(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.naps, journey, "2s", status=Status.WAITING) as run:
        run.suspend()
        assert run.status is Status.SUSPENDED
        assert run.row.due_at is None
        run.resume()
        assert run.result(60)


def test_what_is_resumed_before_its_next_try_is_due_waits_for_it(setup: Setup, journey: str) -> None:
    trouble[journey, "pay"] = [aft.Recoverable("later", after="1h")]
    with run_to(setup.app(), agency.pays, journey) as run:
        eventually(lambda: (row := run.row).status is Status.RECOVERING and row.wake_id is not None)
        run.suspend()
        run.resume()
        eventually(lambda: is_in_its_ladder(run.row))
    assert ledger[journey] == ["pay!"]


def test_a_cancelled_run_undoes_everything(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.approval, journey, status=Status.WAITING) as run:
        run.cancel(note="changed their mind")
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["draft", "undraft"]
    assert run.row.cause == "cancel"


def test_a_run_may_be_cancelled_as_it_is(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.approval, journey, status=Status.WAITING) as run:
        run.cancel(compensate=False)
        with pytest.raises(aft.FlowCancelled):
            run.result(60)
    assert ledger[journey] == ["draft"]


def test_a_run_in_its_ladder_can_be_cancelled(setup: Setup, journey: str) -> None:
    trouble[journey, "verdict yes"] = [aft.Recoverable(after="10m")]
    with run_to(setup.app(levels="10m"), agency.approval, journey) as run:
        run.signal("verdict", "yes")
        eventually(lambda: (row := run.row).status is Status.RECOVERING and row.wake_id is not None)
        run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["draft", "verdict yes!", "undraft"]


def test_a_run_that_was_parked_for_its_code_can_be_cancelled(setup: Setup, journey: str) -> None:

    @aft.flow(name=f"broken_{journey}")
    def broken(journey: str) -> None:
        agency.book(journey, "draft")
        raise TypeError("a bug")

    with run_to(setup.app(), broken, journey, status=Status.PARKED) as run:
        run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["draft", "undraft"]


@pytest.mark.parametrize("order", ["suspend", "cancel", "resume"])
def test_an_order_to_an_ended_run_is_refused(setup: Setup, journey: str, order: str) -> None:
    run = setup.app().start(agency.pays, journey)
    with pytest.raises(aft.OrderRefused, match="completed"):
        getattr(run, order)()


def test_a_wait_outside_a_flow_is_refused() -> None:
    with pytest.raises(aft.DefinitionError, match=r"aft\.wait_for works only in a flow's own code"):
        aft.wait_for("verdict")
    with pytest.raises(aft.DefinitionError, match=r"aft\.sleep works only"):
        aft.sleep("1s")


def test_busy_is_only_trouble_that_passes(setup: Setup, journey: str) -> None:
    trouble[journey, "verdict yes"] = [Busy()]
    with run_to(setup.app(), agency.approval, journey) as run:
        run.signal("verdict", "yes")
        assert run.result(60) == "yes"
    assert ledger[journey] == ["draft", "verdict yes!", "verdict yes"]


def test_a_run_with_a_priority_goes_before_those_that_were_there_first(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(grace=30.0)
    gates[journey, "draft"] = threading.Event()
    take = Slots.take

    def take_patiently(slots: Slots, limit: int, timeout: float, *, urgent: bool = False, gather: float = 0.0) -> int:
        # Between two looks the next slot is anybody's: whoever is urgent waits for it in one.
        return take(slots, limit, 30.0 if urgent else timeout, urgent=urgent, gather=gather)

    monkeypatch.setattr(Slots, "take", take_patiently)
    with app.dispatcher(concurrency=1) as process:
        assert process._worker is not None
        slots = process._worker._slots
        blocked = app.submit(agency.approval, journey)
        eventually(lambda: blocked.row.worker_id is not None)
        others = [app.submit(agency.pays, f"{journey}-{number}") for number in range(5)]
        urgent = app.submit(agency.pays.options(priority=5), f"{journey}-urgent")
        eventually(lambda: slots._urgent)
        gates[journey, "draft"].set()
        for run in (urgent, *others):
            run.result(60)
    ends = [run.row.ended_at for run in (urgent, *others)]
    assert ends[0] == min(end for end in ends if end is not None)
