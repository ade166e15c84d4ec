"""What can be kept of a value that need not come back, the argument of an exception? As much as goes."""

from __future__ import annotations

import reprlib
from typing import Any

from aft.codec.limits import MOST_LOOSE_BYTES
from aft.codec.refusal import Refused
from aft.codec.tagging import dumps, tag

#: Containers within containers that are kept as such, even if something in them cannot be stored.
_LEVELS = 4
#: Items of a container, and characters of a text, that are kept.
_MOST_ITEMS, _MOST_CHARACTERS = 100, 1_000

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _MOST_CHARACTERS


def encode_loosely(value: Any) -> tuple[str, bool]:
    """Spell a value as well as it goes, for arguments of exceptions: never raises, at most MOST_LOOSE_BYTES.

    The second answer is False if something was cut or had to be replaced by its repr. The text is for
    :func:`aft.codec.decode_untyped`.
    """
    try:
        text = dumps(tag(value))
        if _fits(text):
            return text, True
    except Refused:
        pass
    text = dumps(tag(_loosen(value, 0)))
    return text if _fits(text) else dumps(_cut(_repr(value))), False


def _fits(text: str) -> bool:
    return len(text.encode()) <= MOST_LOOSE_BYTES


def _loosen(value: Any, level: int) -> Any:
    """Replace what cannot be stored; outer containers stay, so that an exception keeps its number of args."""
    kind = type(value)
    if kind is str:
        return _cut(value)
    if kind in (list, tuple, dict) and level < _LEVELS and len(value) <= _MOST_ITEMS:
        if kind is dict:
            return {_loosen(key, _LEVELS): _loosen(item, level + 1) for key, item in value.items()}
        return kind(_loosen(item, level + 1) for item in value)
    try:
        tag(value, level * 3)  # a level opens three brackets at most
    except Refused:
        return _cut(_repr(value))
    return value


def _repr(value: Any) -> str:
    try:
        return _short.repr(value)
    except Exception:  # a repr of the user's may do anything
        return f"<{type(value).__qualname__}>"


def _cut(text: str) -> str:
    sound = text[: _MOST_CHARACTERS + 1].encode("utf-8", "backslashreplace").decode()
    return sound if len(sound) <= _MOST_CHARACTERS else sound[: _MOST_CHARACTERS - 1] + "…"
