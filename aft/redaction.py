"""What must not be read over somebody's shoulder, in texts and values that are shown, logged or exported.

One mechanism for all of them. By type: ``aft.Secret`` is never shown. By name: texts whose field says that they are
secret, or is listed in the settings. By pattern: numbers of payment cards, passwords and tokens in a text. Masks are as
long as what they hide, so that nothing moves. The database keeps what was given: activities and compensators need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

#: What is shown instead of a value.
HIDDEN = "***"
#: Names that say that what they name is secret.
_NAMES = r"pass(?:word|wd|phrase)|secret|token|authori[sz]ation|credential|cookie|(?:api|private)[_-]?key"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_HIDDEN_NAME = re.compile(
    rf"{_NAMES}|card_?(?:number|no)(?![a-z])|(?<![a-z])(?:cv[cv]2?|iban|ssn|pin|otp|pwd|passcode)(?![a-z])",
    re.IGNORECASE,
)

#: What may be the number of a payment card: of the great brands, with blanks or dashes between its digits.
_CARD = re.compile(
    r"(?<![A-Za-z0-9-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|35\d\d|6(?:011|2\d\d|4[4-9]\d|5\d\d))(?:[ -]?\d{4}){3}"
    r"|3[47]\d\d[ -]?\d{6}[ -]?\d{5}|3[068]\d\d[ -]?\d{6}[ -]?\d{4})(?![\w-])"
)
# Each repetition before something that has to follow is bounded: a hostile text must not keep anybody busy.
_TOKEN = re.compile(r"(?i)\b((?:bearer|basic) {1,9})([A-Za-z0-9._~+/=-]{8,})")
_JWT = re.compile(r"(?<![\w-])()(eyJ[A-Za-z0-9_-]{8,999}\.[A-Za-z0-9_-]+\.?[A-Za-z0-9_-]*)")
_HEADER = re.compile(r"(?i)(\bauthori[sz]ation[\"']?\s{0,9}[=:]\s{0,9}[\"']?)([^\"'\n,]{2,999})")
_GIVEN = r"(\"[^\"]{2,999}\"|'[^']{2,999}'|[^\s\"',;&]{2,})"
_NAMED = re.compile(rf"(?i)((?:{_NAMES}|\bpwd)[\w-]{{0,40}}\\?[\"']?\s{{0,9}}[=:]\s{{0,9}}\\?){_GIVEN}")
_IN_URL = re.compile(r"(://[^/\s:@]{0,99}:)([^/\s]{1,999})(?=@)")
#: What each of them hides: the second group.
_HIDES = (_HEADER, _TOKEN, _JWT, _NAMED, _IN_URL)
#: A quick look: most texts have nothing of the kind.
_MAY_HOLD = re.compile(rf"(?i)\d[ -]?\d[ -]?\d[ -]?\d|bearer|basic|eyJ|://|pwd|{_NAMES}")
#: Names of fields that the settings of this process list besides, in lower case; and where they stand in a text.
_listed: set[str] = set()
_in_text: re.Pattern[str] | None = None
#: Digits of a card's number that may be seen.
_SEEN = 4
_LEAST_CARD = 10**13


def hide_names(names: Iterable[str]) -> None:
    """Hide fields with these names from now on, everywhere in this process."""
    global _in_text
    if not (new := {name.lower() for name in names} - _listed):
        return
    _listed.update(new)
    any_name = "|".join(map(re.escape, sorted(_listed)))
    _in_text = re.compile(rf"(?i)((?<!\w)(?:{any_name})\\?[\"']?\s{{0,9}}[=:]\s{{0,9}}\\?){_GIVEN}")


def says_secret(name: str) -> bool:
    """Tell whether a name says that what it names must not be kept where it is not needed."""
    return _SECRET_NAME.search(name) is not None


def is_hidden(name: str, value: Any) -> bool:
    """Tell whether a text, or what may hold texts, is not shown, because its name says that it is secret."""
    if not isinstance(value, str | list | dict) or not value:
        return False
    return _HIDDEN_NAME.search(name) is not None or name.lower() in _listed


def redact(text: str) -> str:
    """Return a text of the same length, with asterisks in the place of what must not be read."""
    if _in_text is not None:
        text = _in_text.sub(_hide, text)
    if _MAY_HOLD.search(text) is None:
        return text
    for pattern in _HIDES:
        text = pattern.sub(_hide, text)
    return _CARD.sub(_hide_card, text)


def redact_all(value: Any) -> Any:
    """Return JSON data with every text in it redacted, and hidden where its name says that it is secret."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_all(item) for item in value]
    if isinstance(value, dict):
        return {name: HIDDEN if is_hidden(name, item) else redact_all(item) for name, item in value.items()}
    if type(value) is int and value >= _LEAST_CARD and (hidden := redact(str(value))) != str(value):
        return hidden
    return value


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
    """Tell whether the last digit is the check digit of the others, as in the number of a card."""
    doubled = [digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0
