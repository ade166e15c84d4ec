"""The application: the one place that wires concrete classes together."""

from aft.app.aft import Aft
from aft.app.operations import Operation, OperationDesk
from aft.app.process import DispatcherProcess, Role
from aft.app.run import NoWorkerWarning, ParkedWarning, Run
from aft.app.schedule import Schedule

__all__ = [
    "Aft",
    "DispatcherProcess",
    "NoWorkerWarning",
    "Operation",
    "OperationDesk",
    "ParkedWarning",
    "Role",
    "Run",
    "Schedule",
]
