"""aft: fault tolerance for Python workflows over message queues.

A failed step is retried through tiers of delay queues until it works and the flow goes on, or everything done so far
is undone in reverse order. Nothing is lost, and a person can see and steer what is happening.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Running
    from aft.app import Aft, NoWorkerWarning, Operation, ParkedWarning, Role, Run, Schedule
    from aft.codec.secret import Secret
    from aft.compensation.registry import UNKNOWN, Unknown
    from aft.config import Settings

    # Errors
    from aft.errors import (
        ActivityFailed,
        AftError,
        BrokerError,
        CodecError,
        ConfigError,
        ConstraintViolated,
        DatabaseMoved,
        DeadlineExceeded,
        DefinitionError,
        FlowCancelled,
        FlowCompensated,
        FlowEnded,
        FlowFailed,
        KeyConflict,
        LimitExceeded,
        NotKept,
        NotMigrated,
        OrderRefused,
        Recoverable,
        ReplayDiverged,
        ResourceUnavailable,
        RuleRefused,
        StoreError,
        UndoneByHand,
        UnknownFault,
        UnknownFlow,
        UnknownOperation,
        UnknownRun,
        UnknownSchedule,
        Unrecoverable,
        Unroutable,
        WaitTimeout,
    )
    from aft.fault import Fault, FaultKind, FaultState
    from aft.flows.declare.activity import Activity, activity, compensate_with
    from aft.flows.declare.api import continue_as_new, map, parallel, patched, pivot, sleep, wait_for
    from aft.flows.declare.calls import Call

    # Inside a flow or an activity
    from aft.flows.declare.context import Current, current, now, random, savepoint, session, uuid
    from aft.flows.declare.flow import Flow, flow

    # Declaring
    from aft.flows.declare.no_result import FAILED, REMOVED
    from aft.recovery.levels import Level
    from aft.rules.cases.sources import source
    from aft.rules.exlets import do
    from aft.rules.exlets.exlet import Exlet
    from aft.rules.rule_types import On
    from aft.runs.states import Status
    from aft.version import __version__

#: The modules of the public names; those that no module here has are errors. They are imported on first access:
#: `aft --help` needs none of them.
_HOMES = {
    "aft.app": ["Aft", "NoWorkerWarning", "Operation", "ParkedWarning", "Role", "Run", "Schedule"],
    "aft.codec.secret": ["Secret"],
    "aft.compensation.registry": ["UNKNOWN", "Unknown"],
    "aft.config": ["Settings"],
    "aft.fault": ["Fault", "FaultKind", "FaultState"],
    "aft.flows.declare.no_result": ["FAILED", "REMOVED"],
    "aft.flows.declare.activity": ["Activity", "activity", "compensate_with"],
    "aft.flows.declare.api": ["continue_as_new", "map", "parallel", "patched", "pivot", "sleep", "wait_for"],
    "aft.flows.declare.calls": ["Call"],
    "aft.flows.declare.context": ["Current", "current", "now", "random", "savepoint", "session", "uuid"],
    "aft.flows.declare.flow": ["Flow", "flow"],
    "aft.recovery.levels": ["Level"],
    "aft.rules.exlets.exlet": ["Exlet"],
    "aft.rules.rule_types": ["On"],
    "aft.rules.cases.sources": ["source"],
    "aft.runs.states": ["Status"],
    "aft.version": ["__version__"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'aft' has no attribute {name!r}")
    if name == "do":
        return importlib.import_module("aft.rules.exlets.do")  # a module of its own
    found = getattr(importlib.import_module(_HOME_OF.get(name, "aft.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
