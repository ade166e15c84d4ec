"""A worker is lost while it executes steps: what it had begun is seen before anything else is decided about the run.

Workers are lost as if they had died: the run is taken from them while their activity hangs, and the activity never
returns. The promise that all tests make: an effect is recorded, or undone, or found by its probe; none is forgotten.
"""

from __future__ import annotations

from typing import Any

import pytest

import aft
from aft import do
from aft.store.db_time import now
from tests.acceptance.doubts import (
    above,
    all_ending,
    beside_plain,
    beside_signal,
    beside_undo,
    buggy,
    change,
    entering_map_again,
    entering_started,
    entering_transactional,
    entering_transactional_again,
    hanging,
    hangs,
    lost_worker,
    map_or_tidy,
    map_then_tidy,
    mapped,
    mapped_started,
    once,
    plans,
    ready,
    sequence,
    standing,
    started,
    two_beside,
    two_tasks,
    widths,
)
from tests.acceptance.observe import children_of, unread
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import broken, ledger

# Between two tries ------------------------------------------------------------------------------------------------


def test_a_retry_that_nobody_saw_the_end_of_is_seen_before_the_deadline_ends_the_run(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0] = ["later", "hang"]
    with hanging(app, sequence, order, at=[0]) as run:
        change(app, run, deadline_at=now())
        run.release()
        with pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert ledger[order].count("take back 0") == 1


def test_a_retry_that_nobody_saw_the_end_of_is_seen_before_a_person_has_it_undone(setup: Setup, order: str) -> None:
    plans[order, 0] = ["later", "hang"]
    with hanging(setup.app(), sequence, order, at=[0]) as run:
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
    with hanging(app, sequence, order, at=[0]) as run:
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")
    assert "charge 1" not in ledger[order], "nothing more is begun"
    assert unread(app, run) == []


def test_a_run_whose_last_step_was_in_doubt_is_cancelled_all_the_same(setup: Setup, order: str) -> None:
    plans[order, 1] = ["hang"]
    with hanging(setup.app(), sequence, order, at=[1]) as run:
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert (standing[order], run.status) == (set(), "compensated")


def test_a_run_is_cancelled_though_what_is_in_doubt_fails(setup: Setup, order: str) -> None:
    plans[order, 1] = ["hang", "later", "later", "later"]
    with hanging(setup.app(), sequence, order, at=[1]) as run:
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
    with hanging(app, flow, order, at=[1]) as run:
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
    plans[order, 0] = ["hang"]
    with hanging(setup.app(), flow, order, at=[0]) as run:
        run.cancel()
        run.release()
        with pytest.raises(aft.FlowCompensated, match="cancelled"):
            run.result(60)
    assert ledger[order].count("charge 0") == 1
    assert standing[order] == ({0} if flow is once else set())


def test_the_deadline_of_a_run_has_its_child_undone_with_what_a_lost_worker_did(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, 0] = ["hang"]
    with hanging(app, above, order, at=[0]) as run:
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
    with hanging(app, map_or_tidy, order, 3, at=[100]) as run:
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
    with hanging(app, sequence, order, at=[0]) as run:
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
    with hanging(app, above_buggy, order, at=[0]) as top:
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
    with hanging(app, flow, order, at=[item]) as top:
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
    plans[order, 0], ready[order] = ["later"], lambda: True
    with hanging(setup.app(), entering_transactional_again, order, at=[8]) as run:
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
    with hanging(app, sequence, order, at=[0]) as run:
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
    with hanging(app, entering_map_again, order, at=[8]) as run:
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
    with hanging(app, map_then_tidy, order, 3, at=[0]) as run:
        change(app, run, deadline_at=now())
        run.release()
        eventually(hangs(order, 100))
        run.release()
        assert run.result(60) == 100
    assert ledger[order] == ["charge 0", "hangs 0", "charge 0", "charge 100", "hangs 100", "charge 100"]
