"""The broker's address: a checked AMQP URL that never shows its password.

``amqps`` checks the server's certificate and its name. Certificates are given as options of the URL, named as by
RabbitMQ's own clients: ``cacertfile`` (a private CA), ``certfile`` and ``keyfile`` (the client's certificate).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, urlencode, urlsplit

import pika

from aft.errors import ConfigError
from aft.security.loopback import is_loopback

#: Seconds without traffic after which either side takes the other for dead.
HEARTBEAT = 20

#: Options of the URL that name files of certificates.
_CERTIFICATES = ("cacertfile", "certfile", "keyfile")

_FORM = "write amqp://user:password@host:5672/vhost, with special characters percent-encoded"


@dataclass(frozen=True, slots=True)
class Address:
    """An AMQP URL that can be connected to. Immutable; its ``repr`` and ``str`` are without the password."""

    shown: str
    #: How others could read the traffic to the broker; None if they cannot.
    exposure: str | None
    _url: str
    _context: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Check the URL. Raises ConfigError that names what is wrong.

        The error does not repeat a malformed URL, because its password cannot be distinguished from the rest.
        """
        parts = _split(url)
        context, plain = _make_context(parts), _without_certificates(parts)
        try:
            found = pika.URLParameters(plain)
        except Exception as error:  # pika raises whatever its parsing runs into
            options = ", ".join(sorted(parse_qs(parts.query))) or "none"
            which = "" if "@" in url else f" for host {parts.hostname!r} (its options: {options})"
            # Not chained: what pika says repeats the URL.
            raise ConfigError(f"the broker URL{which} is not usable: {type(error).__name__}; {_FORM}") from None
        if context is None and found.ssl_options is not None:
            context = found.ssl_options.context
        return cls(_without_password(parts), _find_exposure(found.host, context), plain, context)

    def parameters(self, timeout: float) -> pika.URLParameters:
        """Return what pika needs; ``timeout`` bounds connecting and being blocked."""
        found = pika.URLParameters(self._url)
        given = parse_qs(urlsplit(self._url).query)
        if found.ssl_options is not None and self._context is not None:
            found.ssl_options = pika.SSLOptions(self._context, found.ssl_options.server_hostname)
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
    if "@" in parts.path:  # a slash in the password: what is behind it must not be shown
        raise ConfigError(f"the broker URL is malformed; {_FORM}")
    if not parts.hostname or port == 0:
        raise ConfigError(f"the broker URL names no host or port; {_FORM}")
    if parts.username is not None and parts.password is None:
        raise ConfigError(f"the broker URL names user {parts.username!r} but no password; {_FORM}")
    return parts


def _make_context(parts: SplitResult) -> ssl.SSLContext | None:
    """Read the certificates that the URL names; None if it names none."""
    named = {name: value for name, value in parse_qsl(parts.query) if name in _CERTIFICATES}
    if not named:
        return None
    if parts.scheme != "amqps":
        raise ConfigError(f"the broker URL has the option {min(named)!r}, which is for 'amqps://', not 'amqp://'")
    if "keyfile" in named and "certfile" not in named:
        raise ConfigError("the broker URL has the option 'keyfile' without 'certfile'; give both")
    try:
        context = ssl.create_default_context(cafile=named.get("cacertfile"))
        if "certfile" in named:
            context.load_cert_chain(named["certfile"], named.get("keyfile"))
    except OSError as error:  # also ssl.SSLError, of a file that holds something else
        files = ", ".join(f"{name} {value!r}" for name, value in sorted(named.items()))
        why = error.strerror or type(error).__name__
        raise ConfigError(f"the broker URL's certificates cannot be read ({files}): {why}") from None
    return context


def _without_certificates(parts: SplitResult) -> str:
    """Return the URL without the certificate options, which pika does not know."""
    if not any(name in _CERTIFICATES for name, _ in parse_qsl(parts.query)):
        return parts.geturl()
    others = [(name, value) for name, value in parse_qsl(parts.query) if name not in _CERTIFICATES]
    return parts._replace(query=urlencode(others)).geturl()


def _find_exposure(host: str, context: ssl.SSLContext | None) -> str | None:
    if is_loopback(host):
        return None
    if context is None:
        return f"{host!r} is another machine, and the URL begins with 'amqp', not 'amqps'"
    if context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname:
        return f"{host!r} is another machine, and the URL's ssl_options leave its certificate unchecked"
    return None


def _without_password(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{host}{port}{quote(parts.path, safe='/%')}"
