"""A worker loses its run in the middle of a step, and comes back with the effect: it is undone if it has to be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import update

import aft
from aft.runs.states import Status
from aft.store.db_time import later
from aft.store.tables import runs, workers
from tests.acceptance.observe import late_effects
from tests.conftest import make_setup
from tests.contract.proxy import Proxy
from tests.setups import SETUPS, Setup, eventually
from tests.world import gates, ledger

#: Calls side by side.
SEATS = 12


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    made = make_setup(request.param, request, tmp_path)
    yield made
    made.close()


def _do(order: str, what: str) -> None:
    first = what not in ledger[order]
    ledger[order].append(what)
    if first:
        gates[order].wait(60)


def unreserve(order: str) -> None:
    ledger[order].append("unreserve")


@aft.compensate_with(unreserve)
@aft.activity(name="stale_reserve")
def reserve(order: str) -> None:
    _do(order, "reserve")


@aft.activity(name="stale_print")
def print_label(order: str) -> None:
    _do(order, "print")


@aft.compensate_with(unreserve)
@aft.activity(name="stale_reserve_once")
def reserve_once(order: str) -> None:
    if "reserve" in ledger[order]:
        raise aft.Unrecoverable("sold out")
    _do(order, "reserve")


@aft.flow(name="stale_sold_out")
def sold_out(order: str) -> None:
    reserve_once(order)


@aft.flow(name="stale_too_late")
def too_late(order: str) -> None:
    reserve(order)
    print_label(order)


def free_seat(order: str, seat: int) -> None:
    ledger[order].append(f"free {seat}")


@aft.compensate_with(free_seat)
@aft.activity(name="stale_take_seat")
def take_seat(order: str, seat: int) -> None:
    _do(order, f"take {seat}")


@aft.flow(name="stale_seats")
def seats(order: str) -> None:
    aft.parallel(*(take_seat.call(order, seat) for seat in range(SEATS)))
    print_label(order)


@aft.flow(name="stale_past_the_pivot")
def past_the_pivot(order: str) -> str:
    reserve(order)
    aft.pivot()
    return order


@aft.flow(name="stale_again")
def again(order: str, kind: str, rounds: int = 1) -> str:
    if rounds:
        (reserve if kind == "reserve" else print_label)(order)
        aft.continue_as_new(order, kind, rounds - 1)
    return order


@contextmanager
def stale_worker(setup: Setup, flow: Any, order: str, *args: Any) -> Iterator[aft.Run]:
    """Start a run whose worker is taken for dead in its first step; let it come back at the end of this block."""
    app = setup.app(grace="300ms", lease="1m")  # so no heartbeat revives it meanwhile
    started = threading.Thread(target=app.start, args=(flow, order, *args))
    started.start()
    eventually(lambda: ledger[order])
    with app.store.write() as connection:
        ours = update(workers).where(workers.c.namespace == app.namespace)
        connection.execute(ours.values(expires_at=later(-1), liveness_lock=None))
    try:
        yield app.runs()[0]
    finally:
        gates[order].set()
        started.join(30)


def behind(line: Proxy, setup: Setup) -> Setup:
    """The same place, reached by a line of its own."""
    port = urlsplit(setup.database).port or 5432
    return Setup("behind", setup.database.replace(f":{port}/", f":{line.port}/"), setup.broker, setup.namespace)


def come_back(setup: Setup, order: str) -> list[str]:
    """Let the lost worker end its step; returns what became of its effect."""
    gates[order].set()
    return list(eventually(lambda: (found := late_effects(setup.apps[0])) and "open" not in found and found))


def test_what_stands_behind_the_pivot_is_not_undone_for_a_late_effect(setup: Setup, order: str) -> None:
    """The step was recorded by the worker that took over: it is the same effect, under the same key."""
    with stale_worker(setup, past_the_pivot, order) as run, setup.app(grace="300ms").dispatcher():
        assert run.result(60) == order
        assert come_back(setup, order) == ["drop"]
        assert (run.status, ledger[order]) == (Status.COMPLETED, ["reserve", "reserve"])


@pytest.mark.parametrize("kind", ["reserve", "print"])
def test_nor_what_stands_from_before_the_run_began_anew(setup: Setup, order: str, kind: str) -> None:
    """Its journal is gone; whether there is an undo for it or not, the run went past it."""
    with stale_worker(setup, again, order, kind) as run, setup.app(grace="300ms").dispatcher():
        assert run.result(60) == order
        assert come_back(setup, order) == ["drop"]
        assert (run.status, ledger[order]) == (Status.COMPLETED, [kind, kind])


def test_an_effect_that_could_not_be_recorded_in_time_is_kept_when_the_database_is_back(
    request: pytest.FixtureRequest, tmp_path: Path, order: str
) -> None:
    """Its process lives, and is the only one that knows of it: the one that took over could not do it again."""
    setup = make_setup("postgresql+rabbitmq", request, tmp_path)
    with Proxy(urlsplit(setup.database).port or 5432) as line, setup.app(grace="300ms") as other:
        away = behind(line, setup).app(grace="300ms", lease="3s")
        started = threading.Thread(target=away.start, args=(sold_out, order))
        started.start()
        eventually(lambda: ledger[order])
        line.refuse(True)
        gates[order].set()
        with other.dispatcher():
            eventually(lambda: other.runs()[0].status is Status.COMPENSATED)
            refused = line.refused
            eventually(lambda: line.refused > refused + 5)  # its lease is over: it tries to record no more
            line.refuse(False)
            eventually(lambda: ledger[order] == ["reserve", "unreserve"])
        started.join(30)
        away.close()
    setup.close()


def test_a_deadline_does_not_make_forget_what_a_dead_worker_may_have_done(setup: Setup, order: str) -> None:
    """Its step is settled first, under the same key; the next one is too late, and then everything is undone."""
    with stale_worker(setup, too_late.options(deadline="1h"), order) as run:
        with setup.apps[0].store.write() as connection:
            connection.execute(update(runs).where(runs.c.id == run.id).values(deadline_at=later(-1)))
        with setup.app(grace="300ms").dispatcher(), pytest.raises(aft.FlowCompensated, match="had to end by"):
            run.result(60)
        assert ledger[order] == ["reserve", "reserve", "unreserve"]


def test_nor_what_it_may_have_done_side_by_side(setup: Setup, order: str) -> None:
    """Each call is settled, though the first ones have their outcomes before the last ones are begun."""
    with stale_worker(setup, seats.options(deadline="1h"), order) as run:
        eventually(lambda: len(ledger[order]) == SEATS)
        with setup.apps[0].store.write() as connection:
            connection.execute(update(runs).where(runs.c.id == run.id).values(deadline_at=later(-1)))
        with setup.app(grace="300ms").dispatcher(), pytest.raises(aft.FlowCompensated, match="had to end by"):
            run.result(60)
        assert sorted(ledger[order]) == sorted(
            [f"take {seat}" for seat in range(SEATS)] * 2 + [f"free {seat}" for seat in range(SEATS)]
        )
