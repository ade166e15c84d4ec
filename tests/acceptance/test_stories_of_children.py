"""A story shows the child that holds a run up, and its advice can be followed."""

from __future__ import annotations

from click.testing import CliRunner

import aft
from aft.cli.root import root
from tests.setups import Setup, eventually, run_to
from tests.world import broken

#: Orders whose first child cannot be undone.


def unpack(order: str, part: int) -> None:
    if order in broken and part == 0:
        raise aft.Unrecoverable("glued")


@aft.compensate_with(unpack)
@aft.activity(name="stories_below_pack")
def pack(order: str, part: int) -> int:
    return part


@aft.flow(name="stories_below_child")
def packing(order: str, part: int) -> int:
    return pack(order, part)


@aft.flow(name="stories_below_parent")
def shipping(order: str, part: int = 0) -> int:
    packing(order, part)
    if part < 2:
        aft.continue_as_new(order, part + 1)
    aft.wait_for("go")
    return part


@aft.activity(name="stories_below_post", levels=[])
def post(order: str) -> str:
    raise aft.Unrecoverable("closed")


@aft.flow(name="stories_below_past_pivot")
def past_pivot(order: str) -> str:
    pack(order, 1)
    aft.pivot()
    return post(order)


def show(setup: Setup, run: aft.Run[object]) -> str:
    shown = CliRunner().invoke(root, ["runs", "show", run.id], env=setup.environ())
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_a_story_tells_of_the_child_of_an_earlier_generation_that_waits_for_a_person(setup: Setup, order: str) -> None:
    app = setup.app()
    broken.add(order)
    with app.dispatcher():
        run = app.submit(shipping, order)
        eventually(lambda: run.status == "waiting" and run.row.key_generation == 2 and bool(run.row.waits))
        run.cancel()
        eventually(lambda: any(one.status == "parked" for one in app.runs()))
        (parked,) = [one for one in app.runs() if one.status == "parked"]
        told = show(setup, run)
    assert "glued" in told
    assert f"aft runs retry {parked.id[-12:]}" in told


def test_a_run_past_its_pivot_is_not_advised_to_be_cancelled(setup: Setup, order: str) -> None:
    with run_to(setup.app(), past_pivot, order, status="parked") as run:
        told = show(setup, run)
    assert "aft runs retry" in told
    assert "aft runs cancel" not in told
    assert "by hand" not in told
