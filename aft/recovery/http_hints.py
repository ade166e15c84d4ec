"""Reads the HTTP status and the Retry-After that an exception carries.

They are found wherever its library keeps them, without importing any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from aft.errors import is_interrupt

#: The longest Retry-After of a server that is honoured.
LONGEST_RETRY_AFTER = timedelta(days=7)

_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")


def http_status(exception: BaseException) -> int | None:
    """Return the HTTP status that an exception carries, wherever its library keeps it; never raises."""
    response = attribute_of(exception, "response")
    candidates = (
        attribute_of(exception, "status_code"),
        attribute_of(exception, "status"),
        attribute_of(exception, "code"),
        attribute_of(response, "status_code"),
        attribute_of(response, "status"),
        _entry(_entry(response, "ResponseMetadata"), "HTTPStatusCode"),
    )
    for found in candidates:
        # Not isinstance: that may ask the object itself for its class.
        if issubclass(type(found), int) and 100 <= (number := int.__index__(found)) <= 599:
            return number
    return None


def retry_after(exception: BaseException, now: datetime) -> timedelta | None:
    """Return how long the server asked to wait: Retry-After in seconds or as a date, or ``.retry_after``.

    Never raises. The past is 0, and more than a week is a week.
    """
    response = attribute_of(exception, "response")
    candidates = (
        attribute_of(exception, "retry_after"),
        _header(attribute_of(response, "headers")),
        _header(attribute_of(exception, "headers")),
        _header(_entry(_entry(response, "ResponseMetadata"), "HTTPHeaders")),
    )
    waits = (read_retry_after(found, now) for found in candidates)
    return next((wait for wait in waits if wait is not None), None)


def read_retry_after(found: Any, now: datetime) -> timedelta | None:
    """Parse a Retry-After value; None if it is invalid. The past is 0, and more than a week is a week."""
    wait = _wait(found, now)
    return None if wait is None else min(max(wait, timedelta(0)), LONGEST_RETRY_AFTER)


def attribute_of(thing: Any, name: str) -> Any:
    """Return an attribute of a foreign object; None if it is missing or cannot be read."""
    try:
        return getattr(thing, name, None)
    except BaseException as raised:  # a property of a foreign exception may do anything; the fault stays
        if is_interrupt(raised):
            raise
        return None


def _entry(thing: Any, key: str) -> Any:
    try:
        return thing.get(key) if isinstance(thing, Mapping) else None
    except BaseException as raised:  # as above
        if is_interrupt(raised):
            raise
        return None


def _header(headers: Any) -> Any:
    try:
        for name, value in headers.items():
            text = name.decode("ascii") if isinstance(name, bytes) else name
            if text.lower() == "retry-after":
                return value.decode("ascii") if isinstance(value, bytes) else value
    except BaseException as raised:  # as above, and headers may be anything, or missing
        if is_interrupt(raised):
            raise
        return None
    return None


def _wait(found: Any, now: datetime) -> timedelta | None:
    kind = type(found)  # not isinstance: as above
    if issubclass(kind, timedelta):
        return timedelta(found.days, found.seconds, found.microseconds)
    if issubclass(kind, str):
        text = str.strip(found)
        return _seconds(float(text)) if _NUMBER.fullmatch(text) else _until(text, now)
    if issubclass(kind, int | float) and kind is not bool:
        return _seconds(float.__float__(found) if issubclass(kind, float) else int.__index__(found))
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
