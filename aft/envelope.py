"""The format of messages, and the limits beyond which they are refused.

A message carries ids only. Arguments, results and texts stay in the database, so that neither secrets nor
megabytes travel; what a message says is a hint, the row decides.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from aft.ids import FaultId, OrderId, RunId, new_id

#: The version this code writes, and the only one it reads.
VERSION = 1
#: Bytes; an envelope of ids is a few hundred.
MOST_BYTES = 8_192
#: Bytes of a refused message that are kept: twice the admitted size; a longer one could not be released anyway.
MOST_KEPT = 2 * MOST_BYTES
#: Digits in one number; longer ones are costly to parse and never ours.
MOST_DIGITS = 20
#: Nested objects or arrays; ours has one inside the outermost, the trace context.
MOST_DEPTH = 4
#: Characters in an id or a time.
MOST_TEXT = 128

#: Possessive: hostile or unterminated text costs one pass, never more.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))
#: A message exactly as ``encode`` writes it, which nearly all are: matching it costs a tenth of parsing; whatever does
#: not fit is parsed in full.
_OURS = re.compile(
    rb'{"v":%d,"id":"(?P<id>[\w-]{1,99})","kind":"(?P<kind>fault|resume|compensate)","run":"(?P<run>[\w-]{1,99})",'
    rb'"(?P<what>fault|order)":"(?P<wake>[\w-]{1,99})","at":"(?P<at>[\d:.+TZ-]{1,99})"}' % VERSION
)
_JSON = json.JSONEncoder(separators=(",", ":"))


class MessageKind(StrEnum):
    """The kinds of messages."""

    FAULT = "fault"  #: decide about this fault
    RESUME = "resume"  #: continue this run
    COMPENSATE = "compensate"  #: this run's failure is final


class MessageRefused(ValueError):
    """Raised for a message that must be quarantined; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: which run, and the fault or the order that it is about."""

    id: str
    kind: MessageKind
    run: RunId
    fault: FaultId | None
    order: OrderId | None
    at: datetime
    trace: dict[str, str]

    @classmethod
    def about_fault(cls, kind: MessageKind, run: RunId, fault: FaultId, at: datetime) -> Message:
        """Make a message about a fault of a run."""
        return cls(new_id(), kind, run, fault, None, at, {})

    @classmethod
    def about_order(cls, run: RunId, order: OrderId, at: datetime) -> Message:
        """Make a message that wakes a run to carry out an order."""
        return cls(new_id(), MessageKind.RESUME, run, None, order, at, {})

    @property
    def wake(self) -> str:
        """The fault or order that this message names."""
        return self.fault or self.order or ""

    def encode(self) -> str:
        """Return the message as JSON."""
        body: dict[str, Any] = {"v": VERSION, "id": self.id, "kind": self.kind.value, "run": self.run}
        if self.fault is not None:
            body["fault"] = self.fault
        if self.order is not None:
            body["order"] = self.order
        body["at"] = self.at.isoformat()
        if self.trace:
            body["trace"] = self.trace
        return _JSON.encode(body)


def decode(body: bytes) -> Message:
    """Decode a message, or raise :class:`MessageRefused`. Costs are bounded before anything is parsed."""
    if (ours := _OURS.fullmatch(body)) is not None and (message := _read_ours(*ours.groups())) is not None:
        return message
    _check_limits(body)
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise MessageRefused("not UTF-8") from None
    except RecursionError:
        raise MessageRefused("nested too deeply") from None
    except MessageRefused:
        raise
    except ValueError as error:
        raise MessageRefused(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MessageRefused(f"a JSON object is expected, not {type(found).__name__}")
    return _checked(found)


def _read_ours(id: bytes, kind: bytes, run: bytes, what: bytes, wake: bytes, at: bytes) -> Message | None:
    """Decode what ``_OURS`` has matched; None if it has to be parsed in full."""
    asked = MessageKind(kind.decode())
    about_fault = what == b"fault"
    if not about_fault and asked is not MessageKind.RESUME:
        return None
    try:
        moment = datetime.fromisoformat(at.decode())
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    named = wake.decode()
    fault, order = (FaultId(named), None) if about_fault else (None, OrderId(named))
    return Message(id.decode(), asked, RunId(run.decode()), fault, order, moment, {})


def _check_limits(body: bytes) -> None:
    if len(body) > MOST_BYTES:
        raise oversized(len(body))
    outside = _STRING.sub(b"", body)
    if _LONG_NUMBER.search(outside):
        raise MessageRefused(f"a number of more than {MOST_DIGITS} digits")
    depth = 0
    for byte in outside:
        depth += (byte in b"{[") - (byte in b"}]")
        if depth > MOST_DEPTH:
            raise MessageRefused(f"nested more than {MOST_DEPTH} deep")


def oversized(size: int) -> MessageRefused:
    """Return the refusal of a message with this number of bytes."""
    return MessageRefused(f"{size} bytes; {MOST_BYTES} are the most")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageRefused("a key appears twice")
    return found


def _no_constant(text: str) -> Any:
    raise MessageRefused(f"{text} is not JSON")


def _checked(body: dict[str, Any]) -> Message:
    version = body.get("v")
    if type(version) is not int or version != VERSION:
        raise MessageRefused(f"version {version!r}; this aft reads version {VERSION}")
    try:
        kind = MessageKind(_text(body, "kind"))
    except ValueError as error:
        raise MessageRefused(f"unknown kind: {error}") from None
    fault, order = _optional(body, "fault"), _optional(body, "order")
    if (fault is None) == (order is None):
        raise MessageRefused(
            "names neither a fault nor an order" if fault is None else "names both a fault and an order"
        )
    if kind is not MessageKind.RESUME and fault is None:
        raise MessageRefused(f"a message of kind {kind.value!r} must name a fault")
    return Message(
        id=_text(body, "id"),
        kind=kind,
        run=RunId(_text(body, "run")),
        fault=None if fault is None else FaultId(fault),
        order=None if order is None else OrderId(order),
        at=_moment(body),
        trace=_trace(body.get("trace", {})),
    )


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= MOST_TEXT or not (value.isascii() and value.isprintable()):
        raise MessageRefused(f"{key!r} must be a text of 1 to {MOST_TEXT} plain characters")
    return value


def _optional(body: dict[str, Any], key: str) -> str | None:
    return _text(body, key) if key in body else None


def _moment(body: dict[str, Any]) -> datetime:
    try:
        at = datetime.fromisoformat(_text(body, "at"))
    except MessageRefused:
        raise
    except ValueError:
        raise MessageRefused("'at' must be a time in ISO format") from None
    if at.tzinfo is None:
        raise MessageRefused("'at' must name its time zone")
    return at


def _trace(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise MessageRefused("'trace' must be an object of texts")
    if not all(text.isascii() and text.isprintable() for pair in value.items() for text in pair):
        raise MessageRefused("'trace' must hold plain characters only")
    return value
