"""The stored form of what a fault keeps of its step; ``rules.cases.step_snapshot`` makes and uses it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aft.codec.text import StoredJson


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """The decoded text. ``failures``, of a constraint's fault: how often the step had failed before."""

    args: str | None = field(default=None, repr=False)
    result: str | None = field(default=None, repr=False)
    elapsed: float | None = None
    failures: int = 0
    #: Arguments that exlets have changed, by name.
    changed: dict[str, Any] = field(default_factory=dict, repr=False)
    #: How often exlets have restarted the step.
    restarts: int = 0
    #: Facts about the run, if rules were asked before the fault was raised.
    run: dict[str, Any] = field(default_factory=dict, repr=False)
    #: How many steps of its call were executed at a time; 0: it was called alone.
    abreast: int = 0


_STORED: StoredJson[StepSnapshot] = StoredJson(StepSnapshot)


def decode(text: str | None) -> StepSnapshot:
    """Decode the text in a fault's row; nothing decodes to an empty snapshot. Raises ValueError for malformed text."""
    return _STORED.read(text) if text else StepSnapshot()
