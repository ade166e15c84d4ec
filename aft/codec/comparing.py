"""Did anything get lost on the way to text and back?"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel

from aft.codec.refusal import Refused, kind_name, spell_key


def compare(value: Any, rebuilt: Any) -> None:
    """Raise :class:`Refused` where the rebuilt value is not the one that was given."""
    if value is rebuilt:
        return
    _compare_kinds(value, rebuilt)
    if _has_fields(value):
        _compare_dicts(_fields(value), _fields(rebuilt))
    elif isinstance(value, dict):
        _compare_dicts(value, rebuilt)
    elif isinstance(value, list | tuple):
        _compare_lengths(value, rebuilt)
        for index, (ours, theirs) in enumerate(zip(value, rebuilt, strict=True)):
            _compare_under(index, ours, theirs)
    elif isinstance(value, set | frozenset):
        _compare_dicts(dict.fromkeys(value), dict.fromkeys(rebuilt))
    elif not equal(value, rebuilt):
        raise Refused(f"this {kind_name(type(value))} would not come back equal to what it is")


def _compare_under(step: object, value: Any, rebuilt: Any) -> None:
    try:
        compare(value, rebuilt)
    except Refused as refused:
        refused.under(step)
        raise


#: What a base class does not stand for: neither members nor fields, and no bool is meant by an int.
_EXACTLY = (bool, Enum, list, tuple, set, frozenset)


def _compare_kinds(value: Any, rebuilt: Any) -> None:
    kind, other = type(value), type(rebuilt)
    if kind is other or (kind is int and other is float):
        return
    # A text or number or dict of a subclass may come back as its base if it equals that.
    if not isinstance(value, other) or isinstance(value, _EXACTLY) or _has_fields(value):
        raise Refused(
            f"a {kind_name(kind)} does not fit the declared type: "
            f"it would come back as a {kind_name(other)}; declare the type that it has"
        )


def _compare_lengths(value: Any, rebuilt: Any) -> None:
    if len(value) != len(rebuilt):
        raise Refused(f"of its {len(value)} items {len(rebuilt)} would come back; declare all that it may hold")


def _compare_dicts(value: dict[Any, Any], rebuilt: dict[Any, Any]) -> None:
    came_back = {key: (key, theirs) for key, theirs in rebuilt.items()}
    pairs = [(key, ours, *_find(key, came_back)) for key, ours in value.items()]
    _compare_lengths(value, rebuilt)
    for key, ours, same, theirs in pairs:
        _compare_under(key, key, same)  # 1, 1.0 and True are one key
        _compare_under(key, ours, theirs)


def _find(key: Any, came_back: dict[Any, tuple[Any, Any]]) -> tuple[Any, Any]:
    try:
        return came_back[key]
    except Exception:  # it is not there, or cannot be compared; whatever a foreign class does in ==, as in ``equal``
        raise Refused(f"its item {spell_key(key)} would be lost; declare all that it may hold") from None


def _has_fields(value: Any) -> bool:
    return isinstance(value, BaseModel) or dataclasses.is_dataclass(value)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        # Private attributes are left out: their model keeps them out of its data.
        own = {name: getattr(value, name) for name in type(value).model_fields}
        return own | (value.model_extra or {})
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def equal(value: Any, rebuilt: Any) -> bool:
    """Tell whether two values say that they are equal; one that cannot be compared is not."""
    try:
        if isinstance(value, datetime):  # == calls two moments different where a clock is set back
            return bool(value.isoformat() == rebuilt.isoformat())
        return bool(value == rebuilt)
    except Exception:  # whatever a foreign class does in ==, it has not said "equal"
        return False
