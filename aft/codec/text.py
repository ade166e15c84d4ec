"""Writes and parses stored text, within limits of size and depth.

Text of values that others wrote is read as well: its costs are bounded before it is parsed, and it raises nothing but
CodecError. Documents that aft stores for itself (waits, rulings, decisions) have no tags, and one class each.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from aft.codec.refusal import ValueRefused
from aft.codec.tags import MOST_BYTES, MOST_DEPTH, dumps, tag
from aft.codec.untag import untag
from aft.errors import CodecError

T = TypeVar("T")

#: A whole string, or one bracket. Possessive: unterminated or hostile text costs one pass, never more.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def write(tagged: Any, where: str) -> str:
    """Encode tagged data as text; raises CodecError if it is too large."""
    text = dumps(tagged)
    if (size := _size(text)) > MOST_BYTES:
        raise CodecError(
            f"{where}: {size} bytes as JSON; {MOST_BYTES} are the most; store it elsewhere and pass a reference",
            path=where,
        )
    return text


def decode_untyped(text: str) -> Any:
    """Decode text without an annotation: tagged values are rebuilt, objects are dicts; raises only CodecError."""
    _check_limits(text)
    try:
        found = _decoder.decode(text)
    except ValueError as error:
        raise CodecError(f"the stored text is not JSON: {error}") from None
    if _SURROGATE.search(text):  # rare: others may have escaped characters that aft does not escape
        try:
            tag(found)
        except ValueRefused as refused:
            raise refused.at("value") from None
    return found


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_limits(text: str) -> None:
    try:
        size = _size(text)
    except UnicodeEncodeError:
        raise CodecError("the stored text holds a lone surrogate") from None
    if size > MOST_BYTES:
        raise CodecError(f"the stored text has {size} bytes; {MOST_BYTES} are the most")
    check_depth(text)


def check_depth(text: str) -> None:
    """Raise CodecError if JSON text is nested deeper than ``MOST_DEPTH``."""
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += _NESTING.get(found[0], 0)
        if depth > MOST_DEPTH:
            raise CodecError(f"it is nested more than {MOST_DEPTH} deep")


class StoredJson(Generic[T]):
    """Reads the documents of one class. Thread-safe: threads that read first at once may build its adapter twice."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        #: Built at the first read: importing costs nothing.
        self._adapter: TypeAdapter[T] | None = None

    def read(self, text: str) -> T:
        """Return the value of a document; raises ValueError that names the part that does not fit, not its value."""
        if self._adapter is None:
            self._adapter = TypeAdapter(self._kind)
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


def _read_float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise CodecError(f"the stored text holds {text[:40]}, which is no number that JSON knows")
    return found


_decoder = json.JSONDecoder(object_pairs_hook=untag, parse_float=_read_float, parse_constant=_read_float)
