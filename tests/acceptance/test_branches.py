"""Branches side by side, and children: on every combination of database and broker."""

from __future__ import annotations

import asyncio
import threading

import pytest

import aft
from aft.runs.states import Status
from tests.acceptance import agency
from tests.acceptance.observe import children_of
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, gates, ledger, trouble


def test_calls_are_executed_side_by_side_and_their_results_come_in_order(setup: Setup, journey: str) -> None:
    meeting = threading.Barrier(3, timeout=60)
    for what in ("flight", "hotel", "car"):
        gates[journey, what] = _Meets(meeting)
    run = setup.app().start(agency.journey_flow, journey)
    assert run.result(0) == (f"flight of {journey}", f"hotel of {journey}", f"car of {journey}")
    assert sorted(ledger[journey][:3]) == ["car", "flight", "hotel"]
    assert ledger[journey][3] == "invoice"


class _Meets(threading.Event):
    """A gate that opens when all have come to it."""

    def __init__(self, meeting: threading.Barrier) -> None:
        super().__init__()
        self._meeting = meeting

    def wait(self, timeout: float | None = None) -> bool:
        self._meeting.wait(timeout)
        return True


def test_two_branches_may_be_in_two_ladders_at_once(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "flight"] = [Busy(), Busy()]
    trouble[journey, "car"] = [Busy()]
    with app.dispatcher():
        assert app.submit(agency.journey_flow, journey).result(60)
    done = ledger[journey]
    assert sorted(done) == ["car", "car!", "flight", "flight!", "flight!", "hotel", "invoice"]
    assert done[-1] == "invoice"
    assert sorted(fault.attempt for fault in app.faults()) == [1, 1, 2]


def test_a_final_failure_lets_the_others_settle_and_undoes_by_completion(setup: Setup, journey: str) -> None:
    trouble[journey, "hotel"] = [Refused("full")]
    trouble[journey, "car"] = [Busy()]
    with run_to(setup.app(), agency.journey_flow, journey) as run, pytest.raises(aft.FlowCompensated, match="full"):
        run.result(60)
    done = ledger[journey]
    assert done[-2:] == ["uncar", "unflight"]
    assert sorted(done[:-2]) == ["car", "car!", "flight", "hotel!"]


def test_a_savepoint_undoes_its_branches_and_the_flow_goes_another_way(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "cabin"] = [Refused("none left")]
    with app.dispatcher():
        assert app.submit(agency.fallback, journey).result(60) == f"train of {journey}"
    assert [what for what in ledger[journey] if what != "cabin!"] == ["deposit", "ferry", "unferry", "train"]


def test_a_map_keeps_to_its_concurrency_and_to_the_order_of_its_items(setup: Setup, journey: str) -> None:
    stops = [f"{journey}:{what}" for what in "abcde"]
    trouble[journey, "b"] = [Busy()]
    app = setup.app()
    with app.dispatcher():
        assert app.submit(agency.round_trip, stops, 2).result(60) == ["A", "B", "C", "D", "E"]
    assert sorted(ledger[journey]) == ["a", "b", "b!", "c", "d", "e"]


def test_once_an_item_has_failed_for_good_no_more_are_begun(setup: Setup, journey: str) -> None:
    stops = [f"{journey}:{what}" for what in "abcdef"]
    trouble[journey, "a"] = [Refused("closed")]
    app = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        app.submit(agency.round_trip, stops, 1).result(60)
    assert ledger[journey] == ["a!"]


def test_branches_of_an_async_flow_go_on_by_themselves(setup: Setup, journey: str) -> None:
    trouble[journey, "seat"] = [Busy()]
    with run_to(setup.app(), agency.async_journey, journey) as run:
        assert run.result(60) == [f"seat of {journey}", f"breakfast of {journey}"]
    assert sorted(ledger[journey]) == ["breakfast", "flight", "hotel", "seat", "seat!"]


def test_what_a_task_group_had_begun_is_undone_before_the_flow_goes_on(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "hotel"] = [Refused("full")]
    with app.dispatcher():
        assert app.submit(agency.grouped, journey).result(60) == f"train of {journey}"
    assert [what for what in ledger[journey] if what != "hotel!"] == ["flight", "unflight", "train"]


def test_a_worker_that_stops_in_the_middle_leaves_branches_to_the_next(setup: Setup, journey: str) -> None:
    app = setup.app()
    gates[journey, "hotel"] = threading.Event()
    first = app.dispatcher()
    first.start()
    run = app.submit(agency.async_journey, journey)
    eventually(lambda: "flight" in ledger[journey])
    first.drain()
    gates[journey, "hotel"].set()
    first.stop()
    assert run.row.worker_id is None
    with app.dispatcher():
        run.result(60)
    assert sorted(ledger[journey]) == ["breakfast", "flight", "hotel", "seat"]


# Children -------------------------------------------------------------------------------------------------------


def test_a_flow_called_in_a_flow_is_a_run_of_its_own(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(agency.family, journey)
        assert run.result(60) == f"train back of {journey}, boat back of {journey}"
    assert [child.status for child in children_of(app, run)] == [Status.COMPLETED, Status.COMPLETED]
    assert {child.root_id for child in children_of(app, run)} == {run.id}
    assert ledger[journey] == ["train there", "train back", "lunch", "boat there", "boat back", "dinner"]


def test_a_completed_child_is_one_frame_and_is_undone_as_a_whole(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "dinner"] = [Refused("closed")]
    with app.dispatcher():
        run = app.submit(agency.family, journey)
        with pytest.raises(aft.FlowCompensated, match="closed"):
            run.result(60)
    assert ledger[journey] == [
        *("train there", "train back", "lunch", "boat there", "boat back", "dinner!"),
        *("unboat back", "unboat there", "unlunch", "untrain back", "untrain there"),
    ]
    assert [child.status for child in children_of(app, run)] == [Status.COMPENSATED, Status.COMPENSATED]


def test_a_child_s_failure_travels_as_its_own_class(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "boat back"] = [Refused("storm")]

    @aft.flow(name=f"caught_{journey}")
    def caught(journey: str) -> str:
        try:
            return agency.leg(journey, "boat")
        except Refused as error:
            return f"caught {error}"

    with app.dispatcher():
        assert app.submit(caught, journey).result(60) == "caught storm"
    assert ledger[journey] == ["boat there", "boat back!", "unboat there"]


def test_children_side_by_side(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.family_at_once, journey) as run:
        assert run.result(60) == (f"train back of {journey}", f"boat back of {journey}")


def test_cancelling_a_parent_cancels_and_undoes_its_children(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(agency.waits_below, journey)
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.WAITING])
        run.cancel()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["deposit", "draft", "undraft", "undeposit"]
    assert [child.status for child in children_of(app, run)] == [Status.COMPENSATED]


def test_a_signal_reaches_a_child_and_its_parent_goes_on(setup: Setup, journey: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(agency.waits_below, journey)
        eventually(lambda: [child.status for child in children_of(app, run)] == [Status.WAITING])
        app.run(children_of(app, run)[0].id).signal("verdict", "yes")
        assert run.result(60) == "yes"


# Mistakes -------------------------------------------------------------------------------------------------------


def test_what_is_not_a_step_cannot_be_awaited(setup: Setup, journey: str) -> None:
    @aft.flow(name=f"sleepy_{journey}")
    async def sleepy(journey: str) -> None:
        await asyncio.sleep(1)

    run = setup.app().start(sleepy, journey)
    assert run.status is Status.PARKED
    assert "may await activities only" in (run.row.reason or "")


def test_parallel_takes_calls_only(setup: Setup, journey: str) -> None:
    @aft.flow(name=f"called_{journey}")
    def called(journey: str) -> None:
        aft.parallel(agency.book(journey, "flight"))  # type: ignore[call-overload]

    run = setup.app().start(called, journey)
    assert "aft.parallel takes calls, as activity.call(…) makes them" in (run.row.reason or "")
