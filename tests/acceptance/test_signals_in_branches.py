"""Signals for many steps at once, while another branch is at work: each step hears of its own."""

from __future__ import annotations

import asyncio

import aft
from aft.fault import FaultState
from tests.setups import Setup, eventually
from tests.world import gates, tries

COUNT = 30


@aft.activity(name="beside_need")
def need(family: str, number: int) -> int:
    tries[family, number] += 1
    if tries[family, number] == 1:
        raise aft.Recoverable("not yet", on_signal=f"s{number}")
    return number


@aft.activity(name="beside_hold")
def hold(family: str) -> int:
    assert gates[family].wait(120)
    return 0


@aft.flow(name="beside_async")
async def in_tasks(family: str) -> int:
    async def at_work() -> int:
        await aft.wait_for("go")
        return await hold.call(family)

    return sum(await asyncio.gather(at_work(), *(need.call(family, number) for number in range(COUNT))))


def test_each_step_hears_of_its_signal_while_a_branch_is_at_work(setup: Setup, family: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(in_tasks, family)
        eventually(lambda: [fault.state for fault in app.faults()] == [FaultState.WAITING] * COUNT)
        run.signal("go")
        eventually(lambda: run.row.worker_id is not None)
        for number in range(COUNT):
            run.signal(f"s{number}", number)
        try:
            eventually(lambda: all(tries[family, number] == 2 for number in range(COUNT)))
        finally:
            gates[family].set()
        assert run.result(60) == COUNT * (COUNT - 1) // 2
