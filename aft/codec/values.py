"""Encodes values of a declared type as text, and decodes text to that type.

Annotations that build nothing take a short path: the value is checked strictly, and tagged. All others take the long
path: the value is dumped, rebuilt from what would be stored, and compared.
"""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from aft.codec.annotations import adapter_for, holds_sets, is_open, is_plain, is_untyped
from aft.codec.compare import compare, equal
from aft.codec.ordered_sets import order_sets
from aft.codec.refusal import ValueRefused, first_line, format_annotation, format_part, kind_phrase
from aft.codec.secret import UNFIT, SecretPlace
from aft.codec.simplify import simplify
from aft.codec.tags import MARK, dumps, tag
from aft.codec.text import decode_untyped, write
from aft.errors import is_interrupt
from aft.security.redaction import HIDDEN

#: Returned by the short path if it cannot encode a value; None is a value.
_NOT_SO = object()


class ValueCodec:
    """Encodes and decodes the values of one annotation; made by :func:`value_codec`."""

    __slots__ = ("_adapter", "_holds_sets", "_last", "_open", "_plain", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._adapter: TypeAdapter[Any] | None = None if is_untyped(annotation) else adapter_for(annotation)
        self._plain = is_plain(annotation)
        self._open = is_open(annotation)
        self._holds_sets = self._adapter is not None and holds_sets(self._adapter)
        #: The last encoded text and its value: a first execution decodes just that.
        self._last: tuple[str | None, Any] = (None, None)

    @property
    def _schema(self) -> Any:
        return None if self._adapter is None else self._adapter.core_schema

    def encode(self, value: Any, where: str) -> str:
        """Encode the value as JSON; raises CodecError whose path begins with ``where``."""
        text = write(self.tag(value, where), where)
        if self.decodes_to_itself(value):
            self._last = (text, value)
        return text

    def decode(self, text: str, where: str = "value") -> Any:
        """Decode what :meth:`encode` wrote, or JSON written by hand; raises only CodecError, as :meth:`encode` does."""
        text_of_last, last = self._last
        if text is text_of_last:
            return last
        return self.build(decode_untyped(text), where)

    def hide(self, text: str) -> str:
        """Return a stored text that :meth:`decode` has refused: as a secret if the declared type holds one."""
        if not SecretPlace((self._schema,)).is_secret:
            return text
        try:
            return dumps({MARK: "secret", "v": json.loads(text)})
        except (ValueError, RecursionError):
            return dumps({MARK: "secret", "v": text})

    def decodes_to_itself(self, value: Any) -> bool:
        """Return whether the value is immutable and surely decodes to itself: then decoding can be skipped."""
        kind = type(value)
        return kind in _SIMPLE and (kind is self.annotation or self._adapter is None)

    def tag(self, value: Any, where: str, depth: int = 0) -> Any:
        """Convert the value to JSON data: :meth:`encode` without the text, for a part of a larger value."""
        try:
            if self._adapter is None:
                return tag(value, depth)
            if self._plain and (tagged := self._tag_plain(self._adapter, value, depth)) is not _NOT_SO:
                return tagged
            return self._tag_built(self._adapter, value, depth)
        except ValueRefused as refused:
            raise refused.at(where, self._schema) from None
        except BaseException as error:  # whatever a foreign class does when it is looked at
            if is_interrupt(error):
                raise
            raise ValueRefused(f"{kind_phrase(type(value))} cannot be stored: {first_line(error)}").at(where) from None

    def build(self, found: Any, where: str) -> Any:
        """Build the declared type from untagged data: the second half of :meth:`decode`; raises CodecError."""
        if self._adapter is None:
            return found
        try:
            built = _build(self._adapter, found, self.annotation)
        except ValueRefused as refused:
            raise refused.at(where, self._schema) from None
        return order_sets(built) if self._holds_sets else built

    def _tag_plain(self, adapter: TypeAdapter[Any], value: Any, depth: int) -> Any:
        try:
            checked = adapter.validator.validate_python(value, strict=True)
        except ValidationError:
            return _NOT_SO
        try:
            tagged = tag(checked, depth)
        except ValueRefused:
            if self._open:  # the offender has no declared type that the long path could build
                raise
            return _NOT_SO
        return tagged if equal(checked, value) else _NOT_SO

    def _tag_built(self, adapter: TypeAdapter[Any], value: Any, depth: int) -> Any:
        simple = simplify(_dump(adapter, value, self.annotation))
        tagged = tag(simple, depth)
        compare(value, _build(adapter, simple, self.annotation))
        return tagged


#: Types whose values are immutable, and decode to exactly themselves.
_SIMPLE = frozenset({int, str, bool, type(None)})


def value_codec(annotation: Any) -> ValueCodec:
    """Return the codec for an annotation, made once; raises DefinitionError for an unstorable type."""
    try:
        return _known(annotation, str(annotation))
    except TypeError:  # an annotation that cannot be hashed: Annotated[int, […]]
        return ValueCodec(annotation)


@functools.cache
def _known(annotation: Any, spelling: str) -> ValueCodec:
    # The spelling is part of the key: A | B equals B | A, yet the order decides between two that fit alike.
    return ValueCodec(annotation)


def _dump(adapter: TypeAdapter[Any], value: Any, annotation: Any) -> Any:
    dump = functools.partial(adapter.dump_python, value, warnings=False, round_trip=True, by_alias=True)
    try:
        try:
            return dump()
        except TypeError:  # a set of dataclasses would be one of dicts, which cannot be; as JSON it is a list
            dumped = dump(mode="json")
            return sorted(dumped, key=dumps) if isinstance(value, set | frozenset) and type(dumped) is list else dumped
    except BaseException as error:  # serializers of the user's models run here
        if is_interrupt(error):
            raise
        raise ValueRefused(
            format_part(value),
            f" cannot be stored as {format_annotation(annotation)}: pydantic cannot dump it: {first_line(error)}",
        ) from None


def _build(adapter: TypeAdapter[Any], simple: Any, annotation: Any) -> Any:
    try:
        return adapter.validator.validate_python(simple)
    except ValidationError as error:
        raise _misfit(error, simple, annotation) from None
    except BaseException as error:  # validators and __post_init__ of the user's types run here
        if is_interrupt(error):
            raise
        raise ValueRefused(f"{format_annotation(annotation)} cannot be built: {first_line(error)}") from None


#: Errors of pydantic about a field that is not there; their place ends with its name.
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument", "missing_positional_only_argument")


def _misfit(error: ValidationError, simple: Any, annotation: Any) -> ValueRefused:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    steps: list[int | str] = []
    offender = simple
    for step in first["loc"]:
        with contextlib.suppress(LookupError, TypeError):  # the name of a union's member leads nowhere
            offender = offender[step]
            steps.append(step)
    declared = format_annotation(annotation)
    if first["type"] in _MISSING:
        refused = ValueRefused("this field is missing in ", format_part(offender), f"; {declared} needs it")
        steps.append(first["loc"][-1])
    else:
        fits = f"there, in {declared}" if steps else declared
        shown = HIDDEN if first["type"] == UNFIT else format_part(offender)
        refused = ValueRefused(shown, f" does not fit {fits}: {first['msg']}")
    for step in reversed(steps):
        refused.under(step)
    return refused
