"""Validates the fields of exlets and rule files; each check raises RuleRefused."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from aft import durations
from aft.codec import MOST_DEPTH, decode_untyped
from aft.errors import CodecError, RuleRefused
from aft.runs.records.notices import check_url
from aft.texts import find_unstorable, format_value, with_article

#: Characters of a message, a reason, a note, an expression.
MOST_TEXT = 1_000
#: Characters of a name.
MOST_NAME = 200
#: Characters of a URL.
MOST_URL = 2_000
#: Levels of a ladder, and tries on each: what ``recovery.levels`` takes.
MOST_LEVELS = 32
MOST_TRIES = 1_000_000

#: Words that people write instead of aft's, where the nearest spelling is another word.
_MEANT = {
    "resume": "continue",
    "proceed": "continue",
    "cancel": "remove",
    "rollback": "unwind",
    "compensate": "unwind",
    "webhook": "notify",
    "condition": "if",
    "when": "if",
    "exlet": "then",
    "description": "about",
}


def hint(given: object, known: Iterable[str]) -> str:
    """Return a hint: the known name that was probably meant, or else all known names."""
    names = list(map(str, known))
    text = given.lower() if isinstance(given, str) else ""
    near = [_MEANT[text]] if _MEANT.get(text) in names else difflib.get_close_matches(text, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(map(repr, names)) or 'none'}"


def text(value: object, where: str, *, most: int = MOST_TEXT, empty: bool = False) -> str:
    """Return a text that is not too long, and not blank unless ``empty`` is allowed."""
    if not isinstance(value, str) or len(value) > most or not (empty or value.strip()):
        raise RuleRefused(
            f"{where} is {format_value(value)}; it must be a text of {'up' if empty else '1'} to {most} characters"
        )
    if (found := find_unstorable(value, lines=True)) is not None:
        raise RuleRefused(f"{where} is {format_value(value)}, which holds {found}; leave that out")
    return value


def name(value: object, what: str) -> str:
    """Return a name that can be stored and shown."""
    fits = isinstance(value, str) and 0 < len(value) <= MOST_NAME and value.isprintable() and value == value.strip()
    if not isinstance(value, str) or not fits or "/" in value or "@" in value:
        raise RuleRefused(
            f"{format_value(value)} cannot name {what}: 1 to {MOST_NAME} printable characters, without '/' and '@', "
            "and no blanks around them"
        )
    return value


def flag(value: object, where: str) -> bool:
    """Return a bool; refuse any other type."""
    if not isinstance(value, bool):
        raise RuleRefused(f"{where} is {format_value(value)}; it must be true or false")
    return value


def table(value: object, where: str) -> dict[str, Any]:
    """Return a table whose keys are texts."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RuleRefused(f"{where} is {format_value(value)}; it must be a table of names and values")
    return value


def check_json(value: Any, where: str) -> Any:
    """Return a copy of a JSON value. It may hold stored values of other types: ``{"$aft": "date", "v": "…"}``."""
    copied = _copy(value, where, 0)
    try:
        decode_untyped(json.dumps(copied, ensure_ascii=False))
    except (CodecError, ValueError) as error:
        raise RuleRefused(f"{where} cannot be stored: {error}") from None
    return copied


def _copy(value: Any, where: str, depth: int) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth >= MOST_DEPTH:
        raise RuleRefused(f"{where[:60]}… is nested more than {MOST_DEPTH} deep")
    if isinstance(value, list):
        return [_copy(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _copy(item, f"{where}.{key}", depth + 1) for key, item in table(value, where).items()}
    raise RuleRefused(
        f"{where} is {with_article(type(value).__name__)}, for which JSON has no word; write it as a text or a number: "
        "a date is read from '2024-02-29' where a date is declared"
    )


def wait(value: Any, where: str) -> str:
    """Return a duration in the text form of settings."""
    try:
        found = durations.parse(value)
    except ValueError as error:
        raise RuleRefused(f"{where}: {error}") from None
    return value if isinstance(value, str) else durations.format(found)


def format_ladder(ladder: object, where: str) -> str:
    """Return a ladder in the text form of settings, ``5s*3, 1m``; it may be given as a list of levels."""
    if not isinstance(ladder, list | tuple):
        return text(ladder, where)
    levels: list[str] = []
    for level in ladder:
        is_wait = isinstance(level, int | float | timedelta) and not isinstance(level, bool)
        # An aft.Level, which has a number of tries, formats itself.
        levels.append(wait(level, where) if is_wait else text(str(level) if hasattr(level, "tries") else level, where))
    return text(", ".join(levels), where)


def count_levels(ladder: object, where: str) -> int:
    """Return the number of levels of a ladder in text form; refuse one without any, which retries nothing."""
    parts = text(ladder, where).split(",")
    if len(parts) > MOST_LEVELS:
        raise RuleRefused(f"{where} has {len(parts)} levels; {MOST_LEVELS} are the most")
    for part in parts:
        _check_level(part.strip(), where)
    return len(parts)


def _check_level(part: str, where: str) -> None:
    pause, star, tries = (piece.strip() for piece in part.partition("*"))
    try:
        found = durations.parse(pause)
    except ValueError as error:
        raise RuleRefused(f"{where}: {part!r} is not a level: {error}") from None
    if timedelta(0) < found < timedelta(milliseconds=1):
        raise RuleRefused(f"{where}: {part!r} is not a level: 1ms is the least, or 0s for no wait at all")
    if star and not (tries.isascii() and tries.isdigit() and len(tries) < 10 and 1 <= int(tries) <= MOST_TRIES):
        raise RuleRefused(f"{where}: {part!r} is not a level; write '5s*3' for three tries after 5s each")


def host(url: object, where: str) -> str:
    """Return scheme and host of a URL: the part that does not enable others to post to it."""
    if isinstance(url, str) and len(url) <= MOST_URL and url.isprintable() and " " not in url:
        try:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                check_url(url)
                return f"{parts.scheme}://{parts.netloc}"
        except ValueError:
            pass
    # Not shown: knowing the URL of a webhook is enough to post to it.
    raise RuleRefused(
        f"{where} must begin with 'http://' or 'https://' and a host, hold neither blanks nor a user and password, "
        f"nothing but ASCII, and have {MOST_URL} characters at the most"
    )
