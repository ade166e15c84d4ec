"""A fault to start from; each test changes what it is about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aft.fault import Fault, FaultKind, FaultState
from aft.ids import FaultId, RunId, StepPath

_PLAIN = Fault(
    id=FaultId("f1"),
    run_id=RunId("r1"),
    path=StepPath("1"),
    kind=FaultKind.ACTIVITY,
    name="charge",
    state=FaultState.OPEN,
    epoch=1,
    attempt=1,
    type="shop.Busy",
    lineage=("shop.Busy",),
    message="",
    args="[]",
    args_exact=True,
    traceback="",
    own_answer=None,
    declared_answer=None,
    http_status=None,
    after=None,
    ladder="[]",
    raised_at=datetime(2024, 5, 17, tzinfo=UTC),
)


def make_fault(**changes: Any) -> Fault:
    """An open fault of an activity, but for the changes."""
    return replace(_PLAIN, **changes)
