"""The options that a caller gives to one run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
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
    tags: dict[str, Any] = field(default_factory=dict, repr=False)
    #: How long it may take, from its creation to its end: then ``DeadlineExceeded`` is raised in it.
    deadline: timedelta | None = None
    #: When it begins: after this duration, or at this time; a time that is past means at once, as None does.
    after: timedelta | None = None
    at: datetime | None = None


#: Nothing was given.
DEFAULTS = RunOptions()


#: The label of the name of something that a run needs, and what the names of tags' labels begin with.
RESOURCE_LABEL, TAG_LABEL = "resource", "tag:"
#: Characters of the longest value that has a label.
MOST_LABEL = 400


def label_value(value: Any) -> str | None:
    """Return the value of a label as it is stored; None: such a value has no label."""
    if isinstance(value, list | dict):
        return None
    text = json.dumps(value)
    return text if len(text) <= MOST_LABEL else None


def labels_of(resources: Collection[str], tags: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the labels by which a run is found, names with values: what it needs, and its tags."""
    found = [(RESOURCE_LABEL, label_value(name)) for name in resources]
    found += [(TAG_LABEL + name, label_value(value)) for name, value in tags.items()]
    return [(name, value) for name, value in found if value is not None]
