"""What text may be stored, and what does stored text hold?

Text that others wrote is read as well: its costs are bounded before it is parsed, and nothing but a
CodecError comes of it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from aft.codec.limits import MOST_BYTES, MOST_DEPTH
from aft.codec.refusal import ValueRefused
from aft.codec.tagging import dumps, tag
from aft.codec.untagging import untag
from aft.errors import CodecError

#: A whole string, or one bracket. Possessive: unterminated or hostile text costs one pass, never more.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def write(tagged: Any, where: str) -> str:
    """Spell what was tagged; refuses what is too large."""
    text = dumps(tagged)
    if (size := _size(text)) > MOST_BYTES:
        raise CodecError(
            f"{where}: {size} bytes as JSON; {MOST_BYTES} are the most; store it elsewhere and pass a reference",
            path=where,
        )
    return text


def decode_untyped(text: str) -> Any:
    """Read text without an annotation: tagged values come back, objects are dicts; raises only CodecError."""
    _check_limits(text)
    try:
        found = _decoder.decode(text)
    except ValueError as error:
        raise CodecError(f"the stored text is not JSON: {error}") from None
    if _SURROGATE.search(text):  # rare: others may have escaped what aft writes out
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
    """Raise CodecError if a text in JSON is nested deeper than anything that is stored."""
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += _NESTING.get(found[0], 0)
        if depth > MOST_DEPTH:
            raise CodecError(f"it is nested more than {MOST_DEPTH} deep")


def _read_float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise CodecError(f"the stored text holds {text[:40]}, which is no number that JSON knows")
    return found


_decoder = json.JSONDecoder(object_pairs_hook=untag, parse_float=_read_float, parse_constant=_read_float)
