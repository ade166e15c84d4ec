"""Rebuilds values from tagged objects: the counterpart of :mod:`aft.codec.tags`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from aft.codec.ordered_sets import OrderedFrozenSet, OrderedSet
from aft.codec.secret import Secret
from aft.codec.tags import MARK, is_long
from aft.errors import CodecError
from aft.texts import with_article


def untag(pairs: list[tuple[str, Any]]) -> Any:
    """Build one object of the text; called from the innermost outwards, so that its items are built already."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CodecError("a key appears twice in the stored text")
    if MARK not in found:
        return found
    mark = found.pop(MARK)
    reader = _READERS.get(mark) if isinstance(mark, str) else None
    if reader is None:
        raise CodecError(f"the stored text holds the unknown tag {str(mark)[:40]!r}; was it written by a newer aft?")
    try:
        return reader(**found)
    except (ValueError, TypeError, ArithmeticError, LookupError, OSError) as error:
        raise CodecError(f"the stored text holds a malformed {mark}: {error}") from None


def _a(kind: type, v: Any) -> Any:
    if type(v) is not kind:
        raise TypeError(f"{with_article(kind.__name__)} is expected")
    return v


def _read_dict(v: Any) -> dict[Any, Any]:
    found = dict(_a(list, pair) for pair in _a(list, v))
    if len(found) != len(v):
        raise ValueError("a key appears twice")
    return found


def _read_decimal(v: Any) -> Decimal:
    found = Decimal(_a(str, v))
    if not found.is_finite() or is_long(found):
        raise ValueError("not a number, or too long a one")
    return found


def _read_clock(kind: type[datetime] | type[time], v: Any, zone: Any = None, fold: Any = 0) -> datetime | time:
    found = kind.fromisoformat(_a(str, v))
    return found.replace(tzinfo=found.tzinfo if zone is None else ZoneInfo(_a(str, zone)), fold=fold)


_READERS: dict[str, Callable[..., Any]] = {
    "dict": _read_dict,
    "tuple": lambda v: tuple(_a(list, v)),
    "set": lambda v: OrderedSet(_a(list, v)),
    "frozenset": lambda v: OrderedFrozenSet(_a(list, v)),
    "datetime": partial(_read_clock, datetime),
    "time": partial(_read_clock, time),
    "date": lambda v: date.fromisoformat(_a(str, v)),
    "timedelta": lambda v: timedelta(microseconds=_a(int, v)),
    "decimal": _read_decimal,
    "uuid": lambda v: UUID(_a(str, v)),
    "bytes": lambda v: base64.b64decode(_a(str, v), validate=True),
    "secret": lambda v: Secret(v),
}
