"""Formats refusals of values that cannot be stored: which one, where in the structure, and why.

What is shown of a value is ``Shown``. Where the type or a name on the way says that it is secret, or may hold a secret,
``***`` is shown instead; so with a key in the path.
"""

from __future__ import annotations

import reprlib
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from aft.codec.secret import SecretPlace
from aft.errors import CodecError, text_of
from aft.security.redaction import HIDDEN, hides_name
from aft.texts import with_article

#: Characters of a value in a message.
MOST_SHOWN = 120
#: Names of a dict in a message.
MOST_NAMES = 8
#: Types whose values are shown; the ``repr`` of a foreign class may be anything.
_SHOWN = (str, int, float, bytes, list, dict, tuple, set, frozenset, date, datetime, time, timedelta, Decimal, UUID)
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


class ValueRefused(Exception):
    """Raised when a value cannot be stored; each container on the way out adds the step that leads to it."""

    def __init__(self, *reason: str) -> None:
        super().__init__()  # without the reason, which may show a secret
        self._reason = reason
        self._steps: list[object] = []

    def under(self, step: object) -> None:
        """Add the key, field or index under which the offender was found."""
        self._steps.append(step)

    def at(self, where: str, schema: Any = None) -> CodecError:
        """Make the error that names the whole path, beginning with ``where``, which has that schema of pydantic's."""
        path, place = where, SecretPlace(() if schema is None else (schema,), hides_name(where))
        for step in reversed(self._steps):
            path += f"[{HIDDEN}]" if place.hides_step(step) else _format_step(step)
            place = place.under(step)
        hidden = place.is_secret
        reason = "".join(HIDDEN if hidden and isinstance(part, ShownText) else part for part in self._reason)
        return CodecError(f"{path}: {reason}", path=path)


class ShownText(str):
    """A text that shows something of a value, which may be secret."""

    __slots__ = ()


def _format_step(step: object) -> str:
    named = isinstance(step, str) and str.isidentifier(step)
    return f".{str.__str__(step)}" if named else f"[{format_key(step)}]"


def format_key(key: object) -> ShownText:
    """Format a key, without calling methods of its class, which may raise."""
    if isinstance(key, str):
        return ShownText(repr(str.__str__(key)[:40]))
    if isinstance(key, int) and -(10**18) < (number := int.__index__(key)) < 10**18:
        return ShownText(number)
    return ShownText(f"<{type(key).__name__}>")


def format_part(value: object) -> ShownText:
    """Format a value as a part of a ``ValueRefused``, which hides it where it is secret."""
    return ShownText(_format_part(value))


def _format_part(value: object) -> str:
    """Format a value in short, with its type: ``the str 'abc'``; of a foreign class only its name."""
    if value is None or type(value) is bool:
        return repr(value)
    if type(value) not in _SHOWN:
        return kind_phrase(type(value))
    if isinstance(value, dict):
        # Its items may be secret: the type that would say so is the one that it does not fit.
        names = ", ".join(map(format_key, list(value)[:MOST_NAMES])) + (", …" if len(value) > MOST_NAMES else "")
        return f"a dict with {names}" if value else "an empty dict"
    if isinstance(value, list | tuple | set | frozenset):
        return f"{kind_phrase(type(value))} of {len(value)}"
    text = _short.repr(value)
    return f"the {type(value).__name__} {text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + '…'}"


def kind_phrase(kind: type) -> str:
    """Name a class with its article: ``an int``, ``a shop.Order``."""
    return with_article(kind_name(kind))


def kind_name(kind: type) -> str:
    """Name a class so that it can be found; builtins without their module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_annotation(annotation: Any) -> str:
    """Format an annotation as it is written in code."""
    named = isinstance(annotation, type) and not typing.get_args(annotation)
    return kind_name(annotation) if named else str(annotation)


def first_line(error: BaseException) -> str:
    """Format the first line of an exception from foreign code, with its type."""
    return f"{type(error).__name__}: {text_of(error)}".splitlines()[0][:200]
