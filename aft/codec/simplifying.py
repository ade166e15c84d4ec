"""What of a value that pydantic dumped can be stored? It is reduced to exactly the known types.

Something may get lost by that; :mod:`aft.codec.comparing` finds it.
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
from aft.codec.tagging import CONTAINERS, SCALARS, deeper, refuse_kind


def simplify(value: Any, depth: int = 0) -> Any:
    """Reduce what pydantic dumped to exactly the known types; raises :class:`Refused`."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, Enum):
        return simplify(value.value, depth)
    for base in CONTAINERS:
        if isinstance(value, base):
            return _simplify_container(base, value, deeper(depth, 1))
    for scalar, exact in _EXACT.items():
        if isinstance(value, scalar):
            return exact(value)
    return _simplify_other(value)


#: How a value of a subclass becomes one of the class itself; datetime before date, whose subclass it is.
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
    """Spell what pydantic knows beyond our own types (paths, addresses, deques …) the way it does in JSON."""
    refused = ValueRefused(refuse_kind(type(value)))
    if isinstance(value, Iterator) or callable(value):  # reading an iterator would use it up
        raise refused
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise refused from None
