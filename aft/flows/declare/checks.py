"""Checks of both decorators, all made at import: whether a function can be an activity or a flow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from aft.errors import DefinitionError
from aft.texts import format_value

#: Characters of a name: it stands in a column, in listings and in idempotency keys.
MOST_NAME = 200


def check_function(what: str, fn: object) -> Callable[..., Any]:
    """Return the function if it can be declared so, else raise DefinitionError."""
    if isinstance(fn, staticmethod | classmethod) or not inspect.isfunction(fn):
        needs = "; write @aft.compensate_with(undo), with what undoes it" if what == "compensate_with" else ""
        raise DefinitionError(f"@aft.{what} goes on a function, not on {format_value(fn, 100)}{needs}")
    where = f"{fn.__module__}.{fn.__qualname__}"
    parent = fn.__qualname__.rpartition(".")[0]
    if parent and not parent.endswith("<locals>"):
        raise DefinitionError(
            f"@aft.{what} cannot go on the method {where}: an object cannot be stored; use a function at module level"
        )
    if fn.__name__ == "<lambda>":
        raise DefinitionError(f"@aft.{what} cannot go on a lambda: it has no name that stays the same")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"@aft.{what} cannot go on the generator {where}; return a list instead")
    return fn


def check_name(what: str, name: str) -> str:
    """Return the name if it can be stored and shown, else raise DefinitionError."""
    fits = isinstance(name, str) and 0 < len(name) <= MOST_NAME and name.isprintable()
    if not fits or "/" in name or "@" in name:
        raise DefinitionError(
            f"{format_value(name)} cannot name {what}: 1 to {MOST_NAME} printable characters, without '/' and '@'"
        )
    return name
