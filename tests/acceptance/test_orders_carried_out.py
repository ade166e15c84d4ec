"""What people and parents ask for is done, whenever it comes; and nothing that was done or failed is left behind."""

from __future__ import annotations

from typing import Any

import pytest

import aft
from aft.errors import StoreError
from aft.fault import Fault
from aft.flows.orders.apply import OrderHandler
from aft.flows.session import release
from aft.runs.records.inbox import InboxItem, InboxVerb
from aft.runs.records.journal import Entry
from aft.runs.states import Status
from tests.acceptance import agency
from tests.acceptance.agency import book
from tests.acceptance.observe import children_of, unread
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, ledger, shut, trouble

#: What only the engine's own code decides: one database says as much as another.
on_sqlite = pytest.mark.parametrize("setup", ["sqlite"], indirect=True)


# Orders that come late -------------------------------------------------------------------------------------------


@aft.flow(name="left_single")
def single(journey: str) -> str:
    """One step, the last one."""
    return book(journey, "flight")


@aft.flow(name="left_single_below")
def single_below(journey: str) -> str:
    """A child of one step."""
    book(journey, "deposit")
    return single(journey)


def test_a_run_that_is_cancelled_in_its_last_step_is_undone(setup: Setup, journey: str) -> None:
    app = setup.app()
    flight = shut(journey, "flight")
    with app.dispatcher():
        run = app.submit(single, journey)
        assert flight.reached.wait(60)
        run.cancel()
        flight.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["flight", "unflight"]
    assert unread(app, run) == []


def test_a_child_in_its_last_step_is_undone_with_its_cancelled_parent(setup: Setup, journey: str) -> None:
    app = setup.app()
    flight = shut(journey, "flight")
    with app.dispatcher():
        run = app.submit(single_below, journey)
        assert flight.reached.wait(60)
        run.cancel()
        eventually(lambda: [child.inbox_seq for child in children_of(app, run)] == [1])
        flight.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["deposit", "flight", "unflight", "undeposit"]


def test_a_child_that_completed_before_its_cancelled_parent_heard_of_it_is_undone(setup: Setup, journey: str) -> None:
    app = setup.app()
    flight = shut(journey, "flight")
    with app.dispatcher():
        run = app.submit(single_below, journey)
        assert flight.reached.wait(60)
        eventually(lambda: run.status is Status.WAITING)
        run.suspend()
        flight.set()
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.COMPLETED])
        run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["deposit", "flight", "unflight", "undeposit"]


@aft.activity(name="left_unlag")
def unlag(journey: str) -> None:
    """An activity of its own: it may take long."""
    agency.do(journey, "unlag")


@aft.compensate_with(unlag)
@aft.activity(name="left_lag", timeout="100ms", levels=[])
def lag(journey: str) -> str:
    """Takes too long, and has its effect after all."""
    agency.do(journey, "lag")
    return "late"


@aft.flow(name="left_lagging")
def lagging(journey: str) -> str:
    """Give a step up, and take another way."""
    try:
        return lag(journey)
    except Exception:
        return book(journey, "train")


@aft.flow(name="left_lagging_below")
def lagging_below(journey: str) -> str:
    """A child that completes while something of it is under way, and a step that fails."""
    lagging(journey)
    return book(journey, "dinner")


def test_a_completed_child_is_undone_though_it_is_executed_for_a_late_effect(setup: Setup, journey: str) -> None:
    app = setup.app()
    lagged, dinner, unlagged = (shut(journey, what) for what in ("lag", "dinner", "unlag"))
    trouble[journey, "dinner"] = [Refused("closed")]
    with app.dispatcher():
        run = app.submit(lagging_below, journey)
        assert dinner.reached.wait(60)
        lagged.set()
        assert unlagged.reached.wait(60)
        dinner.set()
        eventually(lambda: [child.inbox_seq for child in children_of(app, run)] == [1])
        unlagged.set()
        with pytest.raises(aft.FlowCompensated, match="closed"):
            run.result(60)
    assert ledger[journey] == ["train", "lag", "dinner!", "unlag", "untrain"]


# Orders and crashes ----------------------------------------------------------------------------------------------


def test_a_run_that_shall_end_as_it_is_does_so_though_its_worker_fails_then(
    setup: Setup, journey: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, failures = release.end, [StoreError("lost between reading and ending", transient=True)]

    def fail_once(deps: Any, owner: Any, status: Status, *more: Any, **given: Any) -> None:
        if status is Status.CANCELLED and failures:
            raise failures.pop()
        end(deps, owner, status, *more, **given)

    monkeypatch.setattr(release, "end", fail_once)
    with run_to(setup.app(lease=quick_beats), agency.approval, journey, status=Status.WAITING) as run:
        run.cancel(compensate=False)
        with pytest.raises(aft.FlowCancelled):
            run.result(60)
    assert not failures
    assert ledger[journey] == ["draft"]


def test_a_run_is_suspended_though_a_signal_comes_in_between(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, obey, noises = shut(journey, "draft"), OrderHandler.apply_orders, ["noise"]

    def obey_and_hear(self: OrderHandler, items: list[InboxItem], live: list[Fault], entries: list[Entry]) -> None:
        try:
            obey(self, items, live, entries)
        finally:
            if noises and items[-1].verb is InboxVerb.SUSPEND:
                run.signal(noises.pop())

    monkeypatch.setattr(OrderHandler, "apply_orders", obey_and_hear)
    with run_to(setup.app(), waits_long, journey) as run:
        assert draft.reached.wait(60)
        run.suspend("let us look", by="ann")
        draft.set()
        eventually(lambda: run.row.worker_id is None)
        assert (run.status, run.row.reason) == (Status.SUSPENDED, "suspended by ann: let us look")
        assert not noises
        run.signal("go")
        run.resume()
        assert run.result(60) == f"invoice of {journey}"


@aft.flow(name="left_waits_long")
def waits_long(journey: str) -> str:
    """Book before and after a wait."""
    book(journey, "draft")
    aft.wait_for("go")
    return book(journey, "invoice")


# What is left of children, and of faults --------------------------------------------------------------------------


@aft.flow(name="left_charged")
def charged(journey: str) -> str:
    """A child that cannot be undone."""
    agency.charge(journey)
    return book(journey, "flight")


@aft.flow(name="left_charged_below")
def charged_below(journey: str) -> str:
    """Its parent."""
    book(journey, "deposit")
    return charged(journey)


@on_sqlite
@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
def test_a_child_that_could_not_be_undone_entirely_leaves_its_parent_so(
    setup: Setup, journey: str, cancelled: bool
) -> None:
    app = setup.app()
    trouble[journey, "flight"] = [Refused("full")]
    trouble[journey, "refund"] = [aft.Unrecoverable("account closed")]
    with app.dispatcher():
        run = app.submit(charged_below, journey)
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.PARKED])
        if cancelled:
            eventually(lambda: run.status is Status.WAITING)
            run.cancel()
            eventually(lambda: (row := run.row).status is Status.COMPENSATING and row.worker_id is None)
        app.run(children_of(app, run)[0].id).skip_frame(note="written off")
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert ledger[journey] == ["deposit", "charge", "flight!", "refund!", "undeposit"]


def test_no_fault_stays_open_in_a_run_that_has_ended(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "flight"] = [Busy()]
    with app.dispatcher(only=["work", "relay"]):  # nobody decides
        run = app.submit(single, journey)
        eventually(lambda: app.faults(state="open") and run.row.worker_id is None)
        run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert [fault.state.value for fault in app.faults()] == ["resolved"]


@aft.flow(name="left_asks")
def asks(stop: str) -> str:
    """A child that waits for a person."""
    return f"{stop}: {aft.wait_for('verdict')}"


@aft.flow(name="left_asks_all")
def asks_all(stops: list[str]) -> list[str]:
    """A child for each, two at a time."""
    return aft.map(asks, stops, concurrency=2)


@on_sqlite
def test_a_map_over_children_keeps_to_its_concurrency(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(asks_all, ["a", "b", "c", "d"])
        for ended in range(4):
            eventually(
                lambda: (row := run.row).status is Status.WAITING and row.worker_id is None and not unread(app, run)
            )
            children = children_of(app, run)
            assert len(children) == min(ended + 2, 4)
            app.run(children[ended].id).signal("verdict", "yes")
            app.run(children[ended].id).result(60)
        assert run.result(60) == ["a: yes", "b: yes", "c: yes", "d: yes"]
