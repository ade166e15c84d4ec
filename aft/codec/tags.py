"""Converts values without a declared type to JSON data, with tags for types that JSON does not have.

Only values of exactly the known types are accepted: so the decoded value is equal and of the same type, without a test.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from os import PathLike
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from aft.codec.refusal import ValueRefused, kind_phrase
from aft.codec.secret import Secret

#: The key that marks an object as a tagged value; a dict that holds this key is tagged itself.
MARK = "$aft"
#: Bytes of one encoded value, or of all arguments of one call together.
MOST_BYTES = 1_048_576
#: Brackets open at once in the text: a list or dict takes one, a tuple or set two, a dict with keys that are
#: not all str three.
MOST_DEPTH = 64
#: Digits of an integer, or of a decimal without exponent: Python itself refuses to format much more, and "1e9999999" is
#: short as text but long as an integer.
MOST_DIGITS = 4_000
_BIG = 10**MOST_DIGITS

dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def tag(value: Any, depth: int = 0) -> Any:
    """Convert a value of exactly the known types to JSON data; raises ValueRefused."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _sound(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        if not -_BIG < value < _BIG:
            raise ValueRefused(f"an integer of more than {MOST_DIGITS} digits cannot be stored")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueRefused(f"{value!r} is not a number that JSON knows; use None or a text for it")
        return value
    writer = WRITERS.get(kind)
    if writer is None:
        raise ValueRefused(refuse_kind(kind))
    return writer(value, depth)


#: Types that can be built where they are declared, besides dataclasses and models.
_BUILT = (Enum, Collection, PathLike, str, int, float, complex, date, time, timedelta, Decimal, UUID)


def refuse_kind(kind: type) -> str:
    """Format why values of a class cannot be stored, and what to pass instead."""
    if issubclass(kind, _BUILT) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields"):
        return (
            f"{kind_phrase(kind)} cannot be stored where no type is declared for it; "
            f"annotate the parameter, field or result with {kind.__name__}"
        )
    return (
        f"{kind_phrase(kind)} cannot be stored; pass the data that it is made from (texts, numbers, lists, dicts, "
        "a dataclass or a pydantic model), or an id by which the activity finds it again"
    )


def add_depth(depth: int, by: int) -> int:
    """Add the brackets that a container opens to the depth; raises ValueRefused if they are too many."""
    if depth + by > MOST_DEPTH:
        raise ValueRefused(f"nested more than {MOST_DEPTH} deep (or it holds itself)")
    return depth + by


def _sound(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueRefused("the text holds a lone surrogate, which is no character; decode it properly first") from None
    return text


def _tag_items(items: Any, depth: int) -> list[Any]:
    tagged: list[Any] = []
    try:
        for item in items:
            tagged.append(tag(item, depth))
    except ValueRefused as refused:
        refused.under(len(tagged))
        raise
    return tagged


def _write_list(value: list[Any], depth: int) -> Any:
    return _tag_items(value, add_depth(depth, 1))


def _write_tuple(value: tuple[Any, ...], depth: int) -> Any:
    return {MARK: "tuple", "v": _tag_items(value, add_depth(depth, 2))}


def write_set(value: Any, depth: int) -> Any:
    """Tag a set, sorted: its order differs between processes, and equal values must have the same text."""
    return {
        MARK: "set" if isinstance(value, set) else "frozenset",
        "v": sorted(_tag_items(value, add_depth(depth, 2)), key=dumps),
    }


def _write_dict(value: dict[Any, Any], depth: int) -> Any:
    if MARK in value or not all(type(key) is str for key in value):
        return _write_pairs(value, depth)
    inside = add_depth(depth, 1)
    tagged: dict[str, Any] = {}
    key = ""
    try:
        for key, item in value.items():
            tagged[key if key.isascii() else _sound(key)] = tag(item, inside)
    except ValueRefused as refused:
        refused.under(key)
        raise
    return tagged


def _write_pairs(value: dict[Any, Any], depth: int) -> Any:
    inside = add_depth(depth, 3)
    pairs: list[Any] = []
    key: Any = None
    try:
        for key, item in value.items():
            pairs.append([tag(key, inside), tag(item, inside)])
    except ValueRefused as refused:
        refused.under(key)
        raise
    return {MARK: "dict", "v": pairs}


def is_long(value: Decimal) -> bool:
    """Return whether a finite decimal has too many digits before or after its point."""
    exponent = int(value.as_tuple().exponent)
    return not -MOST_DIGITS <= exponent <= MOST_DIGITS or len(value.as_tuple().digits) > MOST_DIGITS


def _write_decimal(value: Decimal, depth: int) -> Any:
    if not value.is_finite():
        raise ValueRefused(f"Decimal {value!s} is not a number; use None or a text for it")
    if is_long(value):
        raise ValueRefused(f"a Decimal of more than {MOST_DIGITS} digits cannot be stored")
    return {MARK: "decimal", "v": str(value)}


def _write_bytes(value: bytes, depth: int) -> Any:
    if len(value) > MOST_BYTES:
        raise ValueRefused(f"{len(value)} bytes; {MOST_BYTES} are the most; store them elsewhere and pass a reference")
    return {MARK: "bytes", "v": base64.b64encode(value).decode("ascii")}


def _write_clock(value: datetime | time, depth: int) -> Any:
    """Tag a datetime or time; a zone by its key, because its rules matter, not the offset at one time."""
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    tagged: dict[str, Any] = {MARK: type(value).__name__}
    if zone is not None:
        tagged["v"], tagged["zone"] = value.replace(tzinfo=None).isoformat(), zone
    elif value.tzinfo is not None and value.utcoffset() is None:
        raise ValueRefused(
            f"its time zone, {kind_phrase(type(value.tzinfo))}, has no offset; use zoneinfo or timezone.utc"
        )
    else:
        tagged["v"] = value.isoformat()
    if value.fold:
        tagged["fold"] = value.fold
    return tagged


#: The functions that tag values of each known type; ``codec.ordered_sets`` adds its sets.
WRITERS: dict[type, Callable[[Any, int], Any]] = {
    list: _write_list,
    dict: _write_dict,
    tuple: _write_tuple,
    set: write_set,
    frozenset: write_set,
    datetime: _write_clock,
    time: _write_clock,
    date: lambda value, depth: {MARK: "date", "v": value.isoformat()},
    timedelta: lambda value, depth: {MARK: "timedelta", "v": value // timedelta(microseconds=1)},
    Decimal: _write_decimal,
    UUID: lambda value, depth: {MARK: "uuid", "v": str(value)},
    bytes: _write_bytes,
    Secret: lambda value, depth: {MARK: "secret", "v": tag(value.reveal(), add_depth(depth, 1))},
}

CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
#: The known types that are no containers.
SCALARS: frozenset[type] = frozenset({*WRITERS, str, int, bool, float, type(None)}.difference(CONTAINERS))
