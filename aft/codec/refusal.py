"""How is it said that a value cannot be stored: which one, where, and why?"""

from __future__ import annotations

import reprlib
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from aft.errors import CodecError, text_of
from aft.texts import with_article

#: Characters of a value in a message.
MOST_SHOWN = 120
#: Names of a dict in a message.
MOST_NAMES = 8
#: Types whose values are shown; what a foreign class says of itself may be anything.
_SHOWN = (str, int, float, bytes, list, dict, tuple, set, frozenset, date, datetime, time, timedelta, Decimal, UUID)
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


class ValueRefused(Exception):
    """Why a value cannot be stored; each container on the way out adds the step that leads to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def under(self, step: object) -> None:
        """Note the key, field or index under which the offender was found."""
        self._steps.append(_spell_step(step))

    def at(self, where: str) -> CodecError:
        """Make the error that names the whole path, beginning with ``where``."""
        path = where + "".join(reversed(self._steps))
        return CodecError(f"{path}: {self.reason}", path=path)


def _spell_step(step: object) -> str:
    named = isinstance(step, str) and str.isidentifier(step)
    return f".{str.__str__(step)}" if named else f"[{spell_key(step)}]"


def spell_key(key: object) -> str:
    """Show a key. Whatever a foreign class, or one of text or number, says of itself, it may also raise."""
    if isinstance(key, str):
        return repr(str.__str__(key)[:40])
    if isinstance(key, int) and -(10**18) < (number := int.__index__(key)) < 10**18:
        return str(number)
    return f"<{type(key).__name__}>"


def show(value: object) -> str:
    """Show a value in short, with its type: ``the str 'abc'``; of a foreign class only which one it is."""
    if value is None or type(value) is bool:
        return repr(value)
    if type(value) not in _SHOWN:
        return a_kind(type(value))
    if isinstance(value, dict):
        # What else is in it may be secret: the type that would say so is the one that it does not fit.
        names = ", ".join(map(spell_key, list(value)[:MOST_NAMES])) + (", …" if len(value) > MOST_NAMES else "")
        return f"a dict with {names}" if value else "an empty dict"
    if isinstance(value, list | tuple | set | frozenset):
        return f"{a_kind(type(value))} of {len(value)}"
    text = _short.repr(value)
    return f"the {type(value).__name__} {text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + '…'}"


def a_kind(kind: type) -> str:
    """Name a class with its article: ``an int``, ``a shop.Order``."""
    return with_article(kind_name(kind))


def kind_name(kind: type) -> str:
    """Name a class so that it can be found; builtins without their module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def spell(annotation: Any) -> str:
    """Spell an annotation as its author would."""
    named = isinstance(annotation, type) and not typing.get_args(annotation)
    return kind_name(annotation) if named else str(annotation)


def first_line(error: BaseException) -> str:
    """Say in short what went wrong in code that is not ours."""
    return f"{type(error).__name__}: {text_of(error)}".splitlines()[0][:200]
