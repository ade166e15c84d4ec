"""Compares a value with its decoded copy, and a recorded value with a present one."""

from __future__ import annotations

import dataclasses
from collections import deque
from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel

from aft.codec.ordered_sets import OrderedFrozenSet, OrderedSet, fields_of, has_fields, sort_key
from aft.codec.refusal import ValueRefused, format_key, format_part, kind_name, kind_phrase
from aft.codec.secret import Secret, unwrap


def compare(value: Any, rebuilt: Any) -> None:
    """Raise ValueRefused where the rebuilt value differs from the given one."""
    if isinstance(rebuilt, Secret):
        value, rebuilt = unwrap(value), rebuilt.reveal()
    if value is rebuilt:
        return
    _compare_kinds(value, rebuilt)
    if has_fields(value):
        _compare_dicts(fields_of(value), fields_of(rebuilt))
    elif isinstance(value, dict):
        _compare_dicts(value, rebuilt)
    elif isinstance(value, list | tuple):
        _compare_lengths(value, rebuilt)
        for index, (ours, theirs) in enumerate(zip(value, rebuilt, strict=True)):
            _compare_under(index, ours, theirs)
    elif isinstance(value, set | frozenset):
        _compare_dicts(dict.fromkeys(value), dict.fromkeys(rebuilt))
    elif not equal(value, rebuilt):
        raise ValueRefused(f"this {kind_name(type(value))} would not come back equal to what it is")


def _compare_under(step: object, value: Any, rebuilt: Any) -> None:
    try:
        compare(value, rebuilt)
    except ValueRefused as refused:
        refused.under(step)
        raise


#: Types whose values may not be rebuilt as a base class: members and items would be lost, and a bool is no int.
_EXACTLY = (bool, Enum, list, tuple, set, frozenset)


#: A decoded set is an ordered one; the rebuilt value here has a plain one.
_ORDERED: dict[type, type] = {OrderedSet: set, OrderedFrozenSet: frozenset}


def _compare_kinds(value: Any, rebuilt: Any) -> None:
    kind, other = _ORDERED.get(type(value), type(value)), type(rebuilt)
    if kind is other or (kind is int and other is float):
        return
    # A text or number or dict of a subclass may come back as its base if it equals that.
    if not isinstance(value, other) or isinstance(value, _EXACTLY) or has_fields(value):
        raise ValueRefused(
            format_part(value),
            " does not fit the declared type: it would come back as "
            f"{kind_phrase(other)}; declare the type that it has",
        )


def _compare_lengths(value: Any, rebuilt: Any) -> None:
    if len(value) != len(rebuilt):
        raise ValueRefused(f"of its {len(value)} items {len(rebuilt)} would come back; declare all that it may hold")


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
        raise ValueRefused("its item ", format_key(key), " would be lost; declare all that it may hold") from None


def equal(value: Any, rebuilt: Any) -> bool:
    """Return whether two values compare equal; those that cannot be compared do not."""
    try:
        if isinstance(value, datetime):  # == calls two moments different where a clock is set back
            return bool(value.isoformat() == rebuilt.isoformat())
        return bool(value == rebuilt)
    except Exception:  # whatever a foreign class does in ==, it has not said "equal"
        return False


def is_same(was: Any, now: Any, recorded: Any) -> bool:
    """Return whether a decoded value, whose untagged form is ``recorded``, is the same as the present one.

    Of dataclasses and models only the fields that were recorded count: others were added since, with a default.
    """
    if type(was) is not type(now):
        return False
    if has_fields(was):
        ours, theirs = fields_of(was), fields_of(now)
        return all(_is_same_field(name, was, ours[name], theirs.get(name), recorded) for name in ours)
    if isinstance(was, dict):
        return len(was) == len(now) and all(
            key in now and is_same(item, now[key], recorded.get(key) if isinstance(recorded, dict) else None)
            for key, item in was.items()
        )
    if isinstance(was, set | frozenset):
        return equal(was, now) or _are_same(sorted(was, key=sort_key), sorted(now, key=sort_key), None)
    if isinstance(was, list | tuple | deque):
        return _are_same(was, now, recorded)
    return equal(was, now)


def _are_same(was: Any, now: Any, recorded: Any) -> bool:
    fits = isinstance(recorded, list | tuple) and len(recorded) == len(was)
    parts = recorded if fits else [None] * len(was)
    return len(was) == len(now) and all(map(is_same, was, now, parts))


def _is_same_field(name: str, was: Any, ours: Any, theirs: Any, recorded: Any) -> bool:
    """Return whether a field is the same, or was not recorded."""
    if not isinstance(recorded, dict):
        return is_same(ours, theirs, None)
    if isinstance(was, BaseModel):
        field = type(was).model_fields.get(name)
        alias = None if field is None else field.serialization_alias or field.alias
        absent = name not in was.model_fields_set
    else:
        alias, absent = None, name not in recorded and name in _defaulted(type(was))
    return absent or is_same(ours, theirs, recorded.get(alias or name))


def _defaulted(kind: Any) -> set[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is not missing or field.default_factory is not missing}
