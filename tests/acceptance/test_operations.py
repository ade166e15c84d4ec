"""A person gives one order to many runs: it goes to one first, then to more, and stops when they fail again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Thread
from unittest.mock import patch

import pytest
from sqlalchemy import func, select

import aft
from aft.app.operations import Operation
from aft.dispatcher.sweep.operations import OperationExecutor
from aft.errors import DefinitionError, OrderRefused, UnknownOperation
from aft.runs.operations import carry_out
from aft.store.tables import inbox, runs
from tests.setups import Setup, eventually
from tests.world import broken, fixed, ledger

#: How many runs are sick: batches of 1, 5, 25 and the rest.
MANY = 40


def pay_back(order: str) -> None:
    ledger[order].append("pay back")


@aft.compensate_with(pay_back)
@aft.activity(name="many_pay")
def pay(order: str) -> None:
    ledger[order].append("pay")


@aft.activity(name="many_tell")
def tell(order: str) -> None:
    pass


@aft.flow(name="many_deliver")
def deliver(order: str, number: int) -> str:
    pay(order)
    tell(order)
    if order not in fixed:
        assert order == "the door is there", "a mistake in the flow's own code, which parks the run"
    if (order, str(number)) in broken:
        raise AssertionError("another mistake")
    return "delivered"


@aft.flow(name="many_wait")
def wait_long(order: str) -> None:
    pay(order)
    aft.wait_for("never")


@pytest.fixture
def app(setup: Setup) -> Iterator[aft.Aft]:
    made = setup.app()
    with made.dispatcher(concurrency=8):
        yield made


def make_sick(app: aft.Aft, order: str, number: int = MANY) -> list[aft.Run[str]]:
    made = [app.submit(deliver, order, nth) for nth in range(number)]
    eventually(lambda: app.count_runs("status:parked") == number)
    return made


def retries(app: aft.Aft) -> Counter[int]:
    """How many runs were ordered to retry how often."""
    with app.store.read() as connection:
        of_app = (runs.c.id == inbox.c.run_id, runs.c.namespace == app.namespace, inbox.c.kind == "retry")
        found = connection.execute(select(func.count()).where(*of_app).group_by(inbox.c.run_id))
        return Counter(found.scalars())


def outcomes(operation: Operation) -> Counter[str]:
    return Counter(one.state.value for one in operation.outcomes())


def test_after_the_fix_one_run_is_tried_first_and_then_all_of_them(app: aft.Aft, order: str) -> None:
    make_sick(app, order)
    fixed.add(order)
    operation = app.operations.retry("flow:many_deliver", note="the door is there again", by="ann")
    assert operation.wait(60) == "done"
    assert outcomes(operation) == {"passed": MANY}
    assert [size for _, size in sorted(Counter(one.batch for one in operation.outcomes()).items())] == [1, 5, 25, 9]
    assert app.count_runs("status:completed") == MANY
    assert retries(app) == {1: MANY}


def test_with_a_wrong_fix_it_stops_after_the_first_run_and_a_person_lets_it_go_on(app: aft.Aft, order: str) -> None:
    make_sick(app, order)
    operation = app.operations.retry("flow:many_deliver")
    assert operation.wait(60) == "stopped"
    assert outcomes(operation) == {"returned": 1, "selected": MANY - 1}
    assert operation.row.why == "1 of 1 runs failed again, with the same failure; more than 5% may not"
    fixed.add(order)
    operation.resume(by="ann")
    assert operation.wait(60) == "done"
    assert outcomes(operation) == {"returned": 1, "passed": MANY - 1}
    assert retries(app) == {1: MANY}


def test_another_failure_stops_it_too(app: aft.Aft, order: str) -> None:
    sick = make_sick(app, order, 8)
    fixed.add(order)
    broken.update((order, str(number)) for number in (2, 3))
    operation = app.operations.retry("flow:many_deliver", brake=0.2)
    assert operation.wait(60) == "stopped"
    assert outcomes(operation) == {"passed": 4, "failed": 2, "selected": 2}
    assert [one.run.id for one in operation.outcomes("failed")] == [sick[2].id, sick[3].id]


def test_a_paused_one_gives_no_order_and_a_cancelled_one_lets_its_runs_be(app: aft.Aft, order: str) -> None:
    make_sick(app, order, 8)
    operation = app.operations.retry("flow:many_deliver")
    operation.wait(60)  # the mistake is not fixed
    with pytest.raises(OrderRefused, match="only one that is open"):
        operation.pause()
    operation.cancel(by="bob")
    assert outcomes(operation) == {"returned": 1, "dropped": 7}
    fixed.add(order)
    assert app.operations.retry("flow:many_deliver").wait(60) == "done"
    with pytest.raises(OrderRefused, match="cancelled, by 'bob'"):
        operation.resume()


def test_what_would_be_undone_is_told_before(app: aft.Aft, order: str) -> None:
    waiting = [app.submit(wait_long, order) for _ in range(3)]
    make_sick(app, order, 2)
    eventually(lambda: app.count_runs("status:waiting") == 3)
    seen = app.operations.preview("cancel", "flow:many_wait")
    assert (seen.total, seen.undos, seen.without_undo) == (3, [("many_pay", 3)], [])
    seen = app.operations.preview("compensate", "all")
    assert (seen.total, seen.undos, seen.without_undo) == (5, [("many_pay", 5)], [("many_tell", 2)])
    assert [number for _, number in seen.groups] == [3, 2]
    operation = app.operations.cancel("flow:many_wait", note="not wanted")
    assert operation.wait(60) == "done"
    assert all(run.status == "compensated" for run in waiting)
    assert outcomes(operation) == {"passed": 3}


def test_runs_are_suspended_and_resumed_together(app: aft.Aft, order: str) -> None:
    waiting = [app.submit(wait_long, order) for _ in range(7)]
    eventually(lambda: app.count_runs("status:waiting") == 7)
    assert app.operations.suspend("flow:many_wait").wait(60) == "done"
    assert all(run.status == "suspended" for run in waiting)
    assert app.operations.resume("flow:many_wait").wait(60) == "done"
    eventually(lambda: app.count_runs("status:waiting") == 7)


def test_runs_that_have_completed_are_undone_together(app: aft.Aft, order: str) -> None:
    fixed.add(order)
    done = [app.submit(deliver, order, nth) for nth in range(12)]
    eventually(lambda: app.count_runs("status:completed") == 12)
    operation = app.operations.compensate("flow:many_deliver", note="recalled")
    assert operation.wait(60) == "done"
    assert outcomes(operation) == {"passed": 12}
    assert all(run.status == "compensated" for run in done)


def test_a_run_that_cannot_take_the_order_is_reported_with_the_reason(app: aft.Aft, order: str) -> None:
    fixed.add(order)
    run = app.submit(deliver, order, 0)
    run.result(60)
    operation = app.operations.cancel("flow:many_deliver status:completed")
    assert operation.wait(60) == "done"
    (outcome,) = operation.outcomes()
    assert outcome.state == "refused"
    assert "it is completed" in (outcome.note or "")


def test_a_run_is_in_one_operation_at_a_time(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        make_sick(app, order, 3)
    first = app.operations.retry("flow:many_deliver")
    with pytest.raises(OrderRefused, match=f"3 of these runs are in operation {first.id}"):
        app.operations.cancel("flow:many_deliver")
    first.cancel()
    app.operations.cancel("flow:many_deliver")


def test_bad_selections_are_refused_and_change_nothing(setup: Setup) -> None:
    app = setup.app()
    with pytest.raises(DefinitionError, match="would be all runs"):
        app.operations.retry(" ")
    with pytest.raises(DefinitionError, match="did you mean 'status'"):
        app.operations.retry("statsu:parked")
    with pytest.raises(OrderRefused, match="there are no runs that are parked of flow 'nono'"):
        app.operations.retry("flow:nono")
    with pytest.raises(OrderRefused, match="needs a note"):
        app.operations.force_fail("flow:nono")
    with pytest.raises(DefinitionError, match=r"brake=2.0 must be a number from 0 to 1"):
        app.operations.retry("flow:nono", brake=2.0)
    with pytest.raises(UnknownOperation, match="nono"):
        app.operations.get("nono")
    assert app.operations.list() == []


def test_several_dispatchers_and_a_dead_one_give_each_order_once(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher(concurrency=8):
        make_sick(app, order, 12)
    fixed.add(order)
    with patch.object(carry_out, "CLAIMED", 0.0):
        operation = app.operations.retry("flow:many_deliver", patience=0.001)
        dying = OperationExecutor(app.make_dispatcher_deps())
        with (
            patch.object(carry_out, "end_round", side_effect=RuntimeError("it dies")),
            pytest.raises(RuntimeError),
        ):
            dying._advance(operation.id)
        executors = [OperationExecutor(app.make_dispatcher_deps()) for _ in range(4)]

        def carry_out_all(executor: OperationExecutor) -> None:
            while operation.state == "open":
                executor.step()

        threads = [Thread(target=carry_out_all, args=(executor,)) for executor in executors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert retries(app) == {1: 12}
    with app.dispatcher(concurrency=8):
        eventually(lambda: app.count_runs("status:completed") == 12)
