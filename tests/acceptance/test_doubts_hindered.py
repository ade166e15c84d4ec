"""A step is in doubt, and something else is in the way of seeing it: a compensator that fails, a run that is parked.

Workers are lost as in ``doubts``: the run is taken from them while their activity hangs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import aft
from aft.app.views import timeline
from aft.app.views.timeline import StoryEventKind
from aft.fault import Fault, FaultKind
from aft.flows.declare.registry import Registry
from tests.acceptance.doubts import Regret, all_ending, charge, hangs, lost_worker, plans, standing
from tests.acceptance.observe import late_effects, unread
from tests.setups import Setup, eventually
from tests.world import gates, ledger

PAY, HOLD, LATER = 0, 1, 2
#: How often the compensator of an item of an order still fails, recoverably.
failures: Counter[tuple[str, int]] = Counter()


def take_back(order: str, item: int) -> None:
    ledger[order].append(f"take back {item}")
    if failures[order, item]:
        failures[order, item] -= 1
        raise aft.Recoverable("not now")
    standing[order].discard(item)


@aft.compensate_with(take_back)
@aft.activity(name="doubts_beside_charge", levels=["20ms", "20ms"])
def charge_undoably(order: str, item: int) -> int:
    return charge(order, item)


@aft.compensate_with(take_back)
@aft.activity(name="doubts_beside_hold", timeout="500ms", unrecoverable=(TimeoutError,), levels=["20ms", "20ms"])
def hold(order: str, item: int) -> None:
    gates[order, "beside"].wait(120)
    standing[order].add(item)


async def pay(order: str) -> None:
    await charge_undoably.call(order, PAY)


async def hold_and_regret(order: str) -> None:
    try:
        with aft.savepoint("inner"):
            await charge_undoably.call(order, HOLD)
            raise Regret
    except Regret:
        pass


@aft.flow(name="doubts_beside_group")
async def in_group(order: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pay(order))
        tasks.create_task(hold_and_regret(order))


@aft.flow(name="doubts_beside_gather")
async def in_gather(order: str) -> None:
    await asyncio.gather(hold_and_regret(order), pay(order))


@aft.flow(name="doubts_beside_late")
def pay_without_hold(order: str) -> int:
    try:
        hold(order, HOLD)
    except TimeoutError:
        ledger[order].append("without hold")
    return charge_undoably(order, PAY)


@aft.flow(name="doubts_beside_patched")
def patched(order: str) -> int:
    ledger[order].append(f"before {aft.patched('before')}")
    charge_undoably(order, PAY)
    ledger[order].append(f"after {aft.patched('after')}")
    aft.wait_for("go", str)
    return charge_undoably(order, LATER)


def app_without_flow(setup: Setup) -> aft.Aft:
    """An app whose process has no flow that matters here, but all that is needed to undo one."""
    made = setup.app()
    made.registry = Registry()
    made.registry.add_flow(in_group)
    made.registry.add_activity(charge_undoably)
    return made


def doubts_left(app: aft.Aft) -> list[Fault]:
    """The lost workers that a run has not got over."""
    live = ("open", "waiting", "handled", "parked")
    return [fault for fault in app.faults() if fault.kind is FaultKind.ABORT and fault.state in live]


# A compensator fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("flow", [in_group, in_gather], ids=lambda flow: flow.name)
def test_a_step_is_seen_and_undone_though_beside_it_a_savepoint_cannot_be_undone_yet(
    setup: Setup, order: str, flow: aft.Flow[[str], None], times: int
) -> None:
    app = setup.app()
    plans[order, PAY], failures[order, HOLD] = ["hang"], times
    with lost_worker(app, flow, order, at=[PAY]) as run:
        eventually(lambda: [fault.kind for fault in app.faults()] == [FaultKind.COMPENSATOR])
    run.cancel()
    with app.dispatcher(), all_ending(order), pytest.raises(aft.FlowCompensated, match="cancelled"):
        run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert (ledger[order].count(f"charge {PAY}"), ledger[order].count(f"take back {PAY}")) == (2, 1)
    assert ledger[order].count(f"take back {HOLD}") == times + 1
    assert unread(app, run) == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_step_is_seen_and_undone_though_an_effect_that_came_late_cannot_be_undone_yet(
    setup: Setup, order: str, times: int
) -> None:
    """Late effects are undone before the flow is played: without that nobody knows which step is in doubt."""
    app, other = setup.app(), setup.app()
    plans[order, PAY], failures[order, HOLD] = ["hang"], times
    with app.dispatcher(concurrency=1), all_ending(order):  # the lost worker takes nothing more
        run = app.submit(pay_without_hold, order)
        eventually(hangs(order, PAY))
        gates[order, "beside"].set()
        eventually(lambda: late_effects(app) == ["open"])
        run.cancel()
        run.release()
        eventually(lambda: late_effects(app) == ["undo"])
        with other.dispatcher(), pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert ledger[order].index(f"take back {HOLD}") < ledger[order].index(f"take back {PAY}")
    assert (ledger[order].count(f"charge {PAY}"), ledger[order].count(f"take back {PAY}")) == (2, 1)
    assert ledger[order].count(f"take back {HOLD}") == times + 1


# A run is parked --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["no flow", "lost again"])
def parked(request: pytest.FixtureRequest, setup: Setup, order: str) -> Iterator[tuple[aft.Aft, aft.Run]]:
    """A run that is parked because it cannot be seen what its lost worker did; from now on nothing is in the way."""
    app = setup.app()
    if request.param == "no flow":
        plans[order, PAY] = ["hang"]
        with lost_worker(app, patched, order, at=[PAY]) as run:
            run.cancel()
        with app_without_flow(setup).dispatcher():
            eventually(lambda: run.status == "parked")
        assert "no worker has its flow" in (run.row.reason or "")
    else:
        plans[order, PAY] = ["hang"] * 5
        with app.dispatcher(), all_ending(order):
            run = app.submit(patched, order)
            eventually(hangs(order, PAY))
            run.cancel()
            for times in (2, 3, 4, 5):
                run.release()
                eventually(lambda: ledger[order].count(f"hangs {PAY}") == times or run.status == "parked")  # noqa: B023
        assert (run.status, "again and again" in (run.row.reason or "")) == ("parked", True)
    with all_ending(order):
        yield app, run


def test_a_run_that_was_parked_in_doubt_is_parked_for_its_flow(parked: tuple[aft.Aft, aft.Run]) -> None:
    app, run = parked
    assert [(fault.kind, fault.path) for fault in app.faults(state="parked")] == [(FaultKind.FLOW, None)]
    assert unread(app, run) == []


def test_a_run_that_was_parked_in_doubt_and_goes_on_is_in_doubt_of_nothing(
    parked: tuple[aft.Aft, aft.Run], order: str
) -> None:
    app, run = parked
    run.retry()
    plans[order, PAY] = []
    with app.dispatcher():
        eventually(lambda: run.status == "waiting")
        assert doubts_left(app) == []
        executed = ledger[order].count(f"charge {PAY}")
        run.cancel()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert {line for line in ledger[order] if line.startswith(("before", "after"))} == {"before True", "after True"}
    assert (standing[order], ledger[order].count(f"take back {PAY}")) == (set(), 1)
    assert ledger[order].count(f"charge {PAY}") == executed, "nothing is executed again for the cancel"
    assert not {f"charge {LATER}", f"take back {LATER}"} & {*ledger[order]}


def test_a_run_that_is_cancelled_in_doubt_does_not_say_that_all_is_undone(
    parked: tuple[aft.Aft, aft.Run], order: str
) -> None:
    app, run = parked
    run.cancel()
    with app.dispatcher(), pytest.raises(aft.FlowFailed, match="not all"):
        run.result(60)
    assert (standing[order], run.status) == ({PAY}, "failed")
    with app.store.read() as connection:
        _, story = timeline.read_timeline(connection, app.namespace, run.id)
    assert any("may stand" in (told.detail or "") for told in story if told.what is StoryEventKind.ABORTED)


def test_a_run_that_was_parked_in_doubt_is_cancelled_with_what_is_seen_now(
    parked: tuple[aft.Aft, aft.Run], order: str
) -> None:
    app, run = parked
    run.retry()
    run.cancel()
    plans[order, PAY] = []
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="cancelled"):
        run.result(60)
    assert (standing[order], ledger[order].count(f"take back {PAY}")) == (set(), 1)
    assert not {"after False", f"charge {LATER}", f"take back {LATER}"} & {*ledger[order]}
