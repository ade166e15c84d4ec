"""What is public is one list. A name that comes or goes is a decision, and shows in this file."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import aft

PUBLIC = [
    "FAILED",
    "REMOVED",
    "UNKNOWN",
    "Activity",
    "ActivityFailed",
    "Aft",
    "AftError",
    "BrokerError",
    "Call",
    "CodecError",
    "ConfigError",
    "ConstraintViolated",
    "Current",
    "DatabaseMoved",
    "DeadlineExceeded",
    "DefinitionError",
    "Exlet",
    "Fault",
    "FaultKind",
    "FaultState",
    "Flow",
    "FlowCancelled",
    "FlowCompensated",
    "FlowEnded",
    "FlowFailed",
    "KeyConflict",
    "Level",
    "LimitExceeded",
    "NoWorkerWarning",
    "NotKept",
    "NotMigrated",
    "On",
    "Operation",
    "OrderRefused",
    "ParkedWarning",
    "Recoverable",
    "ReplayDiverged",
    "ResourceUnavailable",
    "Role",
    "RuleRefused",
    "Run",
    "Schedule",
    "Secret",
    "Settings",
    "Status",
    "StoreError",
    "UndoneByHand",
    "Unknown",
    "UnknownFault",
    "UnknownFlow",
    "UnknownOperation",
    "UnknownRun",
    "UnknownSchedule",
    "Unrecoverable",
    "Unroutable",
    "WaitTimeout",
    "__version__",
    "activity",
    "compensate_with",
    "continue_as_new",
    "current",
    "do",
    "flow",
    "map",
    "now",
    "parallel",
    "patched",
    "pivot",
    "random",
    "savepoint",
    "session",
    "sleep",
    "source",
    "uuid",
    "wait_for",
]


def test_the_public_names_are_these() -> None:
    assert aft.__all__ == PUBLIC


def test_every_public_name_is_there() -> None:
    assert [name for name in PUBLIC if not hasattr(aft, name)] == []


def test_the_list_is_in_order_and_names_nothing_twice() -> None:
    assert sorted(set(PUBLIC), key=PUBLIC.index) == PUBLIC


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ("UNKNOWN", "__version__")])
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(aft, name))


def test_importing_aft_loads_neither_a_broker_s_library_nor_the_command_line() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys, aft; print([m for m in ('pika', 'click', 'alembic') if m in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
