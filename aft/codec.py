"""How does a value become JSON text, and the same value again?

The text alone says what each value is: what JSON has no word for is tagged, ``{"$aft": "date", "v":
"2024-02-29"}``. The annotation says what to build of it: a dataclass, a model, an enum. So text can be read
without the user's code (by the dispatcher, the console), no type is ever looked up by a stored name, and
nothing is ever unpickled.

What was encoded comes back equal and of the type that the annotation says, or it is refused when it is
encoded, with the path to the offender. Where the annotation builds something (dataclass, model, enum …) that
is not assumed but tried: the value is rebuilt from what would be stored, and compared. Reading is lenient
where nothing is lost, so that JSON written by hand is welcome: ``"2024-02-29"`` is read as a date where a
date is declared.

Codecs hold no state that changes; they may be used from several threads.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import inspect
import json
import math
import operator
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import typing_extensions
from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import PydanticSerializationError, to_jsonable_python

from aft.errors import CodecError, DefinitionError

#: Bytes of one encoded value, or of all arguments of one call together.
MOST_BYTES = 1_048_576
#: Brackets open at once in the text: a list or dict takes one, a tuple or set two, a dict with keys that are
#: not all str three.
MOST_DEPTH = 64
#: Bytes that the arguments of an exception may take.
MOST_LOOSE_BYTES = 16_384

#: The key that marks an object as a tagged value; a dict that holds this key is tagged itself.
_MARK = "$aft"
#: Python itself refuses to spell integers of more than 4300 digits.
_BIG = 10**4_000

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


class _Refused(Exception):
    """Why a value cannot be stored; each container on the way out adds the step that leads to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def under(self, step: object) -> None:
        """Note the key, field or index under which the offender was found."""
        self._steps.append(_step(step))

    def at(self, where: str) -> CodecError:
        """Make the error that names the whole path, beginning with ``where``."""
        path = where + "".join(reversed(self._steps))
        return CodecError(f"{path}: {self.reason}", path=path)


def _step(step: object) -> str:
    if isinstance(step, str):
        return f".{step}" if step.isidentifier() else f"[{step[:40]!r}]"
    if isinstance(step, int) and abs(step) < 10**18:
        return f"[{step}]"
    return f"[<{type(step).__name__}>]"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --------------------------------------------------------------------------------------------- tagging


def _tag(value: Any, depth: int = 0) -> Any:
    """Turn a value of exactly the known types into what JSON has words for; raises :class:`_Refused`."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _sound(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        if not -_BIG < value < _BIG:
            raise _Refused("an integer of more than 4000 digits cannot be stored")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _Refused(f"{value!r} is not a number that JSON knows; use None or a text for it")
        return value
    writer = _WRITERS.get(kind)
    if writer is None:
        raise _Refused(
            f"a {_name(kind)} cannot be stored where no type is declared for it; "
            "annotate it with its type, or pass JSON types"
        )
    return writer(value, depth)


def _sound(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Refused("the text holds a lone surrogate, which is no character; decode it properly first") from None
    return text


def _deeper(depth: int, by: int) -> int:
    if depth + by > MOST_DEPTH:
        raise _Refused(f"nested more than {MOST_DEPTH} deep (or it holds itself)")
    return depth + by


def _tag_items(items: Any, depth: int) -> list[Any]:
    tagged: list[Any] = []
    try:
        for item in items:
            tagged.append(_tag(item, depth))
    except _Refused as refused:
        refused.under(len(tagged))
        raise
    return tagged


def _write_list(value: list[Any], depth: int) -> Any:
    return _tag_items(value, _deeper(depth, 1))


def _write_tuple(value: tuple[Any, ...], depth: int) -> Any:
    return {_MARK: "tuple", "v": _tag_items(value, _deeper(depth, 2))}


def _write_set(value: Any, depth: int) -> Any:
    # Sorted: the order of a set differs between processes, and the same value must always give the same text.
    items = sorted(_tag_items(value, _deeper(depth, 2)), key=_dumps)
    return {_MARK: type(value).__name__, "v": items}


def _write_dict(value: dict[Any, Any], depth: int) -> Any:
    if _MARK in value or not all(type(key) is str for key in value):
        return _write_pairs(value, depth)
    inside = _deeper(depth, 1)
    tagged: dict[str, Any] = {}
    key = ""
    try:
        for key, item in value.items():
            tagged[key if key.isascii() else _sound(key)] = _tag(item, inside)
    except _Refused as refused:
        refused.under(key)
        raise
    return tagged


def _write_pairs(value: dict[Any, Any], depth: int) -> Any:
    inside = _deeper(depth, 3)
    pairs: list[Any] = []
    key: Any = None
    try:
        for key, item in value.items():
            pairs.append([_tag(key, inside), _tag(item, inside)])
    except _Refused as refused:
        refused.under(key)
        raise
    return {_MARK: "dict", "v": pairs}


def _write_decimal(value: Decimal, depth: int) -> Any:
    if not value.is_finite():
        raise _Refused(f"Decimal {value!s} is not a number; use None or a text for it")
    return {_MARK: "decimal", "v": str(value)}


def _write_bytes(value: bytes, depth: int) -> Any:
    if len(value) > MOST_BYTES:
        raise _Refused(f"{len(value)} bytes; {MOST_BYTES} are the most; store them elsewhere and pass a reference")
    return {_MARK: "bytes", "v": base64.b64encode(value).decode("ascii")}


def _write_clock(value: datetime | time, depth: int) -> Any:
    """Spell a datetime or time; a zone by its key, because its rules matter, not one moment's offset."""
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    tagged: dict[str, Any] = {_MARK: type(value).__name__}
    if zone is not None:
        tagged["v"], tagged["zone"] = value.replace(tzinfo=None).isoformat(), zone
    elif value.tzinfo is not None and value.utcoffset() is None:
        raise _Refused(f"its time zone, a {_name(type(value.tzinfo))}, has no offset; use zoneinfo or timezone.utc")
    else:
        tagged["v"] = value.isoformat()
    if value.fold:
        tagged["fold"] = value.fold
    return tagged


_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    list: _write_list,
    dict: _write_dict,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_set,
    datetime: _write_clock,
    time: _write_clock,
    date: lambda value, depth: {_MARK: "date", "v": value.isoformat()},
    timedelta: lambda value, depth: {_MARK: "timedelta", "v": value // timedelta(microseconds=1)},
    Decimal: _write_decimal,
    UUID: lambda value, depth: {_MARK: "uuid", "v": str(value)},
    bytes: _write_bytes,
}


# ------------------------------------------------------------------------------------------- untagging


def _untag(pairs: list[tuple[str, Any]]) -> Any:
    """Build one object of the text; called from the innermost outwards: what it holds is built already."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CodecError("a key appears twice in the stored text")
    if _MARK not in found:
        return found
    tag = found.pop(_MARK)
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        raise CodecError(f"the stored text holds the unknown tag {str(tag)[:40]!r}; was it written by a newer aft?")
    try:
        return reader(**found)
    except (ValueError, TypeError, ArithmeticError, LookupError, OSError) as error:
        raise CodecError(f"the stored text holds a malformed {tag}: {error}") from None


def _read_list(v: Any) -> list[Any]:
    if type(v) is not list:
        raise TypeError("a list is expected")
    return v


def _read_text(v: Any) -> str:
    if type(v) is not str:
        raise TypeError("a text is expected")
    return v


def _read_dict(v: Any) -> dict[Any, Any]:
    found = dict(map(_read_list, _read_list(v)))
    if len(found) != len(v):
        raise ValueError("a key appears twice")
    return found


def _read_timedelta(v: Any) -> timedelta:
    if type(v) is not int:
        raise TypeError("a whole number is expected")
    return timedelta(microseconds=v)


def _read_decimal(v: Any) -> Decimal:
    found = Decimal(_read_text(v))
    if not found.is_finite():
        raise ValueError("not a number")
    return found


def _read_bytes(v: Any) -> bytes:
    return base64.b64decode(_read_text(v), validate=True)


def _read_datetime(v: Any, zone: Any = None, fold: Any = 0) -> datetime:
    found = datetime.fromisoformat(_read_text(v))
    return found.replace(tzinfo=_zone(found.tzinfo, zone), fold=fold)


def _read_time(v: Any, zone: Any = None, fold: Any = 0) -> time:
    found = time.fromisoformat(_read_text(v))
    return found.replace(tzinfo=_zone(found.tzinfo, zone), fold=fold)


def _zone(offset: tzinfo | None, zone: Any) -> tzinfo | None:
    return offset if zone is None else ZoneInfo(_read_text(zone))


_READERS: dict[str, Callable[..., Any]] = {
    "dict": _read_dict,
    "tuple": lambda v: tuple(_read_list(v)),
    "set": lambda v: set(_read_list(v)),
    "frozenset": lambda v: frozenset(_read_list(v)),
    "datetime": _read_datetime,
    "time": _read_time,
    "date": lambda v: date.fromisoformat(_read_text(v)),
    "timedelta": _read_timedelta,
    "decimal": _read_decimal,
    "uuid": lambda v: UUID(_read_text(v)),
    "bytes": _read_bytes,
}


# ------------------------------------------------------------------------------------------------ text

#: A whole string, or one bracket. Possessive: unterminated or hostile text costs one pass, never more.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _text(tagged: Any, where: str) -> str:
    """Spell what was tagged; refuses what is too large."""
    text = _dumps(tagged)
    size = len(text) if text.isascii() else len(text.encode())
    if size > MOST_BYTES:
        raise CodecError(
            f"{where}: {size} bytes as JSON; {MOST_BYTES} are the most; store it elsewhere and pass a reference",
            path=where,
        )
    return text


def _parse(text: str) -> Any:
    """Read text into exactly the known types. Costs are bounded before anything is parsed."""
    _check_limits(text)
    try:
        found = _decoder.decode(text)
    except ValueError as error:
        raise CodecError(f"the stored text is not JSON: {error}") from None
    if _SURROGATE.search(text):  # rare: a parser of others may have escaped what aft writes out
        _refuse_surrogates(found)
    return found


def _check_limits(text: str) -> None:
    if len(text) > MOST_BYTES:
        raise CodecError(f"the stored text has {len(text)} characters; {MOST_BYTES} bytes are the most")
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise CodecError("the stored text holds a lone surrogate") from None
        if size > MOST_BYTES:
            raise CodecError(f"the stored text has {size} bytes; {MOST_BYTES} are the most")
    if text.count("[") + text.count("{") > MOST_DEPTH:
        _check_depth(text)


def _check_depth(text: str) -> None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        if (mark := found[0]) in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise CodecError(f"the stored text is nested more than {MOST_DEPTH} deep")
        elif mark in "]}":
            depth -= 1


def _read_float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise CodecError(f"the stored number {text[:40]} is out of range")
    return found


def _refuse_constant(text: str) -> Any:
    raise CodecError(f"the stored text holds {text}, which is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_untag, parse_float=_read_float, parse_constant=_refuse_constant)


def _refuse_surrogates(found: Any) -> None:
    try:
        _tag(found)
    except _Refused as refused:
        raise refused.at("value") from None


# ---------------------------------------------------------------------------------- what a type builds


def _simplify(value: Any, depth: int = 0) -> Any:
    """Reduce what pydantic dumped to exactly the known types; comparing finds what is lost by it."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, Enum):
        return _simplify(value.value, _deeper(depth, 1))
    for base in _CONTAINERS:
        if isinstance(value, base):
            return _simplify_container(base, value, _deeper(depth, 1))
    for scalar, exact in _EXACT.items():
        if isinstance(value, scalar):
            return exact(value)
    return _simplify_other(value)


_CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
_SCALARS = frozenset({*_WRITERS, str, int, bool, float, type(None)}.difference(_CONTAINERS))
#: How a value of a subclass becomes one of the class itself; datetime before date, whose subclass it is.
_EXACT: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    datetime: lambda value: datetime.combine(value.date(), value.timetz()),
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time.fromisoformat(value.replace(tzinfo=None).isoformat()).replace(
        tzinfo=value.tzinfo, fold=value.fold
    ),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
}


def _simplify_container(base: type, value: Any, depth: int) -> Any:
    if base is dict:
        return {_simplify(key, depth): _simplify_under(key, item, depth) for key, item in dict.items(value)}
    return base(_simplify_under(index, item, depth) for index, item in enumerate(value))


def _simplify_under(step: object, value: Any, depth: int) -> Any:
    try:
        return _simplify(value, depth)
    except _Refused as refused:
        refused.under(step)
        raise


def _simplify_other(value: Any) -> Any:
    """Spell what pydantic knows beyond our own types (paths, addresses, deques …) the way it does in JSON."""
    refused = _Refused(f"a {_name(type(value))} cannot be stored; pass what it stands for instead")
    if isinstance(value, Iterator) or callable(value):  # reading an iterator would use it up
        raise refused
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise refused from None


def _compare(value: Any, rebuilt: Any) -> None:
    """Raise :class:`_Refused` where the rebuilt value is not the one that was given."""
    if value is rebuilt:
        return
    kind = type(value)
    if dataclasses.is_dataclass(value) or isinstance(value, BaseModel | Enum):
        _compare_kinds(kind is type(rebuilt), value, rebuilt)
        if not isinstance(value, Enum):
            for name, ours in _fields(value).items():
                _compare_under(name, ours, _fields(rebuilt).get(name, rebuilt))
        elif value != rebuilt:
            raise _Refused(f"this {_name(kind)} would come back as another one")
    elif isinstance(value, dict):
        _compare_kinds(type(rebuilt) in (kind, dict), value, rebuilt)
        _compare_dicts(value, rebuilt)
    elif isinstance(value, list | tuple):
        _compare_kinds(type(rebuilt) is kind, value, rebuilt)
        _compare_lengths(value, rebuilt)
        for index, (ours, theirs) in enumerate(zip(value, rebuilt, strict=True)):
            _compare_under(index, ours, theirs)
    elif isinstance(value, set | frozenset):
        _compare_kinds(type(rebuilt) is kind, value, rebuilt)
        _compare_sets(value, rebuilt)
    else:
        _compare_scalars(value, rebuilt)


def _compare_under(step: object, value: Any, rebuilt: Any) -> None:
    try:
        _compare(value, rebuilt)
    except _Refused as refused:
        refused.under(step)
        raise


def _compare_kinds(same: bool, value: Any, rebuilt: Any) -> None:
    if not same:
        raise _Refused(
            f"a {_name(type(value))} does not fit the declared type: "
            f"it would come back as a {_name(type(rebuilt))}; declare the type that it has"
        )


def _compare_lengths(value: Any, rebuilt: Any) -> None:
    if len(value) != len(rebuilt):
        raise _Refused(f"of its {len(value)} items {len(rebuilt)} would come back; declare all that it may hold")


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        # Private attributes are left out: their model keeps them out of its data.
        own = {name: getattr(value, name) for name in type(value).model_fields}
        return own | (value.model_extra or {})
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def _compare_dicts(value: dict[Any, Any], rebuilt: dict[Any, Any]) -> None:
    for key in value:
        if key not in rebuilt:
            raise _Refused(f"its key {str(key)[:40]!r} would be lost; declare all that it may hold")
    _compare_lengths(value, rebuilt)
    keys = {key: key for key in rebuilt}
    for key, ours in value.items():
        _compare_under(key, key, keys[key])
        _compare_under(key, ours, rebuilt[key])


def _compare_sets(value: Any, rebuilt: Any) -> None:
    _compare_lengths(value, rebuilt)
    partners = {item: item for item in rebuilt}
    for item in value:
        _compare_under(item, item, partners.get(item, rebuilt))


def _compare_scalars(value: Any, rebuilt: Any) -> None:
    kind, other = type(value), type(rebuilt)
    # An int for a float is fine, so is a subclass instance that equals what comes back. A bool is no int.
    fits = kind is other or (isinstance(value, other) and kind is not bool) or (kind is int and other is float)
    _compare_kinds(fits, value, rebuilt)
    if not _equal(value, rebuilt):
        raise _Refused(f"this {_name(kind)} would not come back equal to what it is")


def _equal(value: Any, rebuilt: Any) -> bool:
    try:
        if isinstance(value, datetime):  # == calls two moments different where a clock is set back
            return bool(value.isoformat() == rebuilt.isoformat())
        return bool(value == rebuilt)
    except Exception:  # whatever a foreign class does in ==, it has not said "equal"
        return False


# ----------------------------------------------------------------------------------------- annotations

_PLAIN = frozenset({type(None), None, *_WRITERS, str, int, bool, float})
_OPEN = frozenset({Any, object, inspect.Parameter.empty, list, dict, tuple, set, frozenset})


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType


def _is_plain(annotation: Any) -> bool:
    """Whether the annotation builds nothing: what was untagged is the value already."""
    if annotation is Ellipsis or _among(annotation, _OPEN) or _among(annotation, _PLAIN):
        return True
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return all(type(choice) in (str, int, bool, type(None)) for choice in inner)
    return (_is_union(origin) or origin in _CONTAINERS) and all(map(_is_plain, inner))


def _is_open(annotation: Any) -> bool:
    """Whether some part of a plain annotation declares no type."""
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return _among(annotation, _OPEN) or any(map(_is_open, typing.get_args(annotation)))


def _among(annotation: Any, known: frozenset[Any]) -> bool:
    try:
        return annotation in known
    except TypeError:  # not hashable
        return False


def _modern(annotation: Any, within: tuple[Any, ...] = ()) -> Any:
    """Replace ``typing.TypedDict``, which pydantic refuses before Python 3.12, by its newer equal."""
    if sys.version_info >= (3, 12) or annotation in within:
        return annotation
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _modern_typeddict(annotation, (*within, annotation))
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if not (_is_union(origin) or origin in _CONTAINERS or origin in (Mapping, Sequence)):
        return annotation
    newer = tuple(_modern(part, within) for part in inner)
    if newer == inner:
        return annotation
    return functools.reduce(operator.or_, newer) if _is_union(origin) else origin[newer]


def _modern_typeddict(annotation: Any, within: tuple[Any, ...]) -> Any:
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(annotation, include_extras=True).items():
        required = name in annotation.__required_keys__
        if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
            required, hint = typing.get_origin(hint) is typing.Required, typing.get_args(hint)[0]
        wrapper: Any = typing_extensions.Required if required else typing_extensions.NotRequired
        fields[name] = wrapper[_modern(hint, within)]
    make: Any = typing_extensions.TypedDict
    return make(annotation.__name__, fields)


# ---------------------------------------------------------------------------------------------- codecs


class ValueCodec:
    """Encodes and decodes the values of one annotation; made by :func:`value_codec`."""

    __slots__ = ("_adapter", "_open", "_plain", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        untyped = annotation is Any or annotation is object or annotation is inspect.Parameter.empty
        self._adapter: TypeAdapter[Any] | None = None if untyped else _adapter(annotation)
        self._plain = _is_plain(annotation)
        self._open = self._plain and _is_open(annotation)

    def encode(self, value: Any, where: str) -> str:
        """Spell the value as JSON; raises CodecError whose path begins with ``where``."""
        return _text(self.tag(value, where), where)

    def decode(self, text: str) -> Any:
        """Read what :meth:`encode` wrote, or JSON written by hand; raises only CodecError."""
        return self.build(_parse(text), "value")

    def tag(self, value: Any, where: str, depth: int = 0) -> Any:
        """Turn the value into what JSON has words for: :meth:`encode` without the text, part of a whole."""
        try:
            if self._adapter is None:
                return _tag(value, depth)
            if self._plain and (tagged := self._tag_plain(value, depth)) is not _NOT_SO:
                return tagged
            return self._tag_built(value, depth)
        except _Refused as refused:
            raise refused.at(where) from None

    def build(self, found: Any, where: str) -> Any:
        """Make the declared type of what was read from text: the other half of :meth:`decode`."""
        try:
            return self._build(found)
        except _Refused as refused:
            raise refused.at(where) from None

    def _tag_plain(self, value: Any, depth: int) -> Any:
        """The short way, for annotations that build nothing; where it does not lead, the long way decides."""
        assert self._adapter is not None
        try:
            checked = self._adapter.validate_python(value, strict=True)
        except (ValidationError, RecursionError):
            return _NOT_SO
        try:
            tagged = _tag(checked, depth)
        except _Refused:
            if self._open:
                raise
            return _NOT_SO
        return tagged if checked == value else _NOT_SO

    def _tag_built(self, value: Any, depth: int) -> Any:
        """The long way: dump, then rebuild from what would be stored, and compare."""
        simple = _simplify(self._dump(value))
        tagged = _tag(simple, depth)
        _compare(value, self._build(simple))
        return tagged

    def _dump(self, value: Any) -> Any:
        assert self._adapter is not None
        options: dict[str, Any] = {"warnings": False, "round_trip": True, "by_alias": True}
        try:
            try:
                return self._adapter.dump_python(value, **options)
            except TypeError:  # a set of dataclasses would be one of dicts, which cannot be; as JSON it is a list
                return self._adapter.dump_python(value, mode="json", **options)
        except Exception as error:  # serializers of the user's models run here
            raise _Refused(f"pydantic cannot dump it: {_first_line(error)}") from None

    def _build(self, simple: Any) -> Any:
        if self._adapter is None:
            return simple
        try:
            return self._adapter.validate_python(simple)
        except ValidationError as error:
            raise _misfit(error, simple, self.annotation) from None
        except Exception as error:  # validators and __post_init__ of the user's types run here
            raise _Refused(f"{_spell(self.annotation)} cannot be built: {_first_line(error)}") from None


#: What the short way answers where it does not lead to the end; None is a value.
_NOT_SO = object()


def _misfit(error: ValidationError, simple: Any, annotation: Any) -> _Refused:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    steps, offender = _resolve(first["loc"], simple)
    refused = _Refused(f"a {_name(type(offender))} does not fit {_spell(annotation)}: {first['msg']}")
    for step in reversed(steps):
        refused.under(step)
    return refused


def _resolve(loc: tuple[int | str, ...], simple: Any) -> tuple[list[object], Any]:
    """Follow pydantic's location as far as it leads into the value; names of union members lead nowhere."""
    steps: list[object] = []
    for step in loc:
        if (isinstance(simple, dict) and step in simple) or _is_index(step, simple):
            simple = simple[step]
            steps.append(step)
    return steps, simple


def _is_index(step: int | str, simple: Any) -> bool:
    return isinstance(simple, list | tuple) and isinstance(step, int) and step < len(simple)


def _spell(annotation: Any) -> str:
    return _name(annotation) if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


_codecs: dict[tuple[Any, str], ValueCodec] = {}


def value_codec(annotation: Any) -> ValueCodec:
    """Return the codec for an annotation, made once; raises DefinitionError for an unstorable type."""
    # The spelling is part of the key: A | B equals B | A, yet the order decides between two that fit alike.
    key = (annotation, str(annotation))
    try:
        if (known := _codecs.get(key)) is not None:
            return known
    except TypeError:  # an annotation that cannot be hashed: Annotated[int, […]]
        return ValueCodec(annotation)
    return _codecs.setdefault(key, ValueCodec(annotation))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    advice = "make it a dataclass or a pydantic model, or pass an id instead"
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_modern(annotation))
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except PydanticSchemaGenerationError:
        raise DefinitionError(f"values of type {_spell(annotation)} cannot be stored; {advice}") from None
    except (PydanticUndefinedAnnotation, NameError) as error:
        raise DefinitionError(
            f"type {_spell(annotation)} refers to a name that cannot be found: {_first_line(error)}; "
            "import or define it at the top of its module"
        ) from None
    except (PydanticUserError, TypeError) as error:
        raise DefinitionError(f"type {_spell(annotation)} cannot be stored: {_first_line(error)}") from None
    return adapter


class ArgumentsCodec:
    """Encodes and decodes the arguments of one function, by name; made by :func:`arguments_codec`."""

    def __init__(self, signature: inspect.Signature, codecs: Mapping[str, ValueCodec], function: str) -> None:
        self.signature = signature
        self.names = tuple(signature.parameters)
        self._codecs = codecs
        self._function = function

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind a call as Python would, defaults applied; a wrong call raises Python's own TypeError."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function}() {error}") from None
        bound.apply_defaults()
        return bound

    def encode(self, bound: inspect.BoundArguments) -> str:
        """Spell the arguments as one JSON object; raises CodecError, its path begins with the parameter."""
        tagged: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            starred = self.signature.parameters[name].kind is _STAR
            tagged[name] = self._codecs[name].tag(list(value) if starred else value, name, 1)
        return _text(tagged, f"the arguments of {self._function}()")

    def decode(self, text: str) -> dict[str, Any]:
        """Read arguments by name, each as its annotation says; raises only CodecError."""
        found = _parse(text)
        if type(found) is not dict:
            raise CodecError(f"the arguments of {self._function}() must be an object, not a {_name(type(found))}")
        self._refuse_surplus(found)
        built = {name: self._codecs[name].build(value, name) for name, value in found.items()}
        for name in built:
            if self.signature.parameters[name].kind is _STAR:
                built[name] = tuple(built[name])
        return built

    def call_arguments(self, decoded: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arrange decoded arguments for ``fn(*args, **kwargs)``.

        A parameter that the function got since, with a default, may be missing; any other difference is a
        CodecError.
        """
        self._refuse_surplus(decoded)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is _STAR:
                args.extend(decoded.get(name, ()))
            elif parameter.kind is _STARS:
                kwargs.update(decoded.get(name, {}))
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = self._given(decoded, parameter)
            else:
                args.append(self._given(decoded, parameter))
        return tuple(args), kwargs

    def _given(self, decoded: Mapping[str, Any], parameter: inspect.Parameter) -> Any:
        if (name := parameter.name) in decoded:
            return decoded[name]
        if parameter.default is inspect.Parameter.empty:
            raise CodecError(
                f"the stored arguments of {self._function}() lack {name!r}; give that parameter a default",
                path=name,
            )
        return parameter.default

    def _refuse_surplus(self, found: Mapping[Any, Any]) -> None:
        for name in found:
            if name not in self._codecs:
                raise CodecError(
                    f"the stored arguments of {self._function}() hold {str(name)[:40]!r}, "
                    f"which is no parameter of it; it has {', '.join(map(repr, self.names)) or 'none'}",
                    path=str(name)[:40],
                )


_STAR = inspect.Parameter.VAR_POSITIONAL
_STARS = inspect.Parameter.VAR_KEYWORD


def arguments_codec(fn: Callable[..., Any]) -> ArgumentsCodec:
    """Make the codec for a function's parameters.

    Raises DefinitionError that names the function and the parameter whose type cannot be resolved or stored,
    or whose default does not fit its own annotation.
    """
    signature, hints = inspect.signature(fn), _hints(fn)
    codecs: dict[str, ValueCodec] = {}
    for name, parameter in signature.parameters.items():
        try:
            codecs[name] = value_codec(_declared(parameter, hints.get(name, Any)))
            if parameter.default is not inspect.Parameter.empty:
                codecs[name].tag(parameter.default, f"the default of {name}", 1)
        except (DefinitionError, CodecError) as error:
            raise DefinitionError(f"parameter {name!r} of {_function_name(fn)}(): {error}") from None
    return ArgumentsCodec(signature, codecs, _function_name(fn))


def result_codec(fn: Callable[..., Any]) -> ValueCodec:
    """Make the codec for a function's result; raises DefinitionError that names the function."""
    try:
        return value_codec(_hints(fn).get("return", Any))
    except DefinitionError as error:
        raise DefinitionError(f"the result of {_function_name(fn)}(): {error}") from None


def _declared(parameter: inspect.Parameter, hint: Any) -> Any:
    """What is stored under a parameter's name: a list for ``*args``, a dict for ``**kwargs``."""
    if parameter.kind not in (_STAR, _STARS):
        return hint
    if typing.get_origin(hint) is typing.Unpack:
        if parameter.kind is _STAR:
            raise DefinitionError("unpacked tuples in *args are not supported; write *args: SomeType")
        return typing.get_args(hint)[0]
    return list[hint] if parameter.kind is _STAR else dict[str, hint]


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Resolve the annotations of a function; raises DefinitionError that names the one that cannot be."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except Exception:  # evaluating a written annotation may raise anything
        inner = inspect.unwrap(fn)
        for name, annotation in getattr(inner, "__annotations__", {}).items():
            try:
                one = types.SimpleNamespace(__annotations__={name: annotation})
                typing.get_type_hints(one, globalns=getattr(inner, "__globals__", {}), include_extras=True)
            except Exception as error:
                what = "the result" if name == "return" else f"parameter {name!r}"
                raise DefinitionError(
                    f"{what} of {_function_name(fn)}() is annotated {annotation!r}, which cannot be resolved "
                    f"({_first_line(error)}); import or define the name at the top of the module, "
                    "not under TYPE_CHECKING"
                ) from None
        raise


def _function_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


# --------------------------------------------------------------------------------------------- untyped

_ANY = value_codec(Any)
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 1_000


def decode_untyped(text: str) -> Any:
    """Read text without an annotation: tagged values come back, objects are dicts; raises only CodecError."""
    return _parse(text)


def encode_loosely(value: Any) -> tuple[str, bool]:
    """Spell a value as well as it goes, for arguments of exceptions: never raises, at most MOST_LOOSE_BYTES.

    The second answer is False if something was cut or had to be replaced by its repr. The text is for
    :func:`decode_untyped`.
    """
    try:
        text = _ANY.encode(value, "value")
        if len(text.encode()) <= MOST_LOOSE_BYTES:
            return text, True
    except CodecError:
        pass
    text = _dumps(_tag(_loosen(value, 0)))
    if len(text.encode()) > MOST_LOOSE_BYTES:
        text = _dumps(_cut(_repr(value)))
    return text, False


def _loosen(value: Any, depth: int) -> Any:
    """Replace what cannot be stored; outer containers stay, so that an exception keeps its number of args."""
    if type(value) in (list, tuple) and depth < 4 and len(value) <= 100:
        return type(value)(_loosen(item, depth + 1) for item in value)
    if type(value) is dict and depth < 4 and len(value) <= 100:
        return {_loosen_key(key): _loosen(item, depth + 1) for key, item in value.items()}
    if type(value) is str:
        return _cut(value)
    return value if _is_exact(value, depth * 3) else _cut(_repr(value))


def _loosen_key(key: Any) -> Any:
    if type(key) is str:
        return _cut(key)
    return key if type(key) in _SCALARS and _is_exact(key, 0) else _cut(_repr(key))


def _is_exact(value: Any, depth: int) -> bool:
    try:
        _tag(value, depth)
    except _Refused:
        return False
    return True


def _repr(value: Any) -> str:
    try:
        return _short.repr(value)
    except Exception:  # a repr of the user's may do anything
        return f"<{type(value).__qualname__}>"


def _cut(text: str, most: int = 1_000) -> str:
    sound = text[: most + 1].encode("utf-8", "backslashreplace").decode()
    return sound if len(sound) <= most else sound[: most - 1] + "…"
