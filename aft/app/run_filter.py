"""Makes the filter for runs from what a caller gives: a text, single options, or both."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from aft.errors import DefinitionError
from aft.flows.declare import options as checks
from aft.flows.declare.flow import Flow
from aft.runs.find.find_runs import RunFilter
from aft.runs.find.where import parse_where
from aft.runs.states import Status
from aft.texts import choose, format_value


class Wanted(TypedDict, total=False):
    """What runs may be looked for by besides the text; None: it does not matter."""

    status: str | Status | None
    flow: str | Flow[..., Any] | None
    owner: str | None
    resource: str | None
    priority: int | None
    overdue: bool


#: The options besides the text, and the field of the filter for each.
_FIELDS = {name: name for name in ("flow", "owner", "resource", "priority", "overdue")} | {"status": "statuses"}


def run_filter(where: str | None, options: Wanted, now: datetime) -> RunFilter:
    """Return the filter; raises DefinitionError for what cannot be meant, also for a field that is given twice."""
    if unknown := sorted(options.keys() - _FIELDS.keys()):
        raise DefinitionError(f"there is no option {unknown[0]!r} for runs; there are {', '.join(sorted(_FIELDS))}")
    found = RunFilter() if where is None else parse_where(where, now)
    given = {_FIELDS[name]: _read(name, value) for name, value in options.items() if value is not None}
    for name, value in given.items():
        before = getattr(found, name)
        if before and value and before != value:
            raise DefinitionError(f"{name}={format_value(value)} differs from what where= says")
    return replace(found, **{name: value for name, value in given.items() if value is not False})


def _read(name: str, value: Any) -> Any:
    if name == "status":
        return (choose("status", value, Status, DefinitionError),)
    if name == "priority":
        return checks.check_priority("app.runs", value)
    if name == "overdue":
        return checks.check_bool("overdue", value)
    if name == "flow":
        if not isinstance(value, str | Flow):
            raise DefinitionError(f"flow={format_value(value)} must be a flow or its name")
        return value.name if isinstance(value, Flow) else checks.check_wanted("flow", value)
    return checks.check_wanted(name, value)
