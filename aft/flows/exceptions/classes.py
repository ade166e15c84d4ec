"""Finds classes by their stored names, and makes stand-ins for exceptions whose class is not there.

Rows may be crafted: classes are looked up among modules that are imported already, nothing is imported by a stored
name, and no code of a class is called, by looking at it or by deriving from it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from aft.errors import ActivityFailed

#: The attribute of a stand-in that holds its text.
TEXT = "$text"
#: Reads an exception's ``__dict__``, bypassing anything that its class defines under that name.
DICT: Any = BaseException.__dict__["__dict__"]
#: Py_TPFLAGS_HEAPTYPE: the class was made by a class statement, or dynamically.
HEAP_TYPE = 1 << 9


def find_class(name: str, base: type) -> Any:
    """Find a class by its stored name among imported modules; None if it is not there, or not of that base."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:split]))
        for part in parts[split:]:
            found = _members(found).get(part)
        if _is_class(found) and issubclass(found, base):
            return found
    return None


def members_of(cls: type) -> Mapping[str, Any]:
    """Return what a class itself defines."""
    return _members(cls)


def slots_of(cls: type) -> Iterator[tuple[str, Any, type]]:
    """Yield the slots of an exception's class, each with the class that defines it, the most derived first."""
    for base in mro_of(cls):
        if not any(base is known for known in (BaseException, BaseExceptionGroup, object)):
            for name, member in list(_members(base).items()):
                if type(member) is types.MemberDescriptorType:
                    yield name, member, base


class StandIn:
    """Base of all stand-ins: has the text of the original exception, and calls no hooks of the other bases."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Prevent calls of the bases' ``__init_subclass__``: this class is the first of them."""

    def __str__(self) -> str:
        return str(DICT.__get__(self).get(TEXT, ""))


class _Quiet(type):
    """Takes the methods by which Python inspects a class from ``type``, whatever metaclasses come after it.

    ABCMeta, for one, would use state that a stand-in has not set up, and find that of a base.
    """

    def __init_subclass__(cls) -> None:
        """Prevent calls of the ``__init_subclass__`` of the metaclasses after it."""

    __getattribute__ = type.__getattribute__
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__
    __eq__ = type.__eq__
    __hash__ = type.__hash__


def stand_in(name: str, lineage: tuple[str, ...], *, failed: bool) -> type[Exception]:
    """Make a class of this name, derived from all exceptions of its lineage that are imported.

    ``failed``: also from ActivityFailed; so is one without any such base.
    """
    there = (find_class(base, Exception) for base in lineage[1:])
    bases: list[type] = _most_derived([base for base in there if base is not None and can_derive(base)])
    if failed or not bases:
        bases = [ActivityFailed, *(base for base in bases if base is not Exception)]
    if len(bases) == 1 and bases[0] is ActivityFailed:
        return ActivityFailed
    return _stand_in(name, tuple(map(_Identity, bases)))


def can_derive(cls: type) -> bool:
    """Whether a class can be derived from this one without calling code of its metaclass."""
    own = [meta for meta in mro_of(type(cls)) if meta is not type and meta is not object]
    if not own:
        return True
    silent = all(flags_of(meta) & HEAP_TYPE and "mro" not in _members(meta) for meta in own)
    return silent and can_derive(type(cls))


def mro_of(cls: type) -> tuple[type, ...]:
    """Return the method resolution order of a class, bypassing its metaclass."""
    found: tuple[type, ...] = type.__getattribute__(cls, "__mro__")
    return found


def flags_of(cls: type) -> int:
    """Return Python's flags of a class, bypassing its metaclass."""
    found: int = type.__getattribute__(cls, "__flags__")
    return found


class _Identity:
    """Represents a class in a cache key, by identity: the class may define its own hash."""

    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __hash__(self) -> int:
        return id(self.cls)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.cls is other.cls


@lru_cache(256)
def _stand_in(name: str, bases: tuple[_Identity, ...]) -> type[Exception]:
    module, _, short = name.rpartition(".")
    for chosen in (bases, bases[:1]):
        try:
            made: type[Exception] = _derive(short, (StandIn, *(base.cls for base in chosen)), module)
            return made
        except (TypeError, ValueError):  # they cannot be laid out, or ordered, together; a crafted name
            continue
    return ActivityFailed


def _derive(name: str, bases: tuple[type, ...], module: str) -> type[Any]:
    """Make a class without calling the metaclasses of its bases; its own is derived from them, as Python demands.

    They can be ordered: the metaclass of the original class was derived from them, too.
    """
    metas = _most_derived([type(base) for base in bases])
    meta = type if all(found is type for found in metas) else _derive("StandInType", (_Quiet, *metas), __name__)
    return type.__new__(meta, name, bases, {"__module__": module})


def _most_derived(classes: list[type]) -> list[type]:
    """Return the classes, in their order, without duplicates and without bases of others among them."""
    found: list[type] = []
    for cls in classes:
        if not any(_is_base(cls, known) for known in found):
            found = [*(known for known in found if not _is_base(known, cls)), cls]
    return found


def _is_base(base: type, cls: type) -> bool:
    # Not issubclass: that may call the base's metaclass.
    return any(base is one for one in mro_of(cls))


def _members(found: object) -> Mapping[str, Any]:
    # Not getattr, nor vars: a module or class may run code on attribute access, even import.
    look = type.__getattribute__ if _is_class(found) else object.__getattribute__
    try:
        members = look(found, "__dict__")
    except AttributeError:
        return {}
    return members if isinstance(members, Mapping) else {}


def _is_class(found: object) -> TypeGuard[type]:
    # Not isinstance: that may read the object's own ``__class__``.
    return issubclass(type(found), type)
