"""aft: fault tolerance for Python workflows over message queues.

A failed step is retried through tiers of delay queues until it works and the flow goes on, or everything done so far
is undone in reverse order. Nothing is lost, and a person can see and steer what is happening.
"""

# Declaring
# Running
from aft.app import Aft, NoWorkerWarning, Role, Run
from aft.compensation.registry import UNKNOWN, Unknown
from aft.config import Settings

# Errors
from aft.errors import (
    ActivityFailed,
    AftError,
    BrokerError,
    CodecError,
    ConfigError,
    DefinitionError,
    FlowCancelled,
    FlowCompensated,
    FlowEnded,
    FlowFailed,
    KeyConflict,
    NotMigrated,
    OrderRefused,
    Recoverable,
    ReplayDiverged,
    StoreError,
    UnknownFlow,
    UnknownRun,
    Unrecoverable,
    Unroutable,
)
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.activity import Activity, Call, activity, compensate_with

# Inside a flow or an activity
from aft.flows.context import Current, current, now, random, savepoint, session, uuid
from aft.flows.flow import Flow, flow
from aft.recovery.levels import Level
from aft.runs.states import Status
from aft.version import __version__

__all__ = [
    "UNKNOWN",
    "Activity",
    "ActivityFailed",
    "Aft",
    "AftError",
    "BrokerError",
    "Call",
    "CodecError",
    "ConfigError",
    "Current",
    "DefinitionError",
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
    "NoWorkerWarning",
    "NotMigrated",
    "OrderRefused",
    "Recoverable",
    "ReplayDiverged",
    "Role",
    "Run",
    "Settings",
    "Status",
    "StoreError",
    "Unknown",
    "UnknownFlow",
    "UnknownRun",
    "Unrecoverable",
    "Unroutable",
    "__version__",
    "activity",
    "compensate_with",
    "current",
    "flow",
    "now",
    "random",
    "savepoint",
    "session",
    "uuid",
]
