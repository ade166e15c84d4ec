"""Stores the arguments and attributes of an exception, so that ``flows.exceptions.rebuild`` can make it again.

A rebuilt exception is of the class that was raised, so that ``except MyError`` does not depend on what the exception
contained. Its arguments come back as well as they can be stored; its attributes come back exactly, or as
``MissingValue``, which names itself when it is used. A flow gets the rebuilt exception in its first pass, too, so that
a replay sees the same.

Secrets: bodies and headers of HTTP messages are not stored, nor attributes with secret-sounding names, nor the repr of
an attribute that cannot be stored.
"""

from __future__ import annotations

import enum
import math
import reprlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from aft.codec import value_codec
from aft.errors import CodecError, is_a, is_interrupt, text_of
from aft.flows.exceptions.classes import DICT, TEXT, members_of, slots_of
from aft.flows.exceptions.rebuild import ARGS, CAUSE, MARK, UNMADE, can_make
from aft.flows.exceptions.rebuild import format_class as _name_of
from aft.security.redaction import hide_inputs, is_secret_name
from aft.texts import with_article

#: Bytes that the arguments of an exception may take as text, and all its attributes together.
MOST_ARGS = MOST_ATTRIBUTES = 16_384
#: Bytes of one attribute, and how many are kept.
MOST_ATTRIBUTE, MOST_NAMES = 8_192, 100
#: Exceptions within exceptions, and containers within containers, that are kept.
MOST_NESTED, MOST_LEVELS = 5, 6

_GROUP_MESSAGE: Any = BaseExceptionGroup.__dict__["message"]
_GROUP_LEAVES: Any = BaseExceptionGroup.__dict__["exceptions"]


@dataclass(frozen=True, slots=True)
class StoredException:
    """The stored form of an exception: two JSON texts, and whether they are complete."""

    args: str = field(repr=False)
    attributes: str = field(repr=False)
    exact: bool


class _Unkept(Exception):
    """Raised when a value cannot be stored as it is; its text says why."""


@dataclass(slots=True)
class _Limits:
    """Size limits; arguments that are too large are stored again under tighter ones."""

    text: int
    items: int
    attributes: bool
    #: Whether something was cut or replaced by its repr.
    lossy: bool = False


def store(error: BaseException) -> StoredException:
    """Store an exception's arguments and attributes. Never raises, whatever the exception's own methods do."""
    args, exact = _store_args(error)
    try:
        attributes, all_kept = _store_attributes(error, 0)
        return StoredException(args, _encode(attributes), exact and all_kept)
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        return StoredException(args, _encode(_unmade(error)), False)


def _store_args(error: BaseException) -> tuple[str, bool]:
    for limits in (
        _Limits(8_000, 100, True),
        _Limits(1_000, 50, False),
        _Limits(100, 50, False),
        _Limits(40, 5, False),
    ):
        try:
            text = _encode(_loosen(list(_args(error)), limits, 0, 0))
        except BaseException as raised:  # whatever a foreign class does when it is looked at
            if is_interrupt(raised):
                raise
            continue
        if len(text.encode()) <= MOST_ARGS:
            return text, not limits.lossy
    return "[]", False


def _args(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments to rebuild from; those of a group are its message and its exceptions."""
    if is_a(error, BaseExceptionGroup):
        return _GROUP_MESSAGE.__get__(error), list(_GROUP_LEAVES.__get__(error))
    found = ARGS.__get__(error)
    return found if isinstance(found, tuple) else ()


def _loosen(value: Any, limits: _Limits, level: int, nested: int) -> Any:
    """Simplify an argument; an unstorable one is replaced by its repr, a long list or tuple is cut."""
    kind = type(value)
    if kind in (list, tuple) and level < MOST_LEVELS:
        limits.lossy |= len(value) > limits.items
        return kind(_loosen(item, limits, level + 1, nested) for item in value[: limits.items])
    if kind is dict and level < MOST_LEVELS and len(value) <= limits.items and _is_plain(value):
        return {key: _loosen(item, limits, level + 1, nested) for key, item in value.items()}
    if kind is str:
        return _cut(value, limits)
    try:
        if isinstance(value, BaseException):
            return _simplify_exception(value, limits, nested)
        simple = _simplify(value, limits.items, level, nested)
        if len(_encode(simple)) <= limits.text:
            return simple
        why = "it was too large"
    except _Unkept as unkept:
        why = str(unkept)
    except BaseException as raised:  # whatever a foreign class does when it is looked at: the others are kept
        if is_interrupt(raised):
            raise
        why = f"it was {with_article(_name_of(kind))}"
    limits.lossy = True
    return {
        MARK: "lost",
        "why": why[:200],
        "text": _cut(_short_repr(value), _Limits(min(limits.text, 1_000), 1, False)),
    }


def _is_plain(value: dict[Any, Any]) -> bool:
    try:
        return MARK not in value and all(_json_key(key) is key for key in value)
    except _Unkept:
        return False


def _cut(text: str, limits: _Limits) -> str:
    sound = text[: limits.text + 1].encode("utf-8", "backslashreplace").decode()
    short = sound if len(sound) <= limits.text else sound[: limits.text - 1] + "…"
    limits.lossy |= short != text
    return short


def _simplify(value: Any, items: int, level: int, nested: int) -> Any:
    """Reduce a value to what the codec stores, and marked objects; raises _Unkept if it would not come back equal."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        plain = _simplify(value.value, items, level + 1, nested)
        return {MARK: "enum", "type": _name_of(kind), "name": value._name_, "v": plain}
    if kind is float and not math.isfinite(value):
        return {MARK: "float", "v": repr(value)}
    if isinstance(value, PurePath):
        flavour = "path" if isinstance(value, Path) else "windows" if isinstance(value, PureWindowsPath) else "posix"
        return {MARK: "path", "kind": flavour, "v": str(value)}
    if isinstance(value, BaseException):
        return _simplify_exception(value, _Limits(1_000, 50, nested < 2), nested)
    if kind in _CONTAINERS:
        return _simplify_container(value, items, level, nested)
    if isinstance(value, str | bytes) and len(value) > MOST_ATTRIBUTE:
        raise _Unkept(f"it was {len(value)} long")
    for base, exact in _EXACT.items():
        if isinstance(value, base) and kind is not bool:
            value = exact(value)
    try:
        _encode(value)
    except CodecError:
        raise _Unkept(f"it was {with_article(_name_of(kind))}, which cannot be stored") from None
    return value


#: A value of a subclass comes back as one of the class itself, which equals it.
_EXACT: dict[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
_CONTAINERS = (list, tuple, set, frozenset, dict, OrderedDict, defaultdict)


def _simplify_container(value: Any, items: int, level: int, nested: int) -> Any:
    if level >= MOST_LEVELS or len(value) > items:
        raise _Unkept(f"it was {with_article(type(value).__name__)} of {len(value)} items, too large or too deep")
    if isinstance(value, dict):
        made = {_json_key(key): _simplify(item, items, level + 1, nested) for key, item in value.items()}
        return {MARK: "dict", "v": made} if MARK in made else made
    if isinstance(value, set | frozenset):
        return type(value)(_json_key(item) for item in value)
    return type(value)(_simplify(item, items, level + 1, nested) for item in value)


def _json_key(key: Any) -> Any:
    try:
        _encode(key)
    except CodecError:
        raise _Unkept(f"it held {with_article(_name_of(type(key)))}, which cannot be stored there") from None
    return key


def _simplify_exception(error: BaseException, limits: _Limits, nested: int) -> Any:
    if nested >= MOST_NESTED:
        limits.lossy = True
        return {MARK: "lost", "why": "it was nested too deep", "text": _cut(_short_repr(error), limits)}
    kept = _store_attributes(error, nested + 1) if limits.attributes else (_unmade(error), not _has_attributes(error))
    attributes, exact = kept
    limits.lossy |= not exact
    return {
        MARK: "exception",
        "type": _name_of(type(error)),
        "lineage": [_name_of(base) for base in type(error).__mro__],
        "text": _cut(text_of(error), _Limits(min(limits.text, 1_000), 1, False)),
        "args": [_loosen(arg, limits, 1, nested + 1) for arg in _args(error)],
        "attributes": attributes,
    }


def _unmade(error: BaseException) -> dict[str, Any]:
    """Return the attribute that marks an exception whose class cannot be made again, or nothing."""
    return {} if can_make(type(error)) else {UNMADE: True}


def _has_attributes(error: BaseException) -> bool:
    return next(_attributes(error), None) is not None


def _store_attributes(error: BaseException, nested: int) -> tuple[dict[str, Any], bool]:
    """Simplify each attribute, or store why not; return them, and whether all are complete."""
    found = _unmade(error)
    size, exact = 0, True
    for name, value in _attributes(error):
        try:
            if len(found) >= MOST_NAMES:
                exact = False
                break
            kept = _store_attribute(error, name, value, nested)
            taken = len(_encode(kept).encode())
            if taken > MOST_ATTRIBUTE or size + taken > MOST_ATTRIBUTES:
                raise _Unkept(f"it took {taken} bytes, too much")
            size += taken
        except _Unkept as why:
            kept = {MARK: "lost", "why": str(why)[:200]}
        except BaseException as raised:  # whatever a foreign class does when it is looked at
            if is_interrupt(raised):
                raise
            kept = {MARK: "lost", "why": f"it was {with_article(_name_of(type(value)))}"[:200]}
        exact = exact and not (isinstance(kept, dict) and kept.get(MARK) in ("lost", "response"))
        found[name] = kept
    return found, exact


def _store_attribute(error: BaseException, name: str, value: Any, nested: int) -> Any:
    hidden = name == "params" and getattr(error, "hide_parameters", False)  # as SQLAlchemy hides them in its text
    if hidden or is_secret_name(name):
        raise _Unkept("its name says that it is secret")
    try:
        return _simplify(value, 100, 0, nested)
    except _Unkept:
        if (response := _simplify_response(value)) is not None:
            return response
        raise


def _simplify_response(value: Any) -> dict[str, Any] | None:
    """Return the stored form of an HTTP library's response, its status and reason; None if it is none."""
    for name in ("status_code", "status"):
        status = getattr(value, name, None)
        if isinstance(status, int) and 100 <= status <= 599:
            reason = getattr(value, "reason", None) or getattr(value, "reason_phrase", None)
            phrase = reason[:200] if isinstance(reason, str) and reason.isprintable() else None
            return {MARK: "response", "status": int(status), "reason": phrase, "truth": bool(value)}
    return None


def _attributes(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield an exception's own attributes: those of its slots, of its ``__dict__``, and its explicit cause."""
    seen: set[str] = {"fault", TEXT, UNMADE}
    for name, slot, owner in slots_of(type(error)):
        try:
            value = slot.__get__(error)
        except AttributeError:
            continue  # never set
        # Members of a class of Python's own, written in C, are None where they were never set.
        if name not in seen and (value is not None or "__slots__" in members_of(owner)):
            seen.add(name)
            yield name, value
    for name, value in list(DICT.__get__(error).items()):
        if isinstance(name, str) and name not in seen:
            yield name, value
    if error.__cause__ is not None:
        yield CAUSE, error.__cause__


def _encode(value: Any) -> str:
    return _ANYTHING.encode(value, "value")


def _short_repr(value: Any) -> str:
    try:
        return hide_inputs(_repr.repr(value))
    except BaseException as raised:  # a repr of the user's may do anything
        if is_interrupt(raised):
            raise
        return f"<{type(value).__qualname__}>"


_ANYTHING = value_codec(Any)
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 1_000
