"""The facts that a rule may use: flat, named, typed, and limited in size.

A case is a dictionary of facts with JSON values. Rules are asked with it; it is stored with a decision, and with a rule
as its cornerstone. An unknown fact is blank: an empty text, 0, false, an empty list or map, or null where any type is
allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

#: A case: facts by name.
Facts: TypeAlias = Mapping[str, Any]

#: Characters of a text; the rest is cut off.
MOST_TEXT = 1_000
#: Entries of one list or map; the rest is left out.
MOST_ENTRIES = 200
#: Entries of one fact, those of lists and maps inside it counted too.
MOST_IN_ALL = 1_000
#: Lists and maps inside one another; a deeper one is left empty.
DEEPEST = 16

#: What a whole number may be: 64 bits; beyond that it becomes a float.
_WHOLE = range(-(2**63), 2**63)
#: Characters that no condition can compare with: NUL, and halves of characters.
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


class FactType(StrEnum):
    """The type of a fact, as CEL writes it."""

    TEXT = "string"
    WHOLE = "int"
    TRUTH = "bool"
    ANY = "dyn"  #: numbers that may have a fraction are of this type too: CEL compares them with either
    TEXTS = "list(string)"
    TAGS = "map(string, dyn)"
    OUTCOMES = "map(int, string)"


#: The facts of every case; sources come on top of them.
FACT_TYPES: Mapping[str, FactType] = {
    "run.id": FactType.TEXT,
    "run.flow": FactType.TEXT,
    "run.version": FactType.WHOLE,
    "run.key": FactType.TEXT,
    "run.owner": FactType.TEXT,
    "run.priority": FactType.WHOLE,
    "run.args": FactType.ANY,
    "run.tags": FactType.TAGS,
    "run.age": FactType.ANY,  #: seconds
    "run.status": FactType.TEXT,
    "activity.name": FactType.TEXT,
    "activity.args": FactType.ANY,
    "activity.result": FactType.ANY,
    "activity.attempts": FactType.WHOLE,
    "activity.level": FactType.WHOLE,  #: 0: none yet
    "activity.elapsed": FactType.ANY,  #: seconds
    "fault.id": FactType.TEXT,
    "fault.kind": FactType.TEXT,  #: activity, compensator, flow, abort, constraint
    "fault.type": FactType.TEXT,  #: "package.module.Class"
    "fault.name": FactType.TEXT,  #: the class alone
    "fault.bases": FactType.TEXTS,  #: the class and those it inherits from, dotted
    "fault.text": FactType.TEXT,
    "fault.signature": FactType.TEXT,
    "fault.recoverable": FactType.TRUTH,  #: aft's own decision
    "fault.exhausted": FactType.TRUTH,  #: no level is left
    "fault.status": FactType.WHOLE,  #: of HTTP; 0: none
    "fault.after": FactType.ANY,  #: seconds that the exception asked to wait; 0: none
    "fault.deaths": FactType.WHOLE,
    "fault.resource": FactType.TEXT,
    "history.same_1m": FactType.WHOLE,  #: faults of this signature in that time, this one counted too
    "history.same_10m": FactType.WHOLE,
    "history.same_1h": FactType.WHOLE,
    "history.same_1d": FactType.WHOLE,
    "history.outcome": FactType.OUTCOMES,  #: level -> what came of the last retry there: resolved, tried, final
    "timeout.activity": FactType.TEXT,  #: the activity that timed out
    "trigger.name": FactType.TEXT,
}
#: Prefix of a source's name.
SOURCE = "source."
#: The types that a source may have.
SOURCE_TYPES = (FactType.ANY, FactType.WHOLE, FactType.TEXT, FactType.TRUTH)
#: Types whose values may have many entries.
WIDE = frozenset({FactType.ANY, FactType.TEXTS, FactType.TAGS, FactType.OUTCOMES})

_BLANKS: Mapping[FactType, Any] = {FactType.TEXT: "", FactType.WHOLE: 0, FactType.TRUTH: False, FactType.ANY: None}


def fact_types(sources: Mapping[str, str]) -> dict[str, FactType]:
    """Return the types of all facts by name, with sources: ``{"weather": "string"}`` declares ``source.weather``.

    Raises ValueError for a source whose name or type is invalid.
    """
    return {**FACT_TYPES, **{SOURCE + name: _source_type(name, kind) for name, kind in sources.items()}}


def _source_type(name: str, kind: str) -> FactType:
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise ValueError(f"a source cannot be named {name!r}; use letters, digits and _, as in 'free_seats'")
    if kind not in SOURCE_TYPES:
        raise ValueError(f"source {name!r} cannot be of type {kind!r}; it is one of {', '.join(SOURCE_TYPES)}")
    return FactType(kind)


def blank(sources: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a case in which every fact is blank."""
    return {name: _blank(kind) for name, kind in fact_types(sources or {}).items()}


def _blank(kind: FactType) -> Any:
    if kind in _BLANKS:
        return _BLANKS[kind]
    return [] if kind is FactType.TEXTS else {}


def complete(facts: Facts, blanks: Facts, only: Collection[str] | None = None) -> dict[str, Any]:
    """Return the facts as conditions see them: those of ``blanks``, or ``only`` some, blank where unknown.

    JSON has no numbers as keys: the levels of ``history.outcome`` become numbers again.
    """
    found = {}
    for name in blanks if only is None else only:
        value = facts.get(name)
        found[name] = blanks[name] if value is None else value
    if isinstance(outcome := found.get("history.outcome"), Mapping):
        found["history.outcome"] = {_level(level): text for level, text in outcome.items()}
    return found


def _level(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key


def cut(value: Any) -> Any:
    """Reduce a value to what a fact may be: plain JSON, small enough to bound the time of any condition.

    Long texts lose their end, long lists and maps their last entries. A type that JSON lacks becomes its class name.
    """
    return _cut(value, [MOST_IN_ALL], DEEPEST)


def _cut(value: Any, left: list[int], deep: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _UNWRITABLE.sub("\ufffd", value[:MOST_TEXT])
    if isinstance(value, int):
        return int(value) if value in _WHOLE else _fraction(value)
    if isinstance(value, float):
        return _fraction(value)
    if isinstance(value, Mapping):
        return _cut_map(value, left, deep)
    if isinstance(value, list | tuple | set | frozenset):
        return _cut_list(value, left, deep)
    return type(value).__name__


def _fraction(value: float) -> float | None:
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _cut_list(value: Any, left: list[int], deep: int) -> list[Any]:
    found: list[Any] = []
    for entry in value if deep else ():
        if len(found) == MOST_ENTRIES or not left[0]:
            break
        left[0] -= 1
        found.append(_cut(entry, left, deep - 1))
    return found


def _cut_map(value: Mapping[Any, Any], left: list[int], deep: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, entry in value.items() if deep else ():
        if len(found) == MOST_ENTRIES or not left[0]:
            break
        left[0] -= 1
        found[_cut(str(key), left, 0)] = _cut(entry, left, deep - 1)
    return found
