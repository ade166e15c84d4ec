"""Reduces a value that pydantic dumped to exactly the types that can be stored.

That may lose something; :mod:`aft.codec.compare` detects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_jsonable_python

from aft.codec.refusal import ValueRefused
from aft.codec.tags import CONTAINERS, SCALARS, add_depth, refuse_kind


def simplify(value: Any, depth: int = 0) -> Any:
    """Reduce what pydantic dumped to exactly the known types; raises ValueRefused."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, Enum):
        return simplify(value.value, depth)
    for base in CONTAINERS:
        if isinstance(value, base):
            return _simplify_container(base, value, add_depth(depth, 1))
    for scalar, exact in _EXACT.items():
        if isinstance(value, scalar):
            return exact(value)
    return _simplify_other(value)


#: Converters of a subclass's value to the class itself; datetime before date, whose subclass it is.
_EXACT: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    datetime: lambda value: datetime.combine(value.date(), value.timetz()),
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
}


def _simplify_container(base: type, value: Any, depth: int) -> Any:
    if base is dict:
        return {simplify(key, depth): _simplify_under(key, item, depth) for key, item in dict.items(value)}
    return base(_simplify_under(index, item, depth) for index, item in enumerate(value))


def _simplify_under(step: object, value: Any, depth: int) -> Any:
    try:
        return simplify(value, depth)
    except ValueRefused as refused:
        refused.under(step)
        raise


def _simplify_other(value: Any) -> Any:
    """Convert other types that pydantic supports (paths, deques …) to their JSON form; raises ValueRefused."""
    refused = ValueRefused(refuse_kind(type(value)))
    if isinstance(value, Iterator) or callable(value):  # reading an iterator would use it up
        raise refused
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise refused from None
