"""Claims about a run that must be executed alone: it gets its turn, behind whatever is there; nobody starves for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from sqlalchemy import select

import aft
from aft.config import Settings
from aft.flows.session.dependencies import Dependencies
from aft.flows.worker import worker as rooms
from aft.flows.worker.solitary_runs import ALONE_PATIENCE, LONGEST_REFUSED, MOST_PATIENCE
from aft.flows.worker.worker import Worker
from aft.recovery.takeover import Takeover
from aft.runs.ownership.claims import find_due
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.states import Status
from aft.store.db_time import later
from aft.store.tables import runs
from tests.setups import eventually
from tests.storing import Stage
from tests.world import gates, ledger

#: What happens once, when the lonely run of a place is entered.
on_entry: dict[str, Callable[[], None]] = {}


def nothing() -> None:
    """Nothing happens."""


@aft.activity(name="alone_note")
def note(place: str, what: str) -> None:
    ledger[place].append(what)


@aft.activity(name="alone_stay")
def stay(place: str) -> None:
    """Take long."""
    ledger[place].append("long one begins")
    assert gates[place].wait(60)
    ledger[place].append("long one ends")


@aft.flow(name="alone_lonely")
def lonely(place: str) -> None:
    on_entry.pop(place, nothing)()
    note(place, "alone")


@aft.flow(name="alone_long")
def long(place: str) -> None:
    stay(place)
    note(place, "long one goes on")


@aft.flow(name="alone_other")
def other(place: str) -> None:
    note(place, "other")


@pytest.fixture
def app(stage: Stage) -> Iterator[aft.Aft]:
    url = stage.store.engine.url.render_as_string(hide_password=False)
    settings = Settings.load(database_url=url, namespace=stage.namespace, grace=0.0)
    with aft.Aft(settings=settings, clock=stage.clock) as made:
        yield made


@pytest.fixture
def deps(app: aft.Aft, stage: Stage) -> Dependencies:
    return app.make_deps(stage.lease())


@pytest.fixture
def worker(app: aft.Aft, stage: Stage, deps: Dependencies, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker for two runs at a time, whose services are called by the test."""
    monkeypatch.setattr(rooms, "PATIENCE", 0.01)
    nobody = cast(Any, None)
    takeover = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, nobody)
    made = Worker(deps, nobody, takeover, 2, declare=lambda: None)
    yield made
    deps.draining.set()
    made.join(timeout=60)


def submit_lonely(app: aft.Aft, stage: Stage, place: str) -> aft.Run:
    """A run that has seen too many deaths, and whose time has come."""
    run = app.submit(lonely, place)
    stage.change(run.id, deaths=MOST_SHARED_DEATHS, sweep_at=later(-1))
    return run


def let_time_pass(worker: Worker, stage: Stage, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass whenever the worker looks whether room is wanted; returns when it did so while making it."""
    looks: list[float] = []
    real = worker._solitary._is_due

    def look() -> bool:
        assert len(looks) < 200, "it is never given up"
        if worker._deps.making_room.is_set():
            looks.append(stage.clock.passed)
        stage.clock.passed += seconds
        return real()

    monkeypatch.setattr(worker._solitary, "_is_due", look)
    return looks


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_the_house_is_emptied_at_the_next_step_of_whoever_is_in_it_and_they_go_on_after(
    app: aft.Aft, stage: Stage, worker: Worker, deps: Dependencies, place: str
) -> None:
    neighbour = app.submit(long, place)
    stage.change(neighbour.id, sweep_at=later(-1))
    worker._take_due()
    eventually(lambda: ledger[place] == ["long one begins"])
    run = submit_lonely(app, stage, place)
    solitary = in_background(worker._solitary.take)
    eventually(deps.making_room.is_set)
    gates[place].set()
    solitary.join(60)
    eventually(lambda: run.status is Status.COMPLETED)
    assert ledger[place] == ["long one begins", "long one ends", "alone"]
    assert not deps.making_room.is_set()
    eventually(lambda: worker._slots.wait_idle(0))
    stage.change(neighbour.id, sweep_at=later(-1))
    worker._take_due()
    eventually(lambda: neighbour.status is Status.COMPLETED)
    assert ledger[place][-1] == "long one goes on"


def test_nobody_else_is_let_in_while_it_is_executed(app: aft.Aft, stage: Stage, worker: Worker, place: str) -> None:
    run = app.submit(long, place)
    stage.change(run.id, deaths=MOST_SHARED_DEATHS, sweep_at=later(-1))
    worker._solitary.take()
    eventually(lambda: ledger[place] == ["long one begins"])
    neighbour = app.submit(other, place)
    stage.change(neighbour.id, sweep_at=later(-1))
    for _ in range(3):
        worker._take_due()
    assert ledger[place] == ["long one begins"]
    assert stage.row(neighbour.id).worker_id is None
    gates[place].set()
    eventually(lambda: worker._slots.wait_idle(0))
    worker._take_due()
    eventually(lambda: neighbour.status is Status.COMPLETED)


def test_behind_what_takes_too_long_it_waits_for_another_time_and_the_others_go_on(
    app: aft.Aft, stage: Stage, worker: Worker, deps: Dependencies, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, neighbour = submit_lonely(app, stage, place), app.submit(other, place)
    stage.change(neighbour.id, sweep_at=later(-1))
    assert worker._slots.take(1, timeout=0) == 1  # something takes long here
    looks = let_time_pass(worker, stage, 4.0, monkeypatch)
    assert worker._solitary.take() >= ALONE_PATIENCE
    assert looks[-1] - looks[0] <= ALONE_PATIENCE, "the house was closed for longer than that"
    assert not deps.making_room.is_set()
    worker._take_due()
    eventually(lambda: neighbour.status is Status.COMPLETED and worker._slots.free(timeout=0) == 1)
    assert (run.status, stage.row(run.id).worker_id) == (Status.RUNNING, None)
    worker._slots.release(1)
    assert worker._solitary.take() == 0.0
    eventually(lambda: run.status is Status.COMPLETED)
    assert ledger[place] == ["other", "alone"]


def test_each_refusal_makes_the_next_try_later_up_to_some_minutes_and_a_success_ends_that(
    app: aft.Aft, stage: Stage, worker: Worker, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit_lonely(app, stage, place)
    assert worker._slots.take(1, timeout=0) == 1
    let_time_pass(worker, stage, ALONE_PATIENCE, monkeypatch)
    assert [worker._solitary.take() for _ in range(6)] == [20, 40, 80, 160, LONGEST_REFUSED, LONGEST_REFUSED]
    # And room is made for longer each time: somebody's steps may all take longer than the first patience.
    before = stage.clock.passed
    worker._solitary.take()
    assert stage.clock.passed - before >= MOST_PATIENCE
    worker._slots.release(1)
    worker._solitary.take()
    eventually(lambda: first.status is Status.COMPLETED and worker._slots.wait_idle(0))
    submit_lonely(app, stage, place)
    assert worker._slots.take(1, timeout=0) == 1
    assert worker._solitary.take() == 20
    worker._slots.release(1)


def test_a_run_that_somebody_else_took_meanwhile_is_no_refusal(
    app: aft.Aft, stage: Stage, worker: Worker, deps: Dependencies, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit_lonely(app, stage, place)
    assert worker._slots.take(1, timeout=0) == 1
    real = worker._slots.take_all

    def take_all(timeout: float) -> int:
        stage.change(run.id, worker_id=stage.lease().worker, wake_id=None)
        return real(timeout)

    monkeypatch.setattr(worker._slots, "take_all", take_all)
    assert worker._solitary.take() < 1, "the next one must not wait because of that"
    assert not deps.making_room.is_set()
    worker._slots.release(1)


def test_room_that_was_made_for_nothing_is_given_back(
    app: aft.Aft, stage: Stage, worker: Worker, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit_lonely(app, stage, place)
    real = worker._slots.take_all

    def take_all(timeout: float) -> int:
        taken = real(timeout)
        stage.change(run.id, worker_id=stage.lease().worker, wake_id=None)
        return taken

    monkeypatch.setattr(worker._slots, "take_all", take_all)
    worker._solitary.take()
    assert worker._slots.free(timeout=0) == worker._slots.size


def test_a_graceful_stop_makes_it_neither_less_nor_more_suspicious(
    app: aft.Aft, stage: Stage, worker: Worker, deps: Dependencies, place: str
) -> None:
    run = submit_lonely(app, stage, place)
    stage.change(run.id, deaths_alone=1)
    on_entry[place] = deps.draining.set
    worker._solitary.take()
    eventually(lambda: place not in on_entry and stage.row(run.id).worker_id is None)
    with stage.store.read() as connection:
        found = connection.execute(select(runs.c.deaths, runs.c.deaths_alone).where(runs.c.id == run.id)).one()
        assert tuple(found) == (MOST_SHARED_DEATHS, 1)
        assert find_due(connection, stage.namespace, deps.registry.known, 5, alone=True), "due at once, and alone"
    assert (ledger[place], stage.faults(run.id)) == ([], [])


def test_two_runs_that_must_be_alone_come_one_after_the_other(
    app: aft.Aft, stage: Stage, worker: Worker, deps: Dependencies, place: str
) -> None:
    first = submit_lonely(app, stage, place)
    # Room is wanted for another one when the first is about to begin.
    on_entry[place] = deps.making_room.set
    worker._solitary.take()
    eventually(lambda: first.status is Status.COMPLETED)
    deps.making_room.clear()
    eventually(lambda: worker._slots.wait_idle(0))
    second = submit_lonely(app, stage, place)
    worker._solitary.take()
    eventually(lambda: second.status is Status.COMPLETED)
    assert ledger[place] == ["alone", "alone"]
