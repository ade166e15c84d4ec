"""Turns stored values into ordinary JSON data, for people and for programs that read the output of commands.

Nothing of the stored encoding is left in it: a datetime, date or time is ISO 8601 text, a timedelta a number of
seconds, a Decimal and a UUID their text, bytes are base64 text, tuples and sets are lists. A dict whose keys are no
texts has their JSON texts as keys; where two of them would be the same, it is a list of pairs. Secrets, and texts whose
name says that they are secret, are ``***``.

The types of values are not preserved, so it cannot be decoded. Nothing is refused: what cannot be read is shown as it
is, so that people see a damaged row instead of an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from aft.codec.refusal import ValueRefused
from aft.codec.tags import MARK, dumps, tag
from aft.security.redaction import HIDDEN, is_hidden, redact, redact_all


def stored_to_json(text: str | None, name: str = "") -> Any:
    """Return the JSON data of a stored value; None if there is none, the text itself if it is no JSON.

    If its ``name`` says that it is secret, it is hidden.
    """
    if text is None:
        return None
    try:
        found = _convert(json.loads(text))
    except (ValueError, RecursionError):
        found = text
    return HIDDEN if is_hidden(name, found) else found


def stored_to_text(text: str | None, name: str = "") -> str:
    """Return a stored value as JSON text without the encoding, redacted; empty if there is none.

    Its texts are redacted before they are written as JSON, whose escapes would hide where a secret begins.
    """
    found = stored_to_json(text, name)
    if text is None or found is text:
        return redact(text or "")
    try:
        return dumps(redact_all(found))
    except (ValueError, RecursionError):  # a number or a depth that JSON has no words for
        return redact(text)


def value_to_json(value: Any) -> Any:
    """Return the JSON data of a value that was decoded without its type; the text of one that cannot be stored."""
    try:
        return _convert(tag(value))
    except ValueRefused:
        return str(value)


def tagged_to_json(found: Any) -> Any:
    """Return the JSON data of parsed stored text that still has its tags."""
    try:
        return _convert(found)
    except RecursionError:
        return found


def _convert(found: Any) -> Any:
    if isinstance(found, list):
        return [_convert(item) for item in found]
    if not isinstance(found, dict):
        return found
    if MARK not in found:
        return {key: HIDDEN if is_hidden(key, item) else _convert(item) for key, item in found.items()}
    convert = _CONVERTERS.get(found[MARK]) if isinstance(found[MARK], str) else None
    try:
        return _convert(found["v"]) if convert is None else convert(found)
    except (LookupError, ValueError, TypeError, ArithmeticError, OSError):
        return found  # no value that aft has written


def _convert_pairs(found: dict[str, Any]) -> Any:
    pairs = [
        (_convert(key), HIDDEN if isinstance(key, str) and is_hidden(key, item) else _convert(item))
        for key, item in found["v"]
    ]
    named = {key if isinstance(key, str) else dumps(key): item for key, item in pairs}
    return named if len(named) == len(pairs) else [list(pair) for pair in pairs]


def _convert_clock(found: dict[str, Any]) -> str:
    """Return ISO text; the offset of a named zone is computed."""
    if "zone" not in found:
        return str(found["v"])
    kind: type[datetime] | type[time] = datetime if found[MARK] == "datetime" else time
    read = kind.fromisoformat(found["v"])
    try:
        return read.replace(tzinfo=ZoneInfo(found["zone"]), fold=found.get("fold", 0)).isoformat()
    except (LookupError, ValueError, OSError):  # this machine does not know the zone
        return f"{found['v']}[{found['zone']}]"


_CONVERTERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": _convert_pairs,
    "datetime": _convert_clock,
    "time": _convert_clock,
    "secret": lambda found: HIDDEN,
    "timedelta": lambda found: timedelta(microseconds=found["v"]).total_seconds(),
}
