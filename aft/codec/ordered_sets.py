"""Sets that iterate in the same order in every process.

The order of a plain set of texts depends on the process's hash seed, so a flow that loops over one would call its steps
in another order when another process replays it. A decoded set is therefore one of these: a set in every other respect,
also after ``|``, ``&``, ``-`` and ``^``.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from pydantic import BaseModel

from aft.codec.refusal import ValueRefused, kind_name
from aft.codec.tags import WRITERS, dumps, tag, write_set


class OrderedSet(set[Any]):
    """A set whose iteration is sorted."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(_sorted(set.__iter__(self)))

    def pop(self) -> Any:
        """Remove and return the first item."""
        for item in self:
            self.remove(item)
            return item
        raise KeyError("pop from an empty set")

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}" if self else "set()"


class OrderedFrozenSet(frozenset[Any]):
    """A frozenset whose iteration is sorted."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(_sorted(frozenset.__iter__(self)))

    def __repr__(self) -> str:
        return f"frozenset({{{', '.join(map(repr, self))}}})" if self else "frozenset()"


def _sorted(items: Iterable[Any]) -> list[Any]:
    found = list(items)
    kinds = set(map(type, found))
    return sorted(found) if kinds in ({str}, {int}) else sorted(found, key=sort_key)


def sort_key(item: Any) -> str:
    """Encode an item so that equal ones have the same text in every process."""
    return dumps(_to_sort_form(item))


def _to_sort_form(item: Any) -> Any:
    try:
        return tag(item)
    except ValueRefused:  # what the annotation has built: a dataclass, an enum, a model
        kind = kind_name(type(item))
    if isinstance(item, Enum):
        return [kind, item.name]
    if isinstance(item, set | frozenset):
        return [kind, sorted(map(sort_key, item))]
    if isinstance(item, list | tuple | deque):
        return [kind, *map(_to_sort_form, item)]
    if isinstance(item, dict):
        return [kind, *sorted([sort_key(key), _to_sort_form(found)] for key, found in item.items())]
    if has_fields(item):
        return [kind, [[name, _to_sort_form(found)] for name, found in fields_of(item).items()]]
    return [kind, repr(item)]


def has_fields(value: Any) -> bool:
    """Return whether a value is an instance of a model or a dataclass."""
    return isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a model or dataclass instance, by name."""
    if isinstance(value, BaseModel):
        # Private attributes are left out: their model keeps them out of its data.
        own = {name: getattr(value, name) for name in type(value).model_fields}
        return own | (value.model_extra or {})
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


_NEW = (
    "copy",
    "union",
    "intersection",
    "difference",
    "symmetric_difference",
    "__or__",
    "__and__",
    "__sub__",
    "__xor__",
)


def _ordering(plain: Any, ordered: type, name: str) -> Callable[..., Any]:
    method = getattr(plain, name)

    def ordering(self: Any, *others: Any) -> Any:
        found = method(self, *others)
        return found if found is NotImplemented else ordered(found)

    ordering.__name__ = name
    return ordering


for _plain, _ordered in ((set, OrderedSet), (frozenset, OrderedFrozenSet)):
    for _name in (*_NEW, *(f"__r{name.strip('_')}__" for name in _NEW if name.startswith("__"))):
        setattr(_ordered, _name, _ordering(_plain, _ordered, _name))
    WRITERS[_ordered] = write_set


def order_sets(value: Any) -> Any:
    """Replace plain sets by ordered ones in a built value: in containers, and in fields of dataclasses and models."""
    kind = type(value)
    if kind in _ORDERED:
        return _ORDERED[kind](map(order_sets, value))
    if kind is list:
        return list(map(order_sets, value))
    if isinstance(value, tuple):
        return tuple.__new__(kind, map(order_sets, value))  # a NamedTuple's own __new__ takes its fields one by one
    if kind is deque:
        return deque(map(order_sets, value), value.maxlen)
    if kind in (dict, OrderedDict):
        return kind(_ordered_items(value))
    if kind is defaultdict:
        return defaultdict(value.default_factory, _ordered_items(value))
    if has_fields(value):
        _order_fields(value)
    return value


_ORDERED: dict[type, type] = {set: OrderedSet, frozenset: OrderedFrozenSet}


def _ordered_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return [(order_sets(key), order_sets(item)) for key, item in value.items()]


def _order_fields(value: Any) -> None:
    """Replace sets in fields in place, bypassing ``__setattr__``: the value may be frozen, and new sets are equal."""
    own: dict[str, Any] = getattr(value, "__dict__", {})
    for name, item in list(own.items()):
        own[name] = order_sets(item)
    if isinstance(value, BaseModel):
        for name, item in (value.model_extra or {}).items():
            (value.model_extra or {})[name] = order_sets(item)
        return
    for field in dataclasses.fields(value):
        if field.name not in own and hasattr(value, field.name):  # in a slot
            object.__setattr__(value, field.name, order_sets(getattr(value, field.name)))
