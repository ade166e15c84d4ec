"""Classifies a fault as recoverable or not. The first source with an answer wins: the exception, the declaration, aft.

Pure: decides from the fault's row alone, without the user's code.
"""

from __future__ import annotations

from aft.fault import Fault, FaultKind, Recoverability
from aft.recovery import known_exceptions
from aft.recovery.known_exceptions import Classification


def classify(fault: Fault) -> Classification:
    """Return whether a fault is recoverable, and the reason."""
    if fault.kind is FaultKind.ABORT:
        return Classification(True, "its worker was lost; the run goes on elsewhere")
    if fault.own_answer is not None:
        return Classification(
            fault.own_answer is Recoverability.RECOVERABLE,
            f"{fault.short_type} says so itself, being aft.{fault.own_answer.capitalize()}",
        )
    if fault.declared_answer is not None:
        return Classification(
            fault.declared_answer is Recoverability.RECOVERABLE,
            f"{fault.name!r} declares {fault.short_type} {fault.declared_answer}",
        )
    return known_exceptions.classify_exception(fault.lineage, fault.http_status, fault.message, fault.after)
