"""Of several orders that are read together each is carried out, or answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aft
from aft.app.views import timeline
from aft.app.views.timeline import StoryEventKind
from aft.runs.records import inbox
from tests.setups import Setup, eventually
from tests.world import gates, ledger

LEFT = "refused: the run is not in that savepoint any more"


def take_down_tent(order: str, what: str) -> None:
    ledger[order].append(f"un{what}")


@aft.compensate_with(take_down_tent)
@aft.activity
def pitch_tent(order: str, what: str) -> None:
    ledger[order].append(what)


@aft.compensate_with(take_down_tent)
@aft.activity
async def pitch_tent_async(order: str, what: str) -> None:
    ledger[order].append(what)


@aft.activity
def hammer(order: str) -> None:
    ledger[order].append("hammer")
    assert gates[order].wait(60)


@aft.flow
async def two_camps(order: str) -> list[str]:
    """Two branches, each in a savepoint of its own."""

    async def camp(name: str) -> str:
        try:
            with aft.savepoint(name):
                await pitch_tent_async(order, name)
                return str(await aft.wait_for(f"leave {name}"))
        except aft.UndoneByHand:
            return f"no {name}"

    return list(await asyncio.gather(camp("a"), camp("b"), camp("c")))


@aft.flow
def camp_within(order: str) -> list[str]:
    """A savepoint in another one; each is told of what it hears."""
    heard: list[str] = []
    with aft.savepoint("closed"):
        pitch_tent(order, "closed")
    try:
        with aft.savepoint("outer"):
            pitch_tent(order, "outer")
            try:
                with aft.savepoint("inner"):
                    pitch_tent(order, "inner")
                    hammer(order)
                    heard.append(str(aft.wait_for("leave")))
            except aft.UndoneByHand as undone:
                heard.append(f"inner: {undone}")
                raise
    except aft.UndoneByHand as undone:
        heard.append(f"outer: {undone}")
    pitch_tent(order, "other")
    return heard


def answers(app: aft.Aft, run: aft.Run[Any]) -> list[tuple[str, bool, str | None]]:
    """The orders that a run was given: which savepoint, whether it was read, and what was answered."""
    with app.store.read() as connection:
        items = inbox.of_run(connection, run.id)
    return [(item.payload.get("name", item.verb.value), item.read, item.note) for item in items]


def waits_alone(run: aft.Run[Any]) -> bool:
    return (row := run.row).status == "waiting" and row.worker_id is None


def test_savepoints_of_several_branches_are_each_undone(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(two_camps, order)
        eventually(lambda: waits_alone(run))
    run.compensate(to="a")
    run.compensate(to="b")
    with app.dispatcher():
        eventually(lambda: waits_alone(run) and list((run.row.savepoints or {}).values()) == ["c"])
        run.signal("leave c", "done")
        assert run.result(60) == ["no a", "no b", "done"]
    assert sorted(ledger[order][3:]) == ["una", "unb"]
    assert answers(app, run)[:2] == [("a", True, None), ("b", True, None)]


def test_an_order_is_carried_out_though_another_one_after_it_cannot_be(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(camp_within, order)
        eventually(lambda: "hammer" in ledger[order])
        run.compensate(to="outer", by="ann")
        run.compensate(to="closed", by="bob")
        gates[order].set()
        assert len(run.result(60)) == 2
    assert ledger[order] == ["closed", "outer", "inner", "hammer", "uninner", "unouter", "other"]
    assert answers(app, run) == [("outer", True, None), ("closed", True, LEFT)]


def test_a_savepoint_that_two_people_have_undone_is_undone_once_and_both_are_answered(setup: Setup, order: str) -> None:
    app = setup.app()
    gates[order].set()
    with app.dispatcher():
        run = app.submit(camp_within, order)
        eventually(lambda: waits_alone(run))
    run.compensate(to="outer", by="ann")
    run.compensate(to="outer", by="bob")
    with app.dispatcher():
        said = "ann has it undone to savepoint 'outer'"
        assert run.result(60) == [f"inner: {said}", f"outer: {said}"]
    assert ledger[order] == ["closed", "outer", "inner", "hammer", "uninner", "unouter", "other"]
    assert answers(app, run) == [("outer", True, None), ("outer", True, "done with ann's order to undo 'outer'")]


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_of_savepoints_within_each_other_the_outer_one_is_undone_and_both_orders_are_answered(
    setup: Setup, order: str, first: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(camp_within, order)
        eventually(lambda: "hammer" in ledger[order])
        run.compensate(to=first, by="ann")
        run.compensate(to="inner" if first == "outer" else "outer", by="ann")
        gates[order].set()
        said = "ann has it undone to savepoint 'outer'"
        assert run.result(60) == [f"inner: {said}", f"outer: {said}"]
    assert ledger[order] == ["closed", "outer", "inner", "hammer", "uninner", "unouter", "other"]
    told = {"outer": None, "inner": "done with ann's order to undo 'outer'"}
    assert {name: note for name, read, note in answers(app, run) if read} == told


def test_the_story_tells_that_an_order_was_done_with_another_one(setup: Setup, order: str) -> None:
    app = setup.app()
    gates[order].set()
    with app.dispatcher():
        run = app.submit(camp_within, order)
        eventually(lambda: waits_alone(run))
    run.compensate(to="outer", by="ann")
    run.compensate(to="inner", by="bob")
    with app.dispatcher():
        run.result(60)
    with app.store.read() as connection:
        _, story = timeline.read_timeline(connection, app.namespace, run.id)
    told = [happening.detail for happening in story if happening.name == "compensate"]
    assert "of bob was done with ann's order to undo 'outer'" in told


@aft.flow
async def camp_nap(order: str) -> str:
    """A wait and a nap side by side, both under a savepoint."""
    try:
        with aft.savepoint("night"):
            await asyncio.gather(aft.sleep("1h"), aft.wait_for("leave"))
    except aft.UndoneByHand:
        await aft.wait_for("morning", timeout="1ms", default=None)
    return "up"


def test_the_story_does_not_tell_that_time_has_passed_where_a_wait_was_interrupted(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(camp_nap, order)
        eventually(lambda: waits_alone(run))
        run.compensate(to="night", by="ann")
        assert run.result(60) == "up"
    with app.store.read() as connection:
        _, story = timeline.read_timeline(connection, app.namespace, run.id)
    told = [(happening.what, happening.name) for happening in story]
    assert [one for one in told if one[0] in (StoryEventKind.TIMEOUT, StoryEventKind.SLEPT)] == [
        (StoryEventKind.TIMEOUT, "morning")
    ]
    assert told.count((StoryEventKind.FAULT, "camp_nap")) == 1
