"""A step in its ladder is tried again when its time has come, whatever its neighbours do meanwhile."""

from __future__ import annotations

import asyncio
import secrets

import pytest

import aft
from tests.setups import Setup, run_to
from tests.world import reached, tries

#: So often a neighbour looks whether the failed step has worked meanwhile, and how long each time.
MOST, PAUSE = 400, 0.1


@aft.activity(name="ladder_beside_flaky", levels=["1s*3"])
def flaky(order: str, failures: int) -> str:
    tries[order] += 1
    if tries[order] <= failures:
        raise ConnectionError("not yet")
    reached[order].set()
    return "worked"


@aft.activity(name="ladder_beside_look")
def look(order: str, number: int) -> bool:
    return reached[order].wait(PAUSE)


@aft.activity(name="ladder_beside_item", levels=["1s*3"])
def item(task: tuple[str, int]) -> bool:
    order, number = task
    if number == 0:
        return flaky(order, 1) == "worked"
    return reached[order].wait(PAUSE)


@aft.flow(name="ladder_beside_tasks")
async def tasks(order: str, failures: int) -> int:
    async def go_on() -> int:
        for number in range(MOST):
            if await look.call(order, number):
                return number
        raise LookupError(f"{MOST} steps, and the failed one was not tried again")

    worked, number = await asyncio.gather(flaky.call(order, failures), go_on())
    assert worked == "worked"
    return number


@aft.flow(name="ladder_beside_map")
def maps(order: str) -> int:
    found = aft.map(item, [(order, number) for number in range(MOST)], concurrency=2)
    return sum(found)


@pytest.fixture
def order() -> str:
    return secrets.token_hex(6)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_task_that_failed_is_tried_again_while_another_goes_from_step_to_step(
    setup: Setup, order: str, failures: int
) -> None:
    with run_to(setup.app(), tasks, order, failures) as run:
        assert 0 < run.result(60) < MOST - 1
    assert tries[order] == failures + 1


def test_an_item_that_failed_is_tried_again_while_others_are_begun(setup: Setup, order: str) -> None:
    with run_to(setup.app(), maps, order) as run:
        assert run.result(60) > 1
    assert tries[order] == 2
