"""A worker is lost while it executes steps: what it had begun is seen before anything else is decided about the run.

Workers are lost as if they had died: the run is taken from them while their activity hangs, and the activity never
returns. The promise that all tests make: an effect is recorded, or undone, or found by its probe; none is forgotten.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import update

import aft
from aft import do
from aft.store.db_time import now
from aft.store.tables import runs
from tests.acceptance.observe import children_of, unread
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import broken, gates, ledger

#: What the next execution of an item does, by order: "hang" after its effect, "later" and "never" raise before it.
plans: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
#: The items of an order whose effects stand.
standing: defaultdict[str, set[int]] = defaultdict(set)
#: Whether the code of an order's flow shall hang now.
ready: dict[str, Callable[[], bool]] = {}
#: How many items of an order the code executes at a time.
widths: dict[str, int] = {}


class Regret(Exception):
    """Raised by a flow's own code."""


class Dead(BaseException):
    """Raised in a worker that was lost long ago, so that it ends with the test."""


def charge(order: str, item: int) -> int:
    """Have an effect, as the plan says."""
    ledger[order].append(f"charge {item}")
    plan = plans[order, item].pop(0) if plans[order, item] else ""
    if plan == "later":
        raise aft.Recoverable("later")
    if plan == "never":
        raise aft.Unrecoverable("never")
    standing[order].add(item)
    if plan == "hang":
        ledger[order].append(f"hangs {item}")
        gates[order].wait(120)
        raise Dead
    return item


def was_charged(order: str, item: int) -> int | None:
    ledger[order].append(f"asked {item}")
    return item if item in standing[order] else None


def take_back(order: str, item: int) -> None:
    ledger[order].append(f"take back {item}")
    standing[order].discard(item)
    if plans[f"undo {order}", item]:
        plans[f"undo {order}", item].pop()
        ledger[order].append(f"hangs {item}")
        gates[order].wait(120)
        raise Dead


@aft.compensate_with(take_back)
@aft.activity(name="doubts_charge", levels=["20ms", "20ms"])
def charge_undoably(order: str, item: int) -> int:
    return charge(order, item)


@aft.activity(name="doubts_charge_once", levels=["20ms"], probe=was_charged)
def charge_once(order: str, item: int) -> int:
    return charge(order, item)


@aft.compensate_with(take_back, when="started")
@aft.activity(name="doubts_charge_started", levels=["20ms"])
def charge_started(order: str, item: int) -> int:
    return charge(order, item)


@aft.flow(name="doubts_once")
def once(order: str) -> int:
    return charge_once(order, 0)


@aft.flow(name="doubts_started")
def started(order: str) -> int:
    return charge_started(order, 0)


@aft.flow(name="doubts_sequence")
def sequence(order: str) -> int:
    with aft.savepoint("all"):
        return charge_undoably(order, 0) + charge_undoably(order, 1)


@aft.flow(name="doubts_above")
def above(order: str) -> int:
    return sequence(order)


@aft.flow(name="doubts_map")
def mapped(order: str, count: int) -> list[int]:
    return aft.map(charge_pair, [(order, item) for item in range(count)], concurrency=widths[order])


def take_back_pair(pair: tuple[str, int]) -> None:
    take_back(*pair)


@aft.compensate_with(take_back_pair)
@aft.activity(name="doubts_charge_pair", levels=["20ms"])
def charge_pair(pair: tuple[str, int]) -> int:
    return charge(*pair)


def take_back_started(pair: tuple[str, int], result: int | aft.Unknown) -> None:
    ledger[pair[0]].append("result UNKNOWN" if result is aft.UNKNOWN else f"result {result!r}")
    take_back(*pair)


@aft.compensate_with(take_back_started, when="started")
@aft.activity(name="doubts_charge_pair_started", levels=["1h"])
def charge_pair_started(pair: tuple[str, int]) -> int:
    return charge(*pair)


@aft.flow(name="doubts_map_started")
def mapped_started(order: str, count: int) -> list[int]:
    return aft.map(charge_pair_started, [(order, item) for item in range(count)], concurrency=widths[order])


@aft.flow(name="doubts_map_or_tidy")
def map_or_tidy(order: str, count: int) -> int:
    try:
        mapped.fn(order, count)
    except aft.Unrecoverable:
        return charge_undoably(order, 100)
    raise AssertionError


@aft.flow(name="doubts_buggy")
def buggy(order: str) -> int:
    if order in broken:
        raise NameError("a bug")
    return charge_undoably(order, 0)


@aft.activity(name="doubts_charge_transactional", transactional=True)
def charge_transactional(order: str, item: int) -> int:
    return charge(order, item)


def enter(order: str) -> None:
    """Hang in the flow's own code, the first time."""
    if "hangs 7" not in ledger[order]:
        ledger[order].append("hangs 7")
        gates[order].wait(120)
        raise Dead


@aft.flow(name="doubts_entering_started")
def entering_started(order: str) -> int:
    enter(order)
    return charge_started(order, 0)


@aft.flow(name="doubts_entering_transactional")
def entering_transactional(order: str) -> int:
    enter(order)
    return charge_transactional(order, 0)


def enter_again(order: str) -> None:
    """Hang in the flow's own code, once its step has failed and the order is ready."""
    ledger[order].append("enters")
    if ledger[order].count("enters") > 1 and "hangs 8" not in ledger[order] and ready[order]():
        ledger[order].append("hangs 8")
        gates[order].wait(120)
        raise Dead


@aft.compensate_with(take_back)
@aft.activity(name="doubts_charge_transactional_undoably", transactional=True, levels=["20ms"])
def charge_transactional_undoably(order: str, item: int) -> int:
    return charge(order, item)


@aft.flow(name="doubts_entering_transactional_again")
def entering_transactional_again(order: str) -> int:
    enter_again(order)
    return charge_transactional_undoably(order, 0)


@aft.flow(name="doubts_entering_map_again")
def entering_map_again(order: str) -> list[int]:
    enter_again(order)
    return mapped.fn(order, 4)


@aft.flow(name="doubts_map_then_tidy")
def map_then_tidy(order: str, count: int) -> int:
    try:
        mapped.fn(order, count)
    except aft.DeadlineExceeded:
        return charge_undoably(order, 100)
    raise AssertionError


@aft.flow(name="doubts_beside_signal")
async def beside_signal(order: str) -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait_for_go())
        tasks.create_task(charge_in_task(order, 0))
    return "done"


async def wait_for_go() -> None:
    await aft.wait_for("go", str)


async def charge_in_task(order: str, item: int) -> None:
    await charge_once.call(order, item)


async def undo_in_task(order: str) -> None:
    try:
        with aft.savepoint("inner"):
            await charge_undoably.call(order, 1)
            raise Regret
    except Regret:
        pass


@aft.flow(name="doubts_beside_plain")
async def beside_plain(order: str) -> str:
    task = asyncio.create_task(charge_undoably_in_task(order, 0))
    await charge_once.call(order, 9)
    charge_once(order, 1)
    await task
    return "done"


async def charge_undoably_in_task(order: str, item: int) -> None:
    await charge_undoably.call(order, item)


@aft.flow(name="doubts_beside_undo")
async def beside_undo(order: str) -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(charge_in_task(order, 0))
        tasks.create_task(undo_in_task(order))
    return "done"


@aft.flow(name="doubts_two_beside")
def two_beside(order: str) -> int:
    return sum(aft.parallel(charge_undoably.call(order, 0), charge_undoably.call(order, 1)))


@aft.flow(name="doubts_two_tasks")
async def two_tasks(order: str) -> None:
    await asyncio.gather(charge_undoably_in_task(order, 0), charge_undoably_in_task(order, 1))


def hangs(order: str, *items: int) -> Callable[[], bool]:
    """Whether these items, and no fewer, are being executed, and do not come to their end."""
    return lambda: all(f"hangs {item}" in ledger[order] for item in items)


@contextmanager
def all_ending(order: str) -> Iterator[None]:
    """Let the lost workers of an order end at the end of this block."""
    try:
        yield
    finally:
        gates[order].set()


@contextmanager
def lost_worker(app: aft.Aft, flow: aft.Flow[..., Any], order: str, *args: Any, at: list[int]) -> Iterator[aft.Run]:
    """Start a run, and take it from its worker at the end of this block, in which it hangs in these items."""
    thread = threading.Thread(target=start, args=(app, flow, order, *args), daemon=True)
    thread.start()
    eventually(hangs(order, *at))
    (run,) = (run for run in app.runs() if run.row.flow == flow.name)
    yield run
    run.release()


def start(app: aft.Aft, flow: aft.Flow[..., Any], *args: Any) -> None:
    try:
        app.start(flow, *args)
    except Dead:
        pass


def change(app: aft.Aft, run: aft.Run, **values: Any) -> None:
    with app.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run.id).values(**values))


# Between two tries ------------------------------------------------------------------------------------------------


def test_a_retry_that_nobody_saw_the_end_of_is_seen_before_the_deadline_ends_the_run(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0] = ["later", "hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 0))
        change(app, run, deadline_at=now())
        run.release()
        with pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert ledger[order].count("take back 0") == 1


def test_a_retry_that_nobody_saw_the_end_of_is_seen_before_a_person_has_it_undone(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0] = ["later", "hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 0))
        run.compensate(to="all")
        run.release()
        with pytest.raises(aft.FlowCompensated, match="UndoneByHand"):
            run.result(60)
    assert standing[order] == set()


# Cancelled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [["hang"], ["later", "hang"]], ids=["first try", "second try"])
def test_a_run_is_cancelled_when_it_is_seen_what_its_lost_worker_did(setup: Setup, order: str, plan: list[str]) -> None:
    app = setup.app()
    plans[order, 0] = [*plan]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 0))
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert "charge 1" not in ledger[order], "nothing more is begun"
    assert unread(app, run) == []


def test_a_run_whose_last_step_was_in_doubt_is_cancelled_all_the_same(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 1] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 1))
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")


def test_a_run_is_cancelled_though_what_is_in_doubt_fails(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 1] = ["hang", "later", "later", "later"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 1))
        run.cancel()
        standing[order].discard(1)  # the lost worker had no effect
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")


@pytest.mark.parametrize("flow", [sequence, two_beside, two_tasks], ids=lambda flow: flow.name)
def test_a_run_past_its_deadline_is_cancelled_after_one_try_of_what_is_in_doubt(
    setup: Setup, order: str, flow: Any
) -> None:
    app = setup.app()
    plans[order, 1] = ["hang", *["later"] * 20]
    with app.dispatcher(), all_ending(order):
        run = app.submit(flow, order)
        eventually(hangs(order, 1))
        change(app, run, deadline_at=now())
        run.cancel()
        standing[order].discard(1)  # the lost worker had no effect
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert ledger[order].count("charge 1") == 2


@pytest.mark.parametrize("flow", [once, started], ids=lambda flow: flow.name)
def test_what_no_compensator_waits_for_is_not_executed_again_in_a_run_that_is_cancelled(
    setup: Setup, order: str, flow: aft.Flow[[str], int]
) -> None:
    app = setup.app()
    plans[order, 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(flow, order)
        eventually(hangs(order, 0))
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert ledger[order].count("charge 0") == 1
    assert standing[order] == ({0} if flow is once else set())


def test_the_deadline_of_a_run_has_its_child_undone_with_what_a_lost_worker_did(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(above, order)
        eventually(hangs(order, 0))
        (child,) = children_of(app, run)
        eventually(lambda: run.row.worker_id is None)
        change(app, run, deadline_at=now(), due_at=now(), sweep_at=now())
        eventually(lambda: unread(app, app.run(child.id)))
        app.run(child.id).release()
        with pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
            run.result(60)
    assert (standing[order], app.run(child.id).status) == (set(), "compensated")


@pytest.mark.parametrize("order_of", ["cancel", "deadline"])
def test_what_follows_a_map_that_failed_is_in_doubt_though_the_map_has_items_that_were_never_begun(
    setup: Setup, order: str, order_of: str
) -> None:
    app = setup.app()
    widths[order] = 1
    plans[order, 0], plans[order, 100] = ["never"], ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(map_or_tidy, order, 3)
        eventually(hangs(order, 100))
        if order_of == "cancel":
            run.cancel()
        else:
            change(app, run, deadline_at=now())
        run.release()
        eventually(lambda: run.status.ended)
    assert ("charge 1" in ledger[order], standing[order]) == (False, {100} if order_of == "deadline" else set())
    assert run.status == ("completed" if order_of == "deadline" else "compensated")


def test_what_was_begun_beside_an_interrupted_step_is_no_result_for_its_compensator(setup: Setup, order: str) -> None:
    app = setup.app()
    widths[order] = 2
    plans[order, 0], plans[order, 1] = ["hang", "later"], ["hang", "later"]
    with lost_worker(app, mapped_started, order, 4, at=[0, 1]) as run:
        change(app, run, deadline_at=now())
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
        run.result(60)
    assert {line for line in ledger[order] if line.startswith("result")} == {"result UNKNOWN"}


def test_a_step_is_in_doubt_while_rules_have_it_wait_because_its_worker_was_lost(setup: Setup, order: str) -> None:
    app = setup.app()
    teach(app, sequence, "abort", "activity.args.item == 0", do.retry(after="1s"), activity="doubts_charge")
    plans[order, 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 0))
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], "charge 1" in ledger[order]) == (set(), False)


def test_a_run_that_is_parked_before_what_is_in_doubt_is_seen_is_cancelled_when_a_person_says_so_again(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    plans[order, 0] = ["hang"]
    with lost_worker(app, buggy, order, at=[0]) as run:
        broken.add(order)
        run.cancel()
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "parked")
        assert unread(app, run) == []
        broken.discard(order)
        run.retry()
        run.cancel()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert standing[order] == set()


def test_a_run_that_was_told_to_try_again_and_then_cancelled_is_cancelled_when_a_person_says_so_once_more(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    plans[order, 0] = ["hang"]
    with lost_worker(app, buggy, order, at=[0]) as run:
        broken.add(order)
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "parked")
    run.retry()
    run.cancel()
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "parked" and not unread(app, run))
        run.cancel()
        with pytest.raises(aft.FlowFailed, match="not all"):
            run.result(60)


@aft.flow(name="doubts_above_buggy")
def above_buggy(order: str) -> int:
    return buggy(order)


def test_a_child_that_could_not_be_cancelled_yet_is_cancelled_after_the_fix(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        top = app.submit(above_buggy, order)
        eventually(hangs(order, 0))
        (run,) = [one for one in app.runs() if one.row.flow == buggy.name]
        broken.add(order)
        top.cancel()
        eventually(lambda: unread(app, run))  # its parent's order
        run.release()
        eventually(lambda: run.status == "parked")
        broken.discard(order)
        run.retry()
        for one in (top, run):
            with pytest.raises(aft.FlowCompensated, match="cancelled"):
                one.result(60)
    assert standing[order] == set()


@pytest.mark.parametrize("flow", [sequence, above], ids=["alone", "child"])
@pytest.mark.parametrize("item", [0, 1], ids=["nothing to undo", "something to undo"])
def test_a_run_whose_step_hangs_again_and_again_is_parked_and_cancelled_when_a_person_says_so_again(
    setup: Setup, order: str, item: int, flow: aft.Flow[[str], int]
) -> None:
    app = setup.app()
    plans[order, item] = ["hang"] * 10
    with app.dispatcher(), all_ending(order):
        top = app.submit(flow, order)
        eventually(hangs(order, item))
        (run,) = [one for one in app.runs() if one.row.flow == sequence.name]
        run.cancel()
        for times in (1, 2, 3):
            run.release()
            eventually(lambda: ledger[order].count(f"hangs {item}") == times + 1)  # noqa: B023
        run.release()
        eventually(lambda: run.status == "parked")
        run.cancel()
        for one in (run, top):
            with pytest.raises(aft.FlowFailed, match="not all"):
                one.result(60)
    assert standing[order] == {item}


@pytest.mark.parametrize("flow", [entering_started, entering_transactional], ids=lambda flow: flow.name)
def test_a_step_that_leaves_a_trace_is_not_in_doubt_where_there_is_none(
    setup: Setup, order: str, flow: aft.Flow[[str], int]
) -> None:
    """The worker is lost in the flow's own code, before the step."""
    app = setup.app()
    with lost_worker(app, flow, order, at=[7]) as run:
        run.cancel()
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated, match="cancelled"):
        run.result(60)
    assert "charge 0" not in ledger[order]


def test_a_transactional_step_that_has_failed_is_not_in_doubt(setup: Setup, order: str) -> None:
    """The worker is lost in the flow's own code, when the next try is due."""
    app = setup.app()
    plans[order, 0], ready[order] = ["later"], lambda: True
    with app.dispatcher(), all_ending(order):
        run = app.submit(entering_transactional_again, order)
        eventually(hangs(order, 8))
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert ledger[order].count("charge 0") == 1


def test_a_pending_step_is_seen_though_the_code_is_at_a_step_that_it_does_not_await(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0], plans[order, 1] = ["hang"], ["hang"]
    with lost_worker(app, beside_plain, order, at=[0, 1]) as run:
        run.cancel()
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated, match="cancelled"):
        run.result(60)
    assert (0 in standing[order], ledger[order].count("take back 0")) == (False, 1)


def test_a_rule_that_removes_a_run_because_its_worker_was_lost_has_it_undone(setup: Setup, order: str) -> None:
    app = setup.app()
    remove = do.remove("run", undo=True)
    teach(app, sequence, "abort", "activity.args.item == 0", remove, activity="doubts_charge")
    plans[order, 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(sequence, order)
        eventually(hangs(order, 0))
        run.release()
        eventually(lambda: run.status.ended)
    assert (standing[order], run.status) == (set(), "compensated")


# Side by side -----------------------------------------------------------------------------------------------------


def test_a_step_stays_in_doubt_when_another_has_its_outcome_and_the_run_is_given_back(setup: Setup, order: str) -> None:
    """As after two lost workers: it is executed alone, until it has got on, and then somewhere else."""
    app = setup.app()
    plans[order, 0] = ["hang"]
    with lost_worker(app, beside_signal, order, at=[0]) as run:
        pass
    change(app, run, deaths=2)
    run.signal("go", "now")
    with app.dispatcher(), all_ending(order):
        assert run.result(60) == "done"
    assert ledger[order] == ["charge 0", "hangs 0", "asked 0"]


def test_a_step_stays_in_doubt_beside_a_compensator_that_was_executed(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0], plans[f"undo {order}", 1] = ["hang"], ["hang"]
    with lost_worker(app, beside_undo, order, at=[0, 1]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        assert run.result(60) == "done"
    assert (ledger[order].count("charge 0"), standing[order]) == (1, {0})
    assert "asked 0" in ledger[order]


def test_what_more_at_a_time_had_begun_is_not_forgotten_by_code_that_allows_less(setup: Setup, order: str) -> None:
    app = setup.app()
    widths[order] = 6
    plans[order, 0] = ["never"]
    for item in range(1, 6):
        plans[order, item] = ["hang"]
    with lost_worker(app, mapped, order, 6, at=[1, 2, 3, 4, 5]) as run:
        eventually(lambda: app.faults())
        widths[order] = 2
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert standing[order] == set()


def test_items_that_nobody_can_have_begun_are_not_begun_after_the_deadline(setup: Setup, order: str) -> None:
    app = setup.app()
    widths[order] = 2
    plans[order, 0], plans[order, 1] = ["hang"], ["hang"]
    with lost_worker(app, mapped, order, 6, at=[0, 1]) as run:
        change(app, run, deadline_at=now())
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
        run.result(60)
    executed = [line for line in ledger[order] if line.startswith("charge")]
    assert (sorted(set(executed)), standing[order]) == (["charge 0", "charge 1"], set())


def test_no_item_is_begun_after_one_has_failed_for_good_though_a_worker_was_lost_before_that_was_recorded(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    widths[order] = 1
    plans[order, 0], ready[order] = ["never"], lambda: [fault.state for fault in app.faults()] == ["final"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(entering_map_again, order)
        eventually(hangs(order, 8))
        run.release()
        with pytest.raises(aft.FlowCompensated, match="never"):
            run.result(60)
    assert [line for line in ledger[order] if line.startswith("charge")] == ["charge 0"]


def test_rules_are_asked_before_items_that_nobody_can_have_begun(setup: Setup, order: str) -> None:
    app = setup.app()
    teach(
        app,
        mapped,
        "activity_pre",
        "activity.args.pair[1] == 3",
        do.fail("not that one"),
        activity="doubts_charge_pair",
    )
    widths[order] = 2
    plans[order, 0], plans[order, 1] = ["hang"], ["hang"]
    with lost_worker(app, mapped, order, 6, at=[0, 1]) as run:
        pass
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated, match="not that one"):
        run.result(60)
    assert ("charge 3" in ledger[order], standing[order]) == (False, set())


def test_a_map_that_its_deadline_has_ended_begins_nothing_after_a_worker_is_lost_further_on(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    widths[order] = 1
    plans[order, 0], plans[order, 100] = ["hang", "later"], ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(map_then_tidy, order, 3)
        eventually(hangs(order, 0))
        change(app, run, deadline_at=now())
        run.release()
        eventually(hangs(order, 100))
        run.release()
        assert run.result(60) == 100
    assert ledger[order] == ["charge 0", "hangs 0", "charge 0", "charge 100", "hangs 100", "charge 100"]
