"""The values that a flow gets instead of a result, when a rule has ended a step without one."""

from __future__ import annotations

from enum import Enum


class NoResult(Enum):
    """The reason why there is no result."""

    FAILED = "failed"  #: an exlet made it fail, and lets the flow proceed
    REMOVED = "removed"  #: an exlet took it, and its branch, away

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"aft.{self.name}"


FAILED = NoResult.FAILED
REMOVED = NoResult.REMOVED
