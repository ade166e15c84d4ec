"""Sends one webhook request within a time limit, and classifies its answer.

No redirects, no proxy of the environment, no schemes but http and https. A receiver is not trusted to answer, to stop,
or to be short.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlsplit

from aft.dispatcher.notify.receivers import Receivers
from aft.runs.records.notices import check_url

#: Bytes of an answer's body that are read: enough for a reason, and for a short answer to end as its sender meant.
MOST_ANSWER = 4096
#: Addresses of one host that are tried.
MOST_ADDRESSES = 4

#: Refusals that are temporary: a request that took too long, came too early, or is one of too many.
_PASSING = (408, 425, 429)


class ReplyMeaning(Enum):
    """The consequence of an answer for its notice."""

    HEARD = auto()
    LATER = auto()  #: a later try may succeed
    REFUSED = auto()  #: no try will succeed


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """The answer to one request."""

    status: int
    #: The reason that came with the status, and the beginning of the body.
    text: str = field(repr=False)
    #: The header Retry-After, as it came.
    retry_after: str | None


class NoAnswer(Exception):
    """Raised when no answer came: not connected, broken off, or not in time. Its text says why."""


def classify_status(status: int) -> ReplyMeaning:
    """Return what a status means; all but a 2xx or a permanent 4xx are tried again later."""
    if 200 <= status < 300:
        return ReplyMeaning.HEARD
    if 400 <= status < 500 and status not in _PASSING:
        return ReplyMeaning.REFUSED
    return ReplyMeaning.LATER


def post(url: str, body: bytes, headers: Mapping[str, str], limit: float, receivers: Receivers) -> WebhookReply:
    """Send and return the answer; raises NoAnswer, or ValueError if the URL cannot be sent to.

    Takes at most ``limit`` seconds once the host's name is resolved, however many addresses it has. Thread-safe.
    """
    url = check_url(url)
    parts = urlsplit(url)
    connection = _connection(parts, limit)
    expired = threading.Event()
    try:
        _lead_to(connection, receivers.find(connection.host, connection.port, url))
        with _cut_off_after(limit, connection, expired):
            connection.connect()
            _check(expired)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body, {**headers, "Connection": "close"})
            response = connection.getresponse()
            _check(expired)  # the library takes headers that were cut off for complete ones
            return _read(response)
    except (OSError, HTTPException) as error:
        late = expired.is_set() or isinstance(error, TimeoutError)
        why = f"no answer within {limit:g} s" if late else f"no answer: {str(error) or repr(error)}"
        raise NoAnswer(why) from error
    finally:
        connection.close()


def _connection(parts: SplitResult, limit: float) -> HTTPConnection:
    host = parts.hostname or ""
    # Without a port, the library would take an IPv6 address's end for one.
    if parts.scheme == "https":
        return HTTPSConnection(host, parts.port or HTTPS_PORT, timeout=limit, context=_tls())
    return HTTPConnection(host, parts.port or HTTP_PORT, timeout=limit)


def _lead_to(connection: HTTPConnection, addresses: Sequence[str]) -> None:
    """Make the connection go to one of these addresses; its host's name is not resolved again.

    At most MOST_ADDRESSES are tried, one after the other, and share the time: a name with many addresses that do not
    answer takes no longer than one.
    """

    def connect(_: object, timeout: float, *more: Any) -> socket.socket:
        tried = addresses[:MOST_ADDRESSES]
        for address in tried[:-1]:
            try:
                return socket.create_connection((address, connection.port), timeout / len(tried))
            except OSError:
                continue
        return socket.create_connection((tried[-1], connection.port), timeout / len(tried))

    # The library has no other way for this; TLS still requires a certificate of the host's name.
    connection._create_connection = connect  # type: ignore[attr-defined]


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _cut_off_after(limit: float, connection: HTTPConnection, expired: threading.Event) -> Iterator[None]:
    """Shut the connection down after ``limit`` seconds: a socket's own timeout restarts with every byte received."""

    def cut() -> None:
        expired.set()
        try:
            if connection.sock is not None:
                # Of the socket below TLS, whose own shutdown another thread must not call.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        except OSError:
            pass  # not connected yet, or ended meanwhile

    timer = threading.Timer(limit, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check(expired: threading.Event) -> None:
    if expired.is_set():
        raise TimeoutError


def _read(response: HTTPResponse) -> WebhookReply:
    try:
        beginning = response.read(MOST_ANSWER)
    except (OSError, HTTPException, ValueError):  # the last for a chunk of a negative size
        beginning = b""  # the status has come, and counts
    text = f"{response.reason} {beginning.decode(errors='replace')}"
    location = response.getheader("Location")
    if 300 <= response.status < 400 and location:
        text = f"redirects are not followed, this one leads to {location}"
    return WebhookReply(response.status, text.strip(), response.getheader("Retry-After"))
