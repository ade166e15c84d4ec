"""Classifies annotations: without a type, of known types only, or of types that pydantic builds."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import typing_extensions
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from aft.codec.refusal import first_line, format_annotation
from aft.codec.tags import CONTAINERS, SCALARS
from aft.errors import DefinitionError

#: Tuples and not sets: an annotation need not be hashable.
_UNTYPED = (Any, object, inspect.Parameter.empty)
_OPEN = (*_UNTYPED, *CONTAINERS)
_PLAIN = (*_OPEN, *SCALARS, None, ...)


def is_untyped(annotation: Any) -> bool:
    """Return whether the annotation declares no type."""
    return annotation in _UNTYPED


def is_plain(annotation: Any) -> bool:
    """Return whether the annotation builds nothing: the untagged value is the value."""
    if annotation in _PLAIN:
        return True
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return all(type(choice) in (str, int, bool, type(None)) for choice in inner)
    return (_is_union(origin) or origin in CONTAINERS) and all(map(is_plain, inner))


def is_open(annotation: Any) -> bool:
    """Return whether some part of a plain annotation declares no type."""
    return annotation in _OPEN or any(map(is_open, typing.get_args(annotation)))


def holds_sets(adapter: TypeAdapter[Any]) -> bool:
    """Return whether a value that pydantic builds may contain a set."""
    schema = str(adapter.core_schema)
    return "'type': 'set'" in schema or "'type': 'frozenset'" in schema


def adapter_for(annotation: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter for the annotation; raises DefinitionError for a type that cannot be stored."""
    try:
        found: TypeAdapter[Any] = TypeAdapter(_modern(annotation))
        if not found.pydantic_complete:
            found.rebuild(raise_errors=True)
    except PydanticSchemaGenerationError:
        raise DefinitionError(
            f"values of type {format_annotation(annotation)} cannot be stored; "
            "make it a dataclass or a pydantic model, or pass an id instead"
        ) from None
    except NameError as error:
        raise DefinitionError(
            f"type {format_annotation(annotation)} refers to a name that cannot be found: {first_line(error)}; "
            "import or define it at the top of its module"
        ) from None
    except (PydanticUserError, TypeError) as error:
        raise DefinitionError(f"type {format_annotation(annotation)} cannot be stored: {first_line(error)}") from None
    return found


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType


def _modern(annotation: Any, within: tuple[Any, ...] = ()) -> Any:
    """Replace ``typing.TypedDict``, which pydantic refuses before Python 3.12, by that of typing_extensions."""
    if sys.version_info >= (3, 12) or annotation in within:
        return annotation
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _modern_typeddict(annotation, (*within, annotation))
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if not (_is_union(origin) or origin in (*CONTAINERS, Mapping, Sequence)):
        return annotation
    newer = tuple(_modern(part, within) for part in inner)
    if newer == inner:
        return annotation
    return functools.reduce(operator.or_, newer) if _is_union(origin) else origin[newer]


def _modern_typeddict(annotation: Any, within: tuple[Any, ...]) -> Any:
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(annotation, include_extras=True).items():
        wrapper: Any = typing.get_origin(hint)
        if wrapper in (typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        else:
            wrapper = typing.Required if name in annotation.__required_keys__ else typing.NotRequired
        fields[name] = wrapper[_modern(hint, within)]
    make: Any = typing_extensions.TypedDict
    return make(annotation.__name__, fields)
