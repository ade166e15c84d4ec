"""A family of runs does not grow without end: who would go beyond a limit parks, and a cancelled one begins none."""

from __future__ import annotations

from sqlalchemy import func, select

import aft
from aft.runs.states import Status
from aft.store.tables import runs
from tests.acceptance.agency import book
from tests.setups import Setup, eventually, run_to
from tests.world import shut, tries


@aft.activity(name="limited_birth")
def birth(family: str) -> None:
    tries[family] += 1


@aft.flow(name="limited_line")
def line(family: str, depth: int) -> int:
    """Begin a child that begins a child."""
    return 1 if depth == 0 else 1 + int(descend(family, depth - 1))


def descend(family: str, depth: int) -> int:
    return line(family, depth)


@aft.flow(name="limited_leaf")
def leaf(family: str) -> str:
    birth(family)
    return family


@aft.flow(name="limited_many")
def many(family: str, count: int) -> int:
    return len(aft.map(leaf, [family] * count, concurrency=50))


@aft.flow(name="limited_waiting")
def waiting(family: str) -> None:
    aft.wait_for("never")


@aft.flow(name="limited_live")
def live(family: str, count: int) -> int:
    return len(aft.map(waiting, [family] * count, concurrency=50))


@aft.flow(name="limited_wide")
def wide(family: str, generations: int) -> int:
    """Begin thirty of its own kind at once; the last generation waits."""
    if not generations:
        aft.wait_for("never")
    return len(aft.parallel(*(wide.call(family, generations - 1) for _ in range(30))))


@aft.flow(name="limited_bomb")
def bomb(family: str) -> None:
    """Begin two of its own kind, each of which does so, too."""
    birth(family)
    aft.parallel(bomb.call(family), bomb.call(family))


@aft.flow(name="limited_bottom")
def bottom(family: str) -> str:
    """Begin a child when the gate is opened."""
    book(family, "below")
    return leaf(family)


@aft.flow(name="limited_middle")
def middle(family: str) -> None:
    """Be at work beside a child: until that is done, an order to stop is not passed on."""
    aft.parallel(bottom.call(family), book.call(family, "beside"))


@aft.flow(name="limited_top")
def top(family: str) -> None:
    middle(family)


def size(app: aft.Aft) -> int:
    with app.store.read() as connection:
        return connection.execute(
            select(func.count()).select_from(runs).where(runs.c.namespace == app.namespace)
        ).scalar_one()


def reasons(app: aft.Aft) -> set[str]:
    return {run.row.reason or "" for run in app.runs(status="parked", limit=1000)}


def test_a_line_that_is_too_long_parks_and_goes_on_with_a_higher_limit(setup: Setup, family: str) -> None:
    low = setup.app(most_depth=3)
    with low.dispatcher():
        run = low.submit(line, family, 5)
        eventually(lambda: reasons(low))
        assert "AFT_MOST_DEPTH is 3" in next(iter(reasons(low)))
        assert size(low) == 4
    high = setup.app(most_depth=5)
    with high.dispatcher():
        for parked in high.runs(status="parked"):
            parked.retry()
        assert run.result(60) == 6


def test_a_run_that_begins_too_many_children_parks(setup: Setup, family: str) -> None:
    app = setup.app(most_children=120)
    with run_to(app, many, family, 300, status=Status.PARKED) as run:
        assert "AFT_MOST_CHILDREN is 120" in (run.row.reason or "")
        assert size(app) == 121
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATED)


def test_as_many_as_are_allowed_are_begun(setup: Setup, family: str) -> None:
    app = setup.app(most_children=120, most_family=121, most_depth=1)
    with app.dispatcher():
        assert app.submit(many, family, 120).result(60) == 120


def test_a_family_with_too_many_runs_under_way_parks(setup: Setup, family: str) -> None:
    app = setup.app(most_family=30)
    with run_to(app, live, family, 50, status=Status.PARKED) as run:
        assert "AFT_MOST_FAMILY is 30" in (run.row.reason or "")
        assert size(app) == 30
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATED)


def test_a_family_stays_near_its_limit_however_many_begin_children_at_once(setup: Setup, family: str) -> None:
    app = setup.app(most_family=50)
    with app.dispatcher(concurrency=8):
        run = app.submit(wide, family, 2)
        eventually(lambda: not app.runs(status="running") and reasons(app))
        assert size(app) <= 50 + 8
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATED, within=60)


def test_a_family_that_multiplies_can_be_cancelled(setup: Setup, family: str) -> None:
    app = setup.app(most_family=10_000)
    with app.dispatcher():
        run = app.submit(bomb, family)
        eventually(lambda: size(app) > 60)
        run.cancel()
        eventually(lambda: run.status in (Status.COMPENSATED, Status.FAILED), within=120)
        eventually(lambda: not [one for one in app.runs(limit=10_000) if one.row.ended_as is None], within=120)
        after = size(app)
    with app.dispatcher():
        assert size(app) == after


def test_no_child_is_begun_below_an_order_to_stop_that_has_not_come_down_yet(setup: Setup, family: str) -> None:
    app = setup.app()
    below, beside = shut(family, "below"), shut(family, "beside")
    with app.dispatcher():
        run = app.submit(top, family)
        assert below.reached.wait(60)
        assert beside.reached.wait(60)
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATING)
        below.set()
        eventually(lambda: Status.WAITING in [one.status for one in app.runs(flow="limited_bottom")])
        assert size(app) == 3
        beside.set()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert size(app) == 3
    assert tries[family] == 0
