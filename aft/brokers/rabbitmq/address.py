"""Where is the broker? A checked AMQP URL that never shows its password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

import pika

from aft.errors import ConfigError

#: Seconds without a sign of life, after which either side takes the other for dead.
HEARTBEAT = 20

_FORM = "write amqp://user:password@host:5672/vhost, with special characters percent-encoded"


@dataclass(frozen=True, slots=True)
class Address:
    """An AMQP URL that can be connected to. Immutable; its ``repr`` and ``str`` are without the password."""

    shown: str
    _url: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Check the URL. Raises ConfigError that names what is wrong; a broken URL is not repeated in it,
        because its password cannot be told from the rest."""
        parts = _split(url)
        try:
            pika.URLParameters(url)
        except Exception as error:  # pika raises whatever its parsing runs into
            options = ", ".join(sorted(parse_qs(parts.query))) or "none"
            which = "" if "@" in url else f" for host {parts.hostname!r} (its options: {options})"
            # Not chained: what pika says repeats the URL.
            raise ConfigError(f"the broker URL{which} is not usable: {type(error).__name__}; {_FORM}") from None
        return cls(shown=_without_password(parts), _url=url)

    def parameters(self, timeout: float) -> pika.URLParameters:
        """Return what pika needs; ``timeout`` bounds connecting and being blocked."""
        found = pika.URLParameters(self._url)
        given = parse_qs(urlsplit(self._url).query)
        found.connection_attempts = 1  # trying again is ours: with jitter, and visible
        if "heartbeat" not in given:
            found.heartbeat = HEARTBEAT
        if "blocked_connection_timeout" not in given:
            found.blocked_connection_timeout = timeout
        found.socket_timeout = timeout
        found.stack_timeout = timeout
        return found

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"the broker URL is malformed; {_FORM}") from None
    if parts.scheme not in ("amqp", "amqps"):
        raise ConfigError(f"the broker URL begins with {parts.scheme!r}, not 'amqp' or 'amqps'; {_FORM}")
    if not parts.hostname or port == 0:
        raise ConfigError(f"the broker URL names no host or port; {_FORM}")
    if parts.username is not None and parts.password is None:
        raise ConfigError(f"the broker URL names user {parts.username!r} but no password; {_FORM}")
    return parts


def _without_password(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{host}{port}{quote(parts.path, safe='/%')}"
