"""A wait in one branch hears of what has come, whatever the other branches are at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aft
from tests.setups import Setup, eventually, run_to
from tests.world import apps, gates, reached, tries


@aft.activity(name="looked_at_slow")
def be_slow(order: str) -> str:
    reached[order].set()
    assert gates[order].wait(60)
    return "slow"


@aft.activity(name="looked_at_quick")
def be_quick(order: str) -> str:
    return "quick"


@aft.activity(name="looked_at_ask")
def ask_outside(order: str) -> str:
    """Ask somebody who answers at once, by a signal to this run."""
    apps[order].run(str(aft.current().run_id)).signal("word", "yes")
    return "asked"


@aft.activity(name="looked_at_hear")
def hear(order: str, word: str) -> str:
    gates[order].set()
    return word


@aft.flow(name="looked_at_child")
def child(order: str) -> str:
    return str(aft.wait_for("go"))


async def waits_for(what: Any) -> str:
    return str(await what)


@aft.flow(name="looked_at_savepoint")
async def beside_savepoint(order: str, awaits_child: bool) -> str:
    """Wait in one branch, while another leaves a savepoint in which a child and an activity are under way."""
    waiter = asyncio.create_task(waits_for(child.call(order) if awaits_child else aft.wait_for("word")))
    try:
        with aft.savepoint("inside"):
            async with asyncio.TaskGroup() as group:
                group.create_task(waits_for(child.call(order)))
                group.create_task(waits_for(be_slow.call(order)))
                await aft.wait_for("verdict", timeout="50ms")
    except* aft.WaitTimeout:
        pass
    return f"got {await waiter}"


@aft.flow(name="looked_at_parallel")
async def beside_parallel(order: str, awaits_child: bool) -> str:
    """Wait in one branch, while the flow itself executes several calls side by side."""
    waiter = asyncio.create_task(waits_for(child.call(order) if awaits_child else aft.wait_for("word")))
    await be_quick.call(order)
    aft.parallel(child.call(order), be_slow.call(order))
    return f"got {await waiter}"


@aft.flow(name="looked_at_late")
async def heard_at_once(order: str) -> list[str]:
    """One branch waits for a word, which comes while another's step is about to be recorded; a third is at work."""

    async def answered() -> str:
        return str(await hear.call(order, str(await aft.wait_for("word"))))

    async def asks() -> str:
        await ask_outside.call(order)
        return str(await aft.wait_for("never", timeout="200ms", default="no"))

    return list(await asyncio.gather(answered(), asks(), waits_for(be_slow.call(order))))


@pytest.mark.parametrize("awaits_child", [False, True], ids=["signal", "child"])
@pytest.mark.parametrize("flow", [beside_savepoint, beside_parallel], ids=["savepoint", "parallel"])
def test_a_branch_hears_of_what_came_while_others_came_to_their_end(
    setup: Setup, order: str, flow: aft.Flow[[str, bool], str], awaits_child: bool
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(flow, order, awaits_child)
        assert reached[order].wait(60)
        # The child in the task group is stopped with it.
        stopped = int(flow.name == beside_savepoint.name)

        def has_come_to_rest() -> bool:
            below = [one for one in app.runs() if one.row.parent_id == run.id]
            ended = sum(one.status.ended for one in below)
            return ended == stopped and ended + sum(bool(one.row.waits) for one in below) == 1 + awaits_child

        eventually(has_come_to_rest)
        if not awaits_child:
            run.signal("word", "on")
        for one in app.runs():
            if one.row.parent_id == run.id and not one.status.ended:
                one.signal("go", "on")
        eventually(lambda: all(one.status.ended for one in app.runs() if one.row.parent_id == run.id))
        gates[order].set()
        assert run.result(60) == "got on"


def test_a_word_is_heard_while_an_activity_beside_it_is_at_work(setup: Setup, order: str) -> None:
    apps[order] = app = setup.app()
    with app.dispatcher():
        assert app.submit(heard_at_once, order).result(60) == ["yes", "no", "slow"]


@aft.activity(name="looked_at_publish")
def publish(order: str) -> None:
    tries[order, "published"] += 1


@aft.flow(name="looked_at_pages")
async def pages(order: str, count: int) -> str:
    """Each branch waits for a word after its own activity, beside one that takes long."""

    async def page(number: int) -> None:
        await be_quick.call(order)
        await aft.wait_for(f"ok {number}")
        await publish.call(order)

    await asyncio.gather(be_slow.call(order), *(page(number) for number in range(count)))
    return "published"


def test_branches_that_come_to_their_waits_together_hear_of_what_has_come(setup: Setup, order: str) -> None:
    with run_to(setup.app(), pages, order, 8) as run:
        for number in range(8):
            run.signal(f"ok {number}")
        eventually(lambda: tries[order, "published"] == 8, within=30)
        gates[order].set()
        assert run.result(60) == "published"


@aft.flow(name="looked_at_crowd")
async def crowd(order: str) -> str:
    """Sleep beside as many activities as are executed at a time."""

    async def nap() -> None:
        await aft.sleep("10ms")
        await aft.wait_for("word")
        gates[order].set()

    await asyncio.gather(be_slow.call(order), be_slow.call(order), nap())
    return "rested"


def test_a_sleep_begins_beside_as_many_activities_as_there_may_be(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aft.flows.scheduler.scheduler.MOST_BRANCHES", 2)
    with run_to(setup.app(), crowd, order) as run:
        run.signal("word")
        assert run.result(60) == "rested"


# One signal, one try ------------------------------------------------------------------------------------------------


@aft.activity(name="looked_at_pay", levels=["10ms"])
def pay(order: str, who: str) -> str:
    tries[order, who] += 1
    if tries[order, who] == 1:
        raise aft.Recoverable("no balance", on_signal="refilled")
    return who


@aft.flow(name="looked_at_paying")
def paying(order: str) -> list[str]:
    return list(aft.parallel(pay.call(order, "a"), pay.call(order, "b")))


def test_a_signal_that_comes_before_two_faults_are_decided_about_is_good_for_one_try(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.start(paying, order)
    run.signal("refilled")
    with app.dispatcher():
        eventually(lambda: sum(tries[order, who] for who in "ab") == 3)
        eventually(lambda: run.row.worker_id is None and [wait.name for wait in run.row.waits] == ["refilled"])
        run.signal("refilled")
        assert run.result(60) == ["a", "b"]
    assert [tries[order, who] for who in "ab"] == [2, 2]


# Changes of the code ------------------------------------------------------------------------------------------------


@aft.flow(name="looked_at_patched")
async def changed(order: str) -> bool:
    """Ask for a change beside a step that another branch has asked for."""
    other = asyncio.create_task(waits_for(be_quick.call(order)))
    first = asyncio.create_task(waits_for(be_quick.call(order)))
    await first
    has = aft.patched("new way")
    await other
    return has


def test_a_new_run_has_a_change_also_beside_other_steps(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(changed, order).result(60) is True


@aft.activity(name="looked_at_spoilt", levels=["10ms"])
def spoilt(order: str) -> Any:
    tries[order] += 1
    if tries[order] == 1:
        raise aft.Recoverable("no balance", on_signal="refilled")
    return object() if tries[order] == 2 else "paid"


@aft.flow(name="looked_at_spoilt_flow")
def pays_spoilt(order: str) -> list[str]:
    return [spoilt(order), aft.wait_for("refilled", str, timeout="200ms", default="nothing more")]


def test_a_signal_that_was_good_for_a_try_that_parks_is_good_for_no_other(setup: Setup, order: str) -> None:
    with run_to(setup.app(), pays_spoilt, order) as run:
        eventually(lambda: tries[order] == 1 and run.row.worker_id is None)
        run.signal("refilled", "now")
        eventually(lambda: run.status == "parked")
        run.retry()
        assert run.result(60) == ["paid", "nothing more"]
