"""Redacts secrets in texts and values that are shown, logged or exported.

One mechanism for all of them. By type: ``aft.Secret`` is never shown. By name: texts whose field's name marks them as
secret, or is listed in the settings. By pattern: payment card numbers, passwords and tokens in a text. A mask in a text
is as long as what it hides, so that nothing moves. The database keeps the original: activities and compensators need
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any

#: What is shown instead of a value.
HIDDEN = "***"
#: Names that mark a value as secret.
_NAMES = r"pass(?:word|wd|phrase)|secret|token|authori[sz]ation|credential|cookie|(?:api|private)[_-]?key"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_HIDDEN_NAME = re.compile(
    rf"{_NAMES}|card_?(?:number|no)(?![a-z])|(?<![a-z])(?:cv[cv]2?|iban|ssn|pin|otp|pwd|passcode)(?![a-z])",
    re.IGNORECASE,
)

#: Where a word begins: also after an escaped line break, tab or the like, as JSON and ``repr`` write them.
_ESCAPED = r"(?<=\\[abfnrtv0])|(?<=\\x[\da-fA-F]{2})|(?<=\\u[\da-fA-F]{4})"
_START = rf"(?:(?<!\w)|{_ESCAPED})"
#: What may stand between the groups of a card number: one blank, dash or line break.
_GAP = r"(?:[\s-]|\\[nrt])?"
#: What may be a payment card number: of the large brands.
_CARD = re.compile(
    rf"(?=[2-6])(?:(?<![A-Za-z0-9-])|{_ESCAPED})"
    rf"(?:(?:4\d{{3}}|5[1-5]\d\d|2[2-7]\d\d|35\d\d|6(?:011|2\d\d|4[4-9]\d|5\d\d))(?:{_GAP}\d{{4}}){{3}}"
    rf"|3[47]\d\d{_GAP}\d{{6}}{_GAP}\d{{5}}|3[068]\d\d{_GAP}\d{{6}}{_GAP}\d{{4}})(?![\w-])"
)
# Each repetition before something that has to follow is bounded: a hostile text must not cost much time.
_TOKEN = re.compile(rf"(?i)(?=b){_START}((?:bearer|basic) {{1,9}})([A-Za-z0-9._~+/=-]{{8,}})")
_JWT = re.compile(rf"(?=eyJ)(?:(?<![\w-])|{_ESCAPED})()(eyJ[A-Za-z0-9_-]{{8,999}}\.[A-Za-z0-9_-]+\.?[A-Za-z0-9_-]*)")
#: What ends a name: a quote, escaped once more by each JSON text that it lies in.
_END = r"\\{0,63}+[\"']?\s{0,9}[=:]\s{0,9}"
#: A value in quotes: up to the same quote with as many backslashes, or else the line's end.
_QUOTED = r"[bru]{0,2}(\\{0,63}+)([\"'])(?!\3\4)(?:(?s:.){1,999}?(?<!\\)\3\4|(?:(?!(?<!\\)\3\4)[^\n])++)"
#: A value: in quotes, in brackets, or one word.
_GIVEN = rf"({_QUOTED}|[\[({{][^\])}}\n]*+[\])}}]?|[^\s\"',;&]{{2,}})"
_HEADER = re.compile(rf"(?i)(?=a)({_START}authori[sz]ation{_END})({_QUOTED}|[^\"'\n,]{{2,999}})")
_NAMED = re.compile(rf"(?i)((?:{_NAMES}|(?=p){_START}pwd)[\w-]{{0,40}}{_END}){_GIVEN}")
#: A password in a URL, up to the "@". It may hold a slash, unless it is the port of a web server. Nothing is read
#: beyond the next URL, so that each part of a text is read once.
_IN_URL = re.compile(
    r"(?i)(://(?:(?<!http://)(?<!https://)|(?=[^/\s:@]{0,99}:(?!\d{1,5}/)))[^/\s:@]{0,99}:)"
    r"([^/\s]{1,999}(?=@)|(?:[^\s:\"']|:(?!//)){1,999}(?=@))"
)
#: The value in a message of pydantic's about what does not fit, which pydantic has cut to some 50 characters.
_INPUT = re.compile(r"(input_value=)((?s:.){1,300}?)(?=, input_type=[^\s\[\]]{1,200}\])")
#: What each of them hides: the second group.
_HIDES = (_HEADER, _TOKEN, _JWT, _NAMED, _IN_URL, _INPUT)
#: A quick first check: most texts hold nothing of the kind.
_MAY_HOLD = re.compile(rf"(?i)\d[ -]?\d[ -]?\d[ -]?\d|bearer|basic|eyJ|://|pwd|input_value|{_NAMES}")
#: Names of fields that the settings of this process list besides, in lower case; and where they stand in a text.
_listed: set[str] = set()
_in_text: re.Pattern[str] | None = None
#: Digits of a card number that stay visible.
_SEEN = 4
#: Numbers that may be a card's.
_LEAST_CARD, _MOST_CARD = 10**13, 10**16


def hide_names(names: Iterable[str]) -> None:
    """Hide fields with these names from now on, everywhere in this process."""
    global _in_text
    if not (new := {name.lower() for name in names} - _listed):
        return
    _listed.update(new)
    any_name = "|".join(map(re.escape, sorted(_listed)))
    _in_text = re.compile(rf"(?i)({_START}(?:{any_name}){_END}){_GIVEN}")


def is_secret_name(name: str) -> bool:
    """Return whether a name marks its value as secret, so that it must not be stored where it is not needed."""
    return _SECRET_NAME.search(name) is not None


def hides_name(name: str) -> bool:
    """Return whether a name marks its value as secret, so that it must not be shown."""
    return _HIDDEN_NAME.search(name) is not None or name.lower() in _listed


def is_hidden(name: str, value: Any) -> bool:
    """Return whether a text, list or map is hidden because its name marks it as secret."""
    return isinstance(value, str | list | dict) and bool(value) and hides_name(name)


def redact(text: str) -> str:
    """Return a text of the same length, with asterisks in place of secrets."""
    if _in_text is not None:
        text = _in_text.sub(_hide, text)
    if _MAY_HOLD.search(text) is None:
        return text
    for pattern in _HIDES:
        text = pattern.sub(_hide, text)
    return _CARD.sub(_hide_card, text)


def hide_inputs(text: str) -> str:
    """Return a text without the values that a ``ValidationError`` of pydantic's shows, of secrets too."""
    return _INPUT.sub(rf"\1{HIDDEN}", text) if "input_value=" in text else text


def redact_all(value: Any) -> Any:
    """Return JSON data with every text in it redacted, names too, or hidden if its name marks it as secret."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        redacted = [redact_all(item) for item in value]
        return redacted if isinstance(value, list) else tuple(redacted)
    if isinstance(value, dict):
        return _redact_items(value)
    if isinstance(value, int | float) and _LEAST_CARD <= value < _MOST_CARD:
        return hidden if (hidden := redact(str(value))) != str(value) else value
    return value


def _redact_items(found: dict[Any, Any]) -> dict[Any, Any]:
    """Redact a map; names that become equal are numbered, so that no item is lost."""
    redacted: dict[Any, Any] = {}
    numbers: dict[str, Iterator[int]] = {}
    for name, item in found.items():
        shown = redact(name) if isinstance(name, str) else name
        if shown != name:
            numbered = (f"{shown} ({number})" for number in numbers.setdefault(shown, count(2)))
            shown = next(each for each in chain([shown], numbered) if each not in redacted and each not in found)
        redacted[shown] = HIDDEN if isinstance(name, str) and is_hidden(name, item) else redact_all(item)
    return redacted


def _hide(found: re.Match[str]) -> str:
    return f"{found[1]}{'*' * len(found[2])}"


def _hide_card(found: re.Match[str]) -> str:
    number = found[0]
    digits = [int(sign) for sign in number if sign.isdigit()]
    if not _is_card(digits):
        return number
    left = len(digits) - _SEEN
    shown: list[str] = []
    for sign in number:
        hide = sign.isdigit() and left > 0
        left -= sign.isdigit()
        shown.append("*" if hide else sign)
    return "".join(shown)


def _is_card(digits: list[int]) -> bool:
    """Return whether the last digit is the check digit of the others (Luhn), as in a card number."""
    doubled = [digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0
