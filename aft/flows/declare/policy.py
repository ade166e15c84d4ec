"""The policy of a function: how it is tried, and which exceptions it declares as recoverable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from aft.errors import is_interrupt
from aft.fault import Recoverability
from aft.flows.declare.probe import Probe
from aft.recovery.levels import Ladder

#: Exception classes, or a function that looks at the exception.
Declared = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Policy:
    """The way an activity or a compensator is tried; None: the settings apply."""

    ladder: Ladder | None = None
    immediate: int | None = None
    timeout: timedelta | None = None
    recoverable: Declared = ()
    unrecoverable: Declared = ()
    transactional: bool = False
    #: Resolves an unknown outcome before it is executed again.
    probe: Probe | None = None
    #: What it needs; its faults carry the name.
    resource: str | None = None
    #: How long it should take; longer only emits an event.
    expected: timedelta | None = None

    def recoverability_of(self, error: BaseException) -> Recoverability | None:
        """Return what is declared about an exception: the nearest class along its bases decides, then the functions."""
        passing, lasting = _classes(self.recoverable), _classes(self.unrecoverable)
        for cls in type(error).__mro__:
            if cls in lasting:
                return Recoverability.UNRECOVERABLE
            if cls in passing:
                return Recoverability.RECOVERABLE
        if _predicate(self.unrecoverable, error):
            return Recoverability.UNRECOVERABLE
        if _predicate(self.recoverable, error):
            return Recoverability.RECOVERABLE
        return None


def _classes(declared: Declared) -> tuple[type[BaseException], ...]:
    if isinstance(declared, tuple):
        return declared
    return (declared,) if isinstance(declared, type) else ()


def _predicate(declared: Declared, error: BaseException) -> bool:
    if isinstance(declared, tuple | type):
        return False
    try:
        return bool(declared(error))
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        return False  # a predicate that fails has no opinion; the fault itself must not be lost
