"""Classifies the exceptions of common libraries as recoverable or not, without importing any of them.

Classes are recognised by name along their bases, most derived first, so that a user's own subclass of
``httpx.ConnectError`` is known too, and so that a process without those libraries can judge a stored fault.
The text of the fault decides only where one class stands for both kinds: SQLite's "database is locked" and
"no such table" are the same class.

Recoverable: connections lost or refused, timeouts, locks, deadlocks and failed serialization, throttling, a
server that is short of room. Not recoverable: credentials, certificates, malformed addresses, anything unknown.

HTTP: 408, 425, 429, 502, 503 and 504 are recoverable. 500 is not: it is what a bug at the other end answers, now
and tomorrow; where a service answers 500 for temporary trouble, declare ``recoverable=``. AWS documents that its
500 is temporary, so there it is. Any refusal with Retry-After is recoverable: the server said so itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from aft.texts import escape_unstorable, with_article

#: HTTP statuses that are recoverable, and why.
_PASSING_STATUS = {
    408: "the server waited too long for the request",
    425: "the server asks to try again later",
    429: "the server is throttling",
    502: "a gateway got no proper answer from the server behind it",
    503: "the server is unavailable or overloaded",
    504: "a gateway waited too long for the server behind it",
}


@dataclass(frozen=True)
class Classification:
    """Whether a fault is recoverable, and the reason, for people."""

    recoverable: bool
    reason: str


@dataclass(frozen=True)
class _Fact:
    """What is known of one class. If the fault's text matches ``unless``, the opposite is true."""

    passes: bool
    why: str
    unless: re.Pattern[str] | None = None


def classify_exception(
    mro: Sequence[str], status: int | None = None, message: str = "", retry_after: timedelta | None = None
) -> Classification:
    """Return whether a fault is recoverable, from what is stored of it. Pure, and total: it always answers.

    ``mro`` holds "module.qualname" of the class and its bases, most derived first, as :func:`mro_names` gives
    them. Throttling that the class or the text names comes first (AWS throttles with status 400), then
    Retry-After, then the status, then the most derived class that is known.
    """
    name = mro[0] if mro else "an exception without a class"
    if why := _throttled_by_aws(mro, status, message):
        return Classification(True, f"{name} {why}")
    if retry_after is not None and (status is None or status >= 400):
        return Classification(True, f"{name} came with a time to try again")
    if status is not None and status >= 400:
        return _classify_status(name, status)
    return _classify_class(mro, name, message)


def _classify_status(name: str, status: int) -> Classification:
    if why := _PASSING_STATUS.get(status):
        return Classification(True, f"{name} with HTTP status {status}: {why}")
    return Classification(False, f"{name} with HTTP status {status}, which does not pass by itself")


def _classify_class(mro: Sequence[str], name: str, message: str) -> Classification:
    wrapped = _wrapped(mro, message)
    if fact := _known(wrapped):
        return _classify_fact(fact, f"{name} (from {wrapped})", message)
    for known in mro:
        if fact := _known(known):
            return _classify_fact(fact, name if known == name else f"{name} ({with_article(known)})", message)
    short = name.removeprefix("builtins.")
    declared = short.rpartition(".")[2]
    return Classification(
        False,
        f"{short} is not known to pass by itself; raise aft.Recoverable or declare recoverable=({declared},)",
    )


def _wrapped(mro: Sequence[str], message: str) -> str:
    """Return the driver's exception, which SQLAlchemy names in front of its text and which says more; empty if none."""
    found = _WRAPPED.match(message) if "sqlalchemy.exc.DBAPIError" in mro else None
    return found[1] if found else ""


def _known(name: str) -> _Fact | None:
    if fact := _FACTS.get(name):
        return fact
    if name.startswith(("psycopg.errors.", "psycopg2.errors.")):
        # The server named the error: one that is not listed must not inherit "lost connection" from its base.
        return _FACTS.get(name.replace("psycopg2.", "psycopg.", 1), _SERVER_SAID_NO)
    return None


def _classify_fact(fact: _Fact, name: str, message: str) -> Classification:
    if fact.unless is not None and (found := fact.unless.search(message)):
        passes = not fact.passes
        return Classification(passes, f"{name} says {found[0]!r}, which {'passes' if passes else 'does not pass'}")
    return Classification(fact.passes, f"{name} is {fact.why}")


def _throttled_by_aws(mro: Sequence[str], status: int | None, message: str) -> str:
    if "botocore.exceptions.ClientError" not in mro:
        return ""
    named = {mro[0].rpartition(".")[2], *_AWS_CODE.findall(message)}
    if named & _AWS_THROTTLES:
        return "is throttling by AWS"
    return "with HTTP status 500: AWS documents that it passes" if status == 500 else ""


def mro_names(cls: type[BaseException]) -> list[str]:
    """Name a class and its bases as "module.qualname", most derived first: what :func:`classify_exception` takes."""
    return [escape_unstorable(f"{base.__module__}.{base.__qualname__}") for base in cls.__mro__]


# -------------------------------------------------------------------------------------- what is known


def _text(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE)


#: Texts of a failed connection that no second try changes.
_HOPELESS = _text(
    "certificate[_ ]verify[_ ]failed",
    "hostname mismatch",
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    'role "[^"]*" does not exist',
    'database "[^"]*" does not exist',
    "is not permitted to log in",
    "access denied for user",
    "proxy authentication required",
    "too many redirects",
    "unknown url type",
    "no host given",
)
_CUT_OFF = _text("unexpected[_ ]eof", "eof occurred", "connection reset", "timed out")
_LOCKED = _text("(?:database|table|database table|database schema) is locked", "database is busy")
_GONE = _text("connection (?:is |was |has been )?(?:already )?closed", "closed the connection", "connection is lost")
_UNREACHABLE = _text("network is unreachable", "no route to host", "host is (?:down|unreachable)", "network is down")
_DATABASE_PASSES = _text(
    _GONE.pattern,
    "terminating connection",
    "deadlock detected",
    "could not serialize access",
    "lock timeout",
    "lock wait timeout",
    "statement timeout",
)
_GRPC_PASSES = re.compile(r"StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED)")
#: The broker's reply codes that no second try changes: refused, not allowed, protocol misused.
_AMQP_REFUSAL = re.compile(r"^\((?:402|403|50[1-5]|530|540),")
_AMQP_LOCKED = re.compile(r"^\(405,")
_SMTP_LATER = re.compile(r"^\(4\d\d,")
_WRAPPED = re.compile(r"\(([\w.]+)\) ")
_AWS_CODE = re.compile(r"An error occurred \((\w+)\)")
#: botocore's own list, without LimitExceededException, which is mostly a quota that only a person raises.
_AWS_THROTTLES = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottledException",
        "RequestThrottled",
        "EC2ThrottledException",
        "TooManyRequestsException",
        "ProvisionedThroughputExceededException",
        "TransactionInProgressException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "SlowDown",
        "PriorRequestNotComplete",
        "RequestTimeout",
        "RequestTimeoutException",
    }
)

_LOST = _Fact(True, "a lost or refused connection", _HOPELESS)
_BROKEN_OFF = _Fact(True, "an answer that was broken off")
_TIMEOUT = _Fact(True, "a timeout")
_LOCK = _Fact(True, "a lock or a conflict with somebody else's work")
_SHORT = _Fact(True, "a server that is short of room or connections")
_AWAY = _Fact(True, "a server that is starting, stopping or changing over")
_CREDENTIALS = _Fact(False, "a refusal of credentials or rights, which no second try changes")
_TLS = _Fact(False, "a failed TLS handshake, which no second try changes", _CUT_OFF)
_MISUSE = _Fact(False, "a mistake in the program, which no second try changes")
_SERVER_SAID_NO = _Fact(False, "an answer of PostgreSQL that does not pass by itself")


def _facts(fact: _Fact, module: str, names: str) -> Iterable[tuple[str, _Fact]]:
    return ((f"{module}.{name}", fact) for name in names.split())


_POSTGRES = "psycopg.errors"
_FACTS: dict[str, _Fact] = dict(
    (
        # Python itself. TimeoutError is also asyncio's, socket's and concurrent.futures'.
        *_facts(_LOST, "builtins", "ConnectionError"),
        *_facts(_TIMEOUT, "builtins", "TimeoutError"),
        *_facts(_LOCK, "builtins", "BlockingIOError"),
        *_facts(_Fact(False, "not known to pass by itself", _UNREACHABLE), "builtins", "OSError"),
        *_facts(_Fact(True, "a name that could not be resolved"), "socket", "gaierror herror"),
        *_facts(_TLS, "ssl", "SSLError"),
        *_facts(_LOST, "ssl", "SSLEOFError SSLZeroReturnError SSLSyscallError"),
        *_facts(_CREDENTIALS, "ssl", "SSLCertVerificationError"),
        *_facts(_BROKEN_OFF, "http.client", "IncompleteRead BadStatusLine"),
        *_facts(_BROKEN_OFF, "asyncio.exceptions", "IncompleteReadError"),
        *_facts(_LOST, "urllib.error", "URLError"),
        *_facts(_BROKEN_OFF, "urllib.error", "ContentTooShortError"),
        *_facts(_MISUSE, "urllib.error", "HTTPError"),
        *_facts(_TIMEOUT, "subprocess", "TimeoutExpired"),
        *_facts(_LOST, "smtplib", "SMTPServerDisconnected SMTPConnectError"),
        *_facts(_Fact(False, "a refusal by the mail server", _SMTP_LATER), "smtplib", "SMTPResponseException"),
        *_facts(_Fact(False, "an error in SQL or schema", _LOCKED), "sqlite3", "OperationalError"),
        # psycopg, 2 and 3. OperationalError without a class of its own comes from the client: no connection.
        *_facts(_LOST, "psycopg", "OperationalError"),
        *_facts(_LOST, "psycopg2", "OperationalError"),
        *_facts(_Fact(False, "a misuse of the connection", _GONE), "psycopg", "InterfaceError"),
        *_facts(_Fact(False, "a misuse of the connection", _GONE), "psycopg2", "InterfaceError"),
        *_facts(
            _LOST,
            _POSTGRES,
            "ConnectionException ConnectionDoesNotExist ConnectionFailure ProtocolViolation "
            "SqlclientUnableToEstablishSqlconnection SqlserverRejectedEstablishmentOfSqlconnection "
            "TransactionResolutionUnknown FdwUnableToEstablishConnection",
        ),
        *_facts(
            _LOCK,
            _POSTGRES,
            "TransactionRollback SerializationFailure DeadlockDetected StatementCompletionUnknown "
            "LockNotAvailable ObjectInUse",
        ),
        *_facts(
            _TIMEOUT,
            _POSTGRES,
            "ConnectionTimeout CancellationTimeout QueryCanceled IdleSessionTimeout "
            "IdleInTransactionSessionTimeout TransactionTimeout",
        ),
        # A full disk too: undoing would need the same disk, so it is better to wait for it.
        *_facts(_SHORT, _POSTGRES, "InsufficientResources DiskFull OutOfMemory TooManyConnections"),
        *_facts(_AWAY, _POSTGRES, "OperatorIntervention AdminShutdown CrashShutdown CannotConnectNow"),
        *_facts(_CREDENTIALS, _POSTGRES, "InvalidPassword InvalidAuthorizationSpecification"),
        *_facts(_TIMEOUT, "psycopg_pool", "PoolTimeout"),
        *_facts(_SHORT, "psycopg_pool", "TooManyRequests"),
        *_facts(_MISUSE, "psycopg_pool", "PoolClosed"),
        # SQLAlchemy, where the driver's exception in front of the text is not known.
        *_facts(_LOST, "sqlalchemy.exc", "OperationalError DisconnectionError"),
        *_facts(_TIMEOUT, "sqlalchemy.exc", "TimeoutError"),
        *_facts(_Fact(False, "an error of the database", _DATABASE_PASSES), "sqlalchemy.exc", "DBAPIError"),
        # pika
        *_facts(_LOST, "pika.exceptions", "AMQPConnectionError ChannelWrongStateError"),
        *_facts(
            _Fact(True, "a connection that the broker closed", _AMQP_REFUSAL),
            "pika.exceptions",
            "ConnectionClosedByBroker",
        ),
        *_facts(_Fact(False, "a refusal by the broker", _AMQP_LOCKED), "pika.exceptions", "ChannelClosedByBroker"),
        *_facts(_SHORT, "pika.exceptions", "NackError"),
        *_facts(
            _CREDENTIALS,
            "pika.exceptions",
            "AuthenticationError ProbableAuthenticationError ProbableAccessDeniedError",
        ),
        *_facts(_MISUSE, "pika.exceptions", "IncompatibleProtocolError"),
        # redis
        *_facts(_LOST, "redis.exceptions", "ConnectionError"),
        *_facts(_TIMEOUT, "redis.exceptions", "TimeoutError"),
        *_facts(
            _AWAY,
            "redis.exceptions",
            "BusyLoadingError TryAgainError ClusterDownError SlotNotCoveredError ReadOnlyError",
        ),
        *_facts(_SHORT, "redis.exceptions", "MaxConnectionsError OutOfMemoryError"),
        *_facts(_LOCK, "redis.exceptions", "WatchError"),
        *_facts(
            _Fact(False, "a lock that is not held", _text("unable to acquire lock")),
            "redis.exceptions",
            "LockError",
        ),
        *_facts(_CREDENTIALS, "redis.exceptions", "AuthenticationError AuthorizationError"),
        # httpx and httpcore, whose exceptions have the same names
        *(
            known
            for module in ("httpx", "httpcore")
            for known in (
                *_facts(_TIMEOUT, module, "TimeoutException"),
                *_facts(_LOST, module, "NetworkError ProxyError"),
                *_facts(_BROKEN_OFF, module, "RemoteProtocolError"),
                *_facts(_MISUSE, module, "UnsupportedProtocol LocalProtocolError InvalidURL"),
            )
        ),
        # requests
        *_facts(_LOST, "requests.exceptions", "ConnectionError RetryError"),
        *_facts(_TIMEOUT, "requests.exceptions", "Timeout ConnectTimeout"),
        *_facts(_BROKEN_OFF, "requests.exceptions", "ChunkedEncodingError"),
        *_facts(_TLS, "requests.exceptions", "SSLError"),
        *_facts(_MISUSE, "requests.exceptions", "InvalidURL InvalidSchema MissingSchema InvalidHeader URLRequired"),
        # urllib3
        *_facts(_TIMEOUT, "urllib3.exceptions", "TimeoutError"),
        *_facts(_LOST, "urllib3.exceptions", "NewConnectionError MaxRetryError ProxyError"),
        *_facts(_BROKEN_OFF, "urllib3.exceptions", "ProtocolError IncompleteRead InvalidChunkLength"),
        *_facts(_SHORT, "urllib3.exceptions", "EmptyPoolError"),
        *_facts(_TLS, "urllib3.exceptions", "SSLError"),
        *_facts(_MISUSE, "urllib3.exceptions", "ResponseNotChunked LocationValueError"),
        # aiohttp
        *_facts(_LOST, "aiohttp.client_exceptions", "ClientConnectionError"),
        *_facts(_TIMEOUT, "aiohttp.client_exceptions", "ServerTimeoutError"),
        *_facts(_BROKEN_OFF, "aiohttp.client_exceptions", "ClientPayloadError"),
        *_facts(_TLS, "aiohttp.client_exceptions", "ClientSSLError"),
        *_facts(
            _CREDENTIALS,
            "aiohttp.client_exceptions",
            "ClientConnectorCertificateError ServerFingerprintMismatch",
        ),
        *_facts(_MISUSE, "aiohttp.client_exceptions", "InvalidURL NonHttpUrlClientError"),
        # botocore
        *_facts(_LOST, "botocore.exceptions", "ConnectionError HTTPClientError"),
        *_facts(_TIMEOUT, "botocore.exceptions", "ConnectTimeoutError ReadTimeoutError"),
        *_facts(_BROKEN_OFF, "botocore.exceptions", "IncompleteReadError ResponseStreamingError"),
        *_facts(_SHORT, "botocore.exceptions", "CapacityNotAvailableError"),
        *_facts(_TLS, "botocore.exceptions", "SSLError"),
        # grpc
        *_facts(_Fact(False, "an answer that does not pass by itself", _GRPC_PASSES), "grpc", "RpcError"),
        *_facts(_TIMEOUT, "grpc", "FutureTimeoutError"),
    )
)
