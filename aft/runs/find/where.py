"""Reads what a person asks for when runs are looked for: ``status:parked flow:buy@2 tag:region=eu text:"no answer"``.

Each word is a field and a value; a value with spaces is quoted. A run is found if all words are true of it.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aft import durations
from aft.errors import DefinitionError
from aft.runs.find.find_runs import RunFilter
from aft.runs.states import Status
from aft.texts import choose, format_value, require_text

#: Characters of the longest question.
MOST_TEXT = 2_000


def parse_where(text: str, now: datetime) -> RunFilter:
    """Return the filter that a text asks for; raises DefinitionError that says what is wrong, and what is possible.

    ``now`` is what times like ``since:2d`` are counted from.
    """
    require_text("where", text, DefinitionError)
    if len(text) > MOST_TEXT:
        raise DefinitionError(f"where= has {len(text):,} characters; {MOST_TEXT:,} are the most")
    try:
        words = shlex.split(text)
    except ValueError:
        raise DefinitionError(f"where={format_value(text)} has a quotation that does not end") from None
    wanted, seen = RunFilter(), set[str]()
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or not value:
            raise DefinitionError(f"{format_value(word)} is no field with a value; write {_example(name)}")
        if name not in _READERS:
            raise DefinitionError(f"there is no field {format_value(name)} to look for; {_suggest(name)}")
        if name in seen and name != "tag":
            raise DefinitionError(f"{name}: is given twice; a run has one of it")
        seen.add(name)
        wanted = replace(wanted, **_READERS[name][0](value, wanted, now))
    if wanted.made_from and wanted.made_before and wanted.made_from >= wanted.made_before:
        raise DefinitionError("no time lies after since: and before until:")
    return wanted


def fields() -> dict[str, str]:
    """Return the fields that there are, each with an example."""
    return {name: f"{name}:{example}" for name, (_, example) in _READERS.items()}


def _example(word: str) -> str:
    near = difflib.get_close_matches(word, _READERS, 1)
    return f"'{fields()[near[0] if near else 'status']}'"


def _suggest(name: str) -> str:
    near = difflib.get_close_matches(name, _READERS, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_READERS)}"


def _statuses(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    found = [choose("status", word, Status, DefinitionError) for word in value.split(",") if word]
    return {"statuses": tuple(dict.fromkeys(found))}


def _flow(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    name, at, version = value.rpartition("@")
    if not at:
        return {"flow": value}
    return {"flow": name, "version": _whole("flow", version)}


def _key(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    return {"key_prefix": value[:-1]} if value.endswith("*") else {"key": value}


def _tag(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    name, equals, given = value.partition("=")
    if not name or not equals:
        raise DefinitionError(f"tag:{value} must be a name with a value, like tag:region=eu")
    try:
        found = json.loads(given)
    except ValueError:
        found = given
    if isinstance(found, list | dict):
        raise DefinitionError(f"tag:{value}: runs are found by tags that are single values, not lists or objects")
    return {"tags": {**wanted.tags, name: found}}


def _priority(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    return {"priority": _whole("priority", value)}


def _overdue(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    if value != "yes":
        raise DefinitionError(f"overdue:{value} must be overdue:yes")
    return {"overdue": True}


def _since(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    return {"made_from": _time("since", value, now)}


def _until(value: str, wanted: RunFilter, now: datetime) -> dict[str, Any]:
    return {"made_before": _time("until", value, now)}


def _plain(name: str) -> Callable[[str, RunFilter, datetime], dict[str, Any]]:
    return lambda value, wanted, now: {name: value}


def _whole(name: str, value: str) -> int:
    try:
        found = int(value)
    except ValueError:
        found = None
    if found is None or abs(found) >= 2**31:
        raise DefinitionError(f"{name}: {format_value(value)} must be a whole number")
    return found


def _time(name: str, value: str, now: datetime) -> datetime:
    """Read a time, or how long ago it was."""
    try:
        return now - durations.parse(value)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise DefinitionError(
            f"{name}:{value} must be how long ago, like {name}:2d, or a time, like {name}:2026-11-19T08:00 (in UTC, "
            "unless it names its zone)"
        ) from None


#: The fields: how each is read, and an example of its value.
_READERS: dict[str, tuple[Callable[[str, RunFilter, datetime], dict[str, Any]], str]] = {
    "status": (_statuses, "parked,failed"),
    "flow": (_flow, "buy@2"),
    "key": (_key, "order-7*"),
    "tag": (_tag, "region=eu"),
    "owner": (_plain("owner"), "ads"),
    "resource": (_plain("resource"), "payments"),
    "priority": (_priority, "5"),
    "overdue": (_overdue, "yes"),
    "since": (_since, "2d"),
    "until": (_until, "1h"),
    "reason": (_plain("reason"), "'a part of it'"),
    "activity": (_plain("activity"), "charge"),
    "fault": (_plain("fault_type"), "TimeoutError"),
    "group": (_plain("group"), "5f0c9a31d2b7"),
    "text": (_plain("text"), "'no answer'"),
}
