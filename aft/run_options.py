"""The options that a caller gives to one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

#: What the keys of schedules' runs begin with; callers cannot give such keys.
OF_SCHEDULE = "schedule/"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of one run, validated; a schedule stores those of its runs."""

    key: str | None = None
    priority: int = 0
    owner: str | None = None
    #: How long it should take, from its creation to its end; longer only emits an event.
    expected: timedelta | None = None
    #: Names of what it needs.
    resources: tuple[str, ...] = ()
    #: Names with values, for rules and people.
    tags: dict[str, Any] = field(default_factory=dict)
    #: How long it may take, from its creation to its end: then ``DeadlineExceeded`` is raised in it.
    deadline: timedelta | None = None
    #: When it begins: after this duration, or at this time; a time that is past means at once, as None does.
    after: timedelta | None = None
    at: datetime | None = None


#: Nothing was given.
DEFAULTS = RunOptions()
