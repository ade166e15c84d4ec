"""How is a value spelled that has no declared type? As JSON, with a tag where JSON has no word for it.

Only values of exactly the known types are taken: what comes back is then equal and of the same type, without
trying it.
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

from aft.codec.limits import MOST_BYTES, MOST_DEPTH, MOST_DIGITS
from aft.codec.refusal import ValueRefused, a_kind
from aft.codec.secret import Secret

#: The key that marks an object as a tagged value; a dict that holds this key is tagged itself.
MARK = "$aft"
_BIG = 10**MOST_DIGITS

dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def tag(value: Any, depth: int = 0) -> Any:
    """Turn a value of exactly the known types into what JSON has words for; raises :class:`Refused`."""
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


#: What can be built where its type is declared, beside dataclasses and models.
_BUILT = (Enum, Collection, PathLike, str, int, float, complex, date, time, timedelta, Decimal, UUID)


def refuse_kind(kind: type) -> str:
    """Say why values of a class cannot be stored, and what can be given instead."""
    if issubclass(kind, _BUILT) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields"):
        return (
            f"{a_kind(kind)} cannot be stored where no type is declared for it; "
            f"annotate the parameter, field or result with {kind.__name__}"
        )
    return (
        f"{a_kind(kind)} cannot be stored; pass the data that it is made from (texts, numbers, lists, dicts, "
        "a dataclass or a pydantic model), or an id by which the activity finds it again"
    )


def deeper(depth: int, by: int) -> int:
    """Count the brackets that a container opens; raises :class:`Refused` where they are too many."""
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
    return _tag_items(value, deeper(depth, 1))


def _write_tuple(value: tuple[Any, ...], depth: int) -> Any:
    return {MARK: "tuple", "v": _tag_items(value, deeper(depth, 2))}


def write_set(value: Any, depth: int) -> Any:
    """Tag a set. Sorted: its order differs between processes, and the same value must always give the same text."""
    return {
        MARK: "set" if isinstance(value, set) else "frozenset",
        "v": sorted(_tag_items(value, deeper(depth, 2)), key=dumps),
    }


def _write_dict(value: dict[Any, Any], depth: int) -> Any:
    if MARK in value or not all(type(key) is str for key in value):
        return _write_pairs(value, depth)
    inside = deeper(depth, 1)
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
    inside = deeper(depth, 3)
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
    """Tell whether a finite decimal has too many digits before or after its point."""
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
    """Spell a datetime or time; a zone by its key, because its rules matter, not one moment's offset."""
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    tagged: dict[str, Any] = {MARK: type(value).__name__}
    if zone is not None:
        tagged["v"], tagged["zone"] = value.replace(tzinfo=None).isoformat(), zone
    elif value.tzinfo is not None and value.utcoffset() is None:
        raise ValueRefused(f"its time zone, {a_kind(type(value.tzinfo))}, has no offset; use zoneinfo or timezone.utc")
    else:
        tagged["v"] = value.isoformat()
    if value.fold:
        tagged["fold"] = value.fold
    return tagged


#: How values of each known type are tagged; ``codec.ordered`` adds its sets.
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
    Secret: lambda value, depth: {MARK: "secret", "v": tag(value.reveal(), deeper(depth, 1))},
}

CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
#: The known types that hold nothing else.
SCALARS: frozenset[type] = frozenset({*WRITERS, str, int, bool, float, type(None)}.difference(CONTAINERS))
