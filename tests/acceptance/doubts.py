"""Flows whose workers are lost in the middle of a step, for the tests of what is in doubt then."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import update

import aft
from aft.store.tables import runs
from tests.setups import eventually, run_to
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
def hanging(app: aft.Aft, flow: aft.Flow[..., Any], order: str, *args: Any, at: list[int]) -> Iterator[aft.Run]:
    """Run a dispatcher in this process, and a flow until it hangs in these items; let it end with this block."""
    with run_to(app, flow, order, *args) as run, all_ending(order):
        eventually(hangs(order, *at))
        yield run


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
