"""What did the other end say? The HTTP status and the time to wait that an exception carries.

They are found wherever its library keeps them, without importing any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

#: The longest that a server's Retry-After is believed.
LONGEST_RETRY_AFTER = timedelta(days=7)

_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")


def http_status(exception: BaseException) -> int | None:
    """Find the HTTP status that an exception carries, wherever its library keeps it; never raises."""
    response = _attribute(exception, "response")
    candidates = (
        _attribute(exception, "status_code"),
        _attribute(exception, "status"),
        _attribute(exception, "code"),
        _attribute(response, "status_code"),
        _attribute(response, "status"),
        _entry(_entry(response, "ResponseMetadata"), "HTTPStatusCode"),
    )
    for found in candidates:
        if isinstance(found, int) and 100 <= found <= 599:
            return int(found)
    return None


def retry_after(exception: BaseException, now: datetime) -> timedelta | None:
    """Find how long the server asked to wait: Retry-After in seconds or as a date, or ``.retry_after``.

    Never raises. The past is 0, and more than a week is a week.
    """
    response = _attribute(exception, "response")
    candidates = (
        _attribute(exception, "retry_after"),
        _header(_attribute(response, "headers")),
        _header(_attribute(exception, "headers")),
        _header(_entry(_entry(response, "ResponseMetadata"), "HTTPHeaders")),
    )
    waits = (read_retry_after(found, now) for found in candidates)
    return next((wait for wait in waits if wait is not None), None)


def read_retry_after(found: Any, now: datetime) -> timedelta | None:
    """Read what stood in Retry-After, or None; the past is 0, and more than a week is a week."""
    wait = _wait(found, now)
    return None if wait is None else min(max(wait, timedelta(0)), LONGEST_RETRY_AFTER)


def _attribute(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of a foreign exception may do anything; it must not hide the fault itself
        return None


def _entry(thing: Any, key: str) -> Any:
    try:
        return thing.get(key) if isinstance(thing, Mapping) else None
    except Exception:  # as above
        return None


def _header(headers: Any) -> Any:
    try:
        for name, value in headers.items():
            text = name.decode("ascii") if isinstance(name, bytes) else name
            if text.lower() == "retry-after":
                return value.decode("ascii") if isinstance(value, bytes) else value
    except Exception:  # as above, and headers may be anything, or missing
        return None
    return None


def _wait(found: Any, now: datetime) -> timedelta | None:
    if isinstance(found, timedelta):
        return found
    if isinstance(found, str):
        text = found.strip()
        return _seconds(float(text)) if _NUMBER.fullmatch(text) else _until(text, now)
    if isinstance(found, int | float) and not isinstance(found, bool):
        return _seconds(found)
    return None


def _seconds(number: float) -> timedelta | None:
    if number != number:  # nan
        return None
    # Clipped before it is converted: a timedelta cannot hold every number.
    return timedelta(seconds=float(min(max(number, 0), LONGEST_RETRY_AFTER.total_seconds())))


def _until(text: str, now: datetime) -> timedelta | None:
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, OverflowError):
        return None
