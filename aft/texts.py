"""Checks which texts of users can be stored and shown, and formats values and texts for messages.

PostgreSQL stores no NUL, no driver stores lone surrogates, and a control character in a name breaks listings and logs.
A text that is not checked where it is given fails later, inside a transaction of aft's own.
"""

from __future__ import annotations

import re
import reprlib
from enum import StrEnum
from typing import TypeVar

from aft.security.redaction import redact

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
#: The same, except tabs and line breaks.
_CONTROL_IN_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
#: Names that begin with a vowel sound: by their first letter, or as an abbreviation.
_SPOKEN_VOWEL = re.compile("[aeioAEIO]|[FHLMNRSX][A-Z]")


Choice = TypeVar("Choice", bound=StrEnum)

#: Bounds what formatting a value costs. It cuts far beyond what is shown: no secret is cut before it is redacted.
_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 2, 1_000, 1_000

#: Characters of an actor's name.
MOST_BY = 200
#: Characters of a note.
MOST_NOTE = 10_000


def find_unstorable(text: str, *, lines: bool = False) -> str | None:
    """Return what prevents a text from being stored, in words that follow "it holds"; None if nothing does.

    With ``lines`` it may have several lines and tabs, as notes do; a name may not.
    """
    if text.isprintable():
        return None  # a fast way out for most: neither surrogates nor control characters are printable
    if found := _SURROGATE.search(text):
        return f"half a character, {found[0]!r}, which no database stores"
    if found := (_CONTROL_IN_LINES if lines else _CONTROL).search(text):
        return f"the control character {found[0]!r}"
    return None


def require_text(what: str, given: object, error: type[Exception]) -> None:
    """Raise ``error`` if a value is no text."""
    if not isinstance(given, str):
        raise error(f"{what}={format_value(given)} must be a text")


def check_storable(
    what: str, text: str | None, error: type[Exception], *, lines: bool = False, most: int | None = None
) -> None:
    """Raise ``error`` if a value is no text, or one that cannot be stored; None is accepted.

    ``lines`` as for :func:`find_unstorable`, ``most`` characters.
    """
    if text is None:
        return
    require_text(what, text, error)
    if most is not None and len(text) > most:
        raise error(f"{what}={format_value(text)} has {len(text)} characters; {most} are the most: give a shorter one")
    if (found := find_unstorable(text, lines=lines)) is not None:
        raise error(f"{what}={format_value(text, 100)} holds {found}; leave that out")


def find_choice(given: object, choices: type[Choice]) -> Choice | None:
    """Return the member of an enumeration that a text names; None if there is none, or the value is no text."""
    return next((choice for choice in choices if isinstance(given, str) and choice == given), None)


def choose(what: str, given: str, choices: type[Choice], error: type[Exception]) -> Choice:
    """Return the member of an enumeration that a text names, or raise ``error`` that says which there are."""
    found = find_choice(given, choices)
    if found is None:
        raise error(f"{what}={format_value(given)} is none of {', '.join(repr(choice.value) for choice in choices)}")
    return found


def format_value(value: object, most: int = 60) -> str:
    """Format any value for a message, like ``repr``: at most ``most`` characters, printable, redacted. Never raises."""
    try:
        text = redact(_short.repr(value))
    except Exception:  # a number with too many digits, or whatever a foreign class raises
        text = f"<{type(value).__name__} that cannot be shown>"
    return shorten(text if text.isprintable() else repr(text)[1:-1], most)


def escape_unstorable(text: str) -> str:
    """Return a text, of an exception for example, with everything escaped that no database stores."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def describe_error(error: BaseException) -> str:
    """Return what an error says, for a row: never empty, of moderate length, without what no database stores."""
    return shorten(escape_unstorable(str(error) or repr(error)))


def with_article(name: str) -> str:
    """Return the name of a type with "a" or "an", as it is pronounced: an int, a uint, an OSError."""
    return f"{'an' if _SPOKEN_VOWEL.match(name) else 'a'} {name}"


def shorten(text: str, most: int = 500) -> str:
    """Return a text of at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
