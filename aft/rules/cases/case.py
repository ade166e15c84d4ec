"""A case: the facts that a rule may use, gathered from the store.

Facts are flat and typed, see ``rules.cases.facts``. Facts that are costly to gather (history, outside sources) are
gathered only when a condition mentions them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from aft.codec import MARK, decode_untyped
from aft.errors import CodecError
from aft.fault import Fault, FaultKind
from aft.rules.cases.facts import cut
from aft.runs.run_rows import RunRow

Facts = dict[str, Any]
#: Gathers those facts that are named.
Gather = Callable[[frozenset[str]], Mapping[str, Any]]


@dataclass(slots=True)
class Case:
    """The facts known so far, and how to gather others: ``more`` by the first part of the facts' names."""

    facts: Facts = field(repr=False)
    more: dict[str, Gather] = field(default_factory=dict)
    #: Why facts could not be gathered, or conditions evaluated.
    warnings: list[str] = field(default_factory=list)

    def gather(self, names: Iterable[str]) -> Facts:
        """Return the facts, after gathering those that these names mention."""
        missing = frozenset(name for name in names if name not in self.facts)
        for part in sorted({name.partition(".")[0] for name in missing} & self.more.keys()):
            try:
                self.facts.update(self.more[part](missing))
            except Exception as error:
                # Rules that need it do not hold; the fault itself is decided all the same.
                self.warnings.append(f"{part} cannot be asked: {error}")
        return self.facts


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What is known of the case's step, as it is stored."""

    name: str
    args: str | None = field(default=None, repr=False)
    result: str | None = field(default=None, repr=False)
    attempts: int = 0
    level: int = 0
    elapsed: float | None = None


def of_run(run: RunRow, at: datetime) -> Facts:
    """Return the facts about a run."""
    return {
        "run.id": str(run.id),
        "run.flow": run.flow,
        "run.version": run.version,
        "run.key": run.key or "",
        "run.owner": run.owner or "",
        "run.priority": run.priority,
        "run.args": read_json(run.args),
        "run.tags": read_tags(run.tags),
        "run.age": max(0.0, (at - run.created_at).total_seconds()),
        "run.status": run.status.value,
    }


def of_step(step: StepFacts) -> Facts:
    """Return the facts about a step."""
    return {
        "activity.name": step.name,
        "activity.args": read_json(step.args),
        "activity.result": read_json(step.result),
        "activity.attempts": step.attempts,
        "activity.level": step.level,
        "activity.elapsed": step.elapsed or 0.0,
    }


def of_fault(fault: Fault, *, recoverable: bool, exhausted: bool) -> Facts:
    """Return the facts about a fault, and about aft's own decision."""
    return {
        "fault.id": str(fault.id),
        "fault.kind": fault.kind.value,
        "fault.type": fault.type,
        "fault.name": fault.short_type,
        "fault.bases": cut(list(fault.lineage)),
        "fault.text": cut(fault.message),
        "fault.signature": fault.signature,
        "fault.recoverable": recoverable,
        "fault.exhausted": exhausted,
        "fault.status": fault.http_status or 0,
        "fault.after": 0.0 if fault.after is None else fault.after.total_seconds(),
        "fault.deaths": fault.attempt if fault.kind is FaultKind.ABORT else 0,
        "fault.resource": fault.resource or "",
    }


def read_json(text: str | None) -> Any:
    """Decode a stored value as rules see it; None if it cannot be decoded."""
    if text is None:
        return None
    try:
        return cut(to_json(decode_untyped(text)))
    except CodecError:
        return None


def read_tags(tags: Mapping[str, Any]) -> Any:
    """Return a run's tags as rules see them; a rule may have set one to a date, a decimal, …"""
    if not tags:
        return {}
    text = json.dumps(tags)
    return (read_json(text) if MARK in text else None) or cut(tags)


def to_json(value: Any) -> Any:
    """Reduce a stored value to types of CEL and JSON: decimals become numbers, dates and times become text."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item) for item in value]
    return _SPELT[type(value)](value) if type(value) in _SPELT else str(value)


_SPELT: dict[type, Callable[[Any], Any]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: timedelta.total_seconds,
    UUID: str,
    bytes: bytes.hex,
    Enum: lambda value: to_json(value.value),
}
