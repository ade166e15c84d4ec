"""How is it said that a value cannot be stored: which one, where, and why?"""

from __future__ import annotations

import typing
from typing import Any

from aft.errors import CodecError


class Refused(Exception):
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


def kind_name(kind: type) -> str:
    """Name a class so that it can be found; builtins without their module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def spell(annotation: Any) -> str:
    """Spell an annotation as its author would."""
    named = isinstance(annotation, type) and not typing.get_args(annotation)
    return kind_name(annotation) if named else str(annotation)


def first_line(error: BaseException) -> str:
    """Say in short what went wrong in code that is not ours."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
