"""Claims about outcomes: what came of an order follows from the run as it is, and from its last failure since."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from aft.fault import FaultKind
from aft.ids import RunId
from aft.runs.operations.operation_rows import OutcomeState, Verb
from aft.runs.operations.outcomes import ExpectedEnd, OrderedRun, expect, judge
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from tests.storing import a_fault

RUN = RunId("r")
BEFORE = OrderedRun(3, "0123456789ab", ExpectedEnd.COMPLETED)


def run(status: Status, **more: Any) -> RunRow:
    fields: dict[str, Any] = dict.fromkeys((each.name for each in dataclasses.fields(RunRow)), None)
    return RunRow(**(fields | {"id": RUN, "epoch": 4, "status": status} | more))


def seen(status: Status, group: str | None = None, verb: Verb = Verb.RETRY, **more: Any) -> OutcomeState | None:
    failure = None if group is None else replace(a_fault(RUN), kind=FaultKind.ACTIVITY, group_id=group)
    found = judge(verb, BEFORE, run(status, **more), failure)
    return None if found is None else found.state


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (Status.COMPLETED, OutcomeState.PASSED),
        (Status.COMPENSATED, OutcomeState.FAILED),
        (Status.WAITING, OutcomeState.PASSED),
        (Status.PARKED, OutcomeState.FAILED),
        (Status.RUNNING, None),
    ],
)
def test_a_retried_run_has_passed_when_it_ends_well_or_waits_for_something_else(
    status: Status, outcome: OutcomeState | None
) -> None:
    assert seen(status) is outcome


def test_the_same_failure_has_returned_and_another_is_another() -> None:
    assert seen(Status.RECOVERING, "0123456789ab") is OutcomeState.RETURNED
    assert seen(Status.PARKED, "0123456789ab") is OutcomeState.RETURNED
    assert seen(Status.RECOVERING, "ba9876543210") is OutcomeState.FAILED


def test_nothing_is_known_while_no_worker_has_had_the_run_or_one_has_it() -> None:
    assert seen(Status.PARKED, epoch=3, wake_id="order") is None
    assert seen(Status.COMPLETED, epoch=3, wake_id="order") is None  # it is to be undone
    assert seen(Status.WAITING, worker_id="w") is None


def test_a_run_that_is_undone_has_failed_only_if_it_is_parked() -> None:
    ordered = replace(BEFORE, expected=expect(Verb.CANCEL, run(Status.PARKED)))
    failure = replace(a_fault(RUN), group_id="ba9876543210")
    assert judge(Verb.CANCEL, ordered, run(Status.COMPENSATING), failure) is None
    parked, undone = run(Status.PARKED), run(Status.COMPENSATED)
    for found, state in ((parked, OutcomeState.FAILED), (undone, OutcomeState.PASSED)):
        outcome = judge(Verb.CANCEL, ordered, found, failure)
        assert outcome is not None
        assert outcome.state is state
