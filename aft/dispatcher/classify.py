"""Will this fault pass by itself? The first that answers wins: the exception, the declaration, aft's own knowledge.

Pure: decides from the fault's row, needs none of the user's code.
"""

from __future__ import annotations

from aft.fault import Answer, Fault, FaultKind
from aft.recovery import knowledge
from aft.recovery.knowledge import Expectation


def classify(fault: Fault) -> Expectation:
    """Tell whether a fault is recoverable, and why that is thought."""
    if fault.kind is FaultKind.ABORT:
        return Expectation(True, "its worker was lost; the run goes on elsewhere")
    if fault.said is not None:
        return Expectation(
            fault.said is Answer.RECOVERABLE, f"{fault.short_type} says so itself, being aft.{fault.said.capitalize()}"
        )
    if fault.declared is not None:
        return Expectation(
            fault.declared is Answer.RECOVERABLE, f"{fault.name!r} declares {fault.short_type} {fault.declared}"
        )
    return knowledge.judge(fault.lineage, fault.status, fault.message, fault.after)
