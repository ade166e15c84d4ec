"""Claims about which faults pass by themselves, on the real classes where the project has the library.

The others are lists of names as printed from the libraries themselves: httpx 0.28, requests 2.34, urllib3
2.8, aiohttp 3.14, botocore 1.44, redis 8.1, grpcio 1.85.
"""

from __future__ import annotations

import email.message
import http
import http.client
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import urllib.error
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pika.exceptions
import psycopg.errors
import psycopg_pool
import pytest
import sqlalchemy as sa
import sqlalchemy.exc
from hypothesis import given
from hypothesis import strategies as st

from aft.recovery.http_hints import http_status, retry_after
from aft.recovery.known_exceptions import classify_exception, mro_names

NOW = datetime(2024, 2, 29, 12, 0, 0, tzinfo=UTC)
ENDING = ["builtins.Exception", "builtins.BaseException", "builtins.object"]


class Lost(ConnectionResetError):
    """A user's own subclass."""


PASSING: list[BaseException] = [
    ConnectionRefusedError(111, "Connection refused"),
    BrokenPipeError(),
    Lost(),
    TimeoutError("timed out"),
    BlockingIOError(11, "Resource temporarily unavailable"),
    socket.gaierror(-3, "Temporary failure in name resolution"),
    OSError(101, "Network is unreachable"),
    OSError(113, "No route to host"),
    ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    ssl.SSLError("The read operation timed out"),
    http.client.RemoteDisconnected("Remote end closed connection without response"),
    http.client.IncompleteRead(b"x", 10),
    urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")),
    urllib.error.URLError(TimeoutError("timed out")),
    subprocess.TimeoutExpired("cmd", 3),
    smtplib.SMTPServerDisconnected("gone"),
    smtplib.SMTPDataError(451, b"try later"),
    sqlite3.OperationalError("database is locked"),
    sqlite3.OperationalError("database table is locked: runs"),
    psycopg.OperationalError("connection failed: Connection refused"),
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.errors.ConnectionTimeout("connection timeout expired"),
    psycopg.errors.SerializationFailure("could not serialize access"),
    psycopg.errors.DeadlockDetected("deadlock detected"),
    psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"),
    psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    psycopg.errors.IdleInTransactionSessionTimeout("terminating connection"),
    psycopg.errors.TooManyConnections("sorry, too many clients already"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    psycopg.errors.CannotConnectNow("the database system is starting up"),
    psycopg.errors.DiskFull("could not extend file"),
    psycopg_pool.PoolTimeout("couldn't get a connection after 30 sec"),
    psycopg_pool.TooManyRequests("the pool has already 3 requests waiting"),
    sqlalchemy.exc.TimeoutError("QueuePool limit of size 5 overflow 10 reached"),
    sqlalchemy.exc.DisconnectionError("gone"),
    pika.exceptions.AMQPConnectionError("Connection refused"),
    pika.exceptions.StreamLostError("Stream connection lost"),
    pika.exceptions.AMQPHeartbeatTimeout("no activity"),
    pika.exceptions.ConnectionBlockedTimeout("blocked"),
    pika.exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED - broker forced connection closure"),
    pika.exceptions.ChannelWrongStateError("Channel is closed."),
    pika.exceptions.ChannelClosedByBroker(405, "RESOURCE_LOCKED - cannot obtain exclusive access"),
    pika.exceptions.NackError([]),
]

LASTING: list[BaseException] = [
    ValueError("x"),
    KeyError("x"),
    RuntimeError("connection is closed"),
    OSError(28, "No space left on device"),
    FileNotFoundError(2, "No such file or directory"),
    PermissionError(13, "Permission denied"),
    ssl.SSLCertVerificationError(1, "certificate verify failed"),
    ssl.SSLError("wrong version number"),
    http.client.InvalidURL("x"),
    urllib.error.URLError("unknown url type: foo"),
    urllib.error.URLError("no host given"),
    urllib.error.URLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    smtplib.SMTPAuthenticationError(535, b"no"),
    sqlite3.OperationalError("no such table: x"),
    sqlite3.IntegrityError("UNIQUE constraint failed"),
    psycopg.OperationalError('connection failed: FATAL: password authentication failed for user "x"'),
    psycopg.OperationalError('connection failed: FATAL: database "x" does not exist'),
    psycopg.errors.InvalidPassword("x"),
    psycopg.errors.InvalidCatalogName("x"),
    psycopg.errors.UniqueViolation("x"),
    psycopg.errors.UndefinedTable("x"),
    psycopg.errors.ProgramLimitExceeded("x"),
    psycopg.errors.DatabaseDropped("x"),
    psycopg.errors.FdwTableNotFound("x"),
    psycopg.errors.ObjectNotInPrerequisiteState("x"),
    psycopg.InterfaceError("cannot adapt"),
    psycopg_pool.PoolClosed("the pool is not open yet"),
    sqlalchemy.exc.NoResultFound("x"),
    sqlalchemy.exc.PendingRollbackError("x"),
    pika.exceptions.ProbableAuthenticationError("x"),
    pika.exceptions.ProbableAccessDeniedError("x"),
    pika.exceptions.AuthenticationError("x"),
    pika.exceptions.IncompatibleProtocolError("x"),
    pika.exceptions.ConnectionClosedByBroker(530, "NOT_ALLOWED - vhost x not found"),
    pika.exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no queue 'x'"),
    pika.exceptions.UnroutableError([]),
]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
def test_a_fault_that_passes_is_recoverable(fault: BaseException) -> None:
    verdict = classify_exception(mro_names(type(fault)), http_status(fault), str(fault))
    assert verdict.recoverable, verdict.reason


@pytest.mark.parametrize("fault", LASTING, ids=repr)
def test_a_fault_that_lasts_is_unrecoverable(fault: BaseException) -> None:
    verdict = classify_exception(mro_names(type(fault)), http_status(fault), str(fault))
    assert not verdict.recoverable, verdict.reason


def names(text: str) -> list[str]:
    """Read "httpx: ConnectError NetworkError ssl.SSLError": a module and its classes, most derived first."""
    module, _, classes = text.partition(": ")
    return [name if "." in name else f"{module}.{name}" for name in classes.split()] + ENDING


HTTPX = "TransportError RequestError HTTPError"
REQUESTS = "RequestException builtins.OSError"
BOTO = "botocore.exceptions"
AIOHTTP = "ClientConnectionError ClientError"
URLLIB3_REQUEST = "RequestError PoolError HTTPError"
URLLIB3 = "urllib3.exceptions"
SSL_TEXT = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
EOF_TEXT = "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"


@pytest.mark.parametrize(
    ("spelled", "message", "recoverable"),
    [
        (f"httpx: ConnectError NetworkError {HTTPX}", "[Errno 111] Connection refused", True),
        (f"httpx: ConnectError NetworkError {HTTPX}", SSL_TEXT, False),
        (f"httpx: ReadTimeout TimeoutException {HTTPX}", "", True),
        (f"httpx: PoolTimeout TimeoutException {HTTPX}", "", True),
        (f"httpx: RemoteProtocolError ProtocolError {HTTPX}", "Server disconnected", True),
        (f"httpx: ProxyError {HTTPX}", "502 Bad Gateway", True),
        (f"httpx: ProxyError {HTTPX}", "407 Proxy Authentication Required", False),
        (f"httpx: UnsupportedProtocol {HTTPX}", "", False),
        (f"httpx: LocalProtocolError ProtocolError {HTTPX}", "", False),
        ("httpx: DecodingError RequestError HTTPError", "", False),
        ("httpx: TooManyRedirects RequestError HTTPError", "", False),
        ("httpx: HTTPStatusError HTTPError", "", False),
        ("httpx: InvalidURL", "", False),
        ("httpcore: ConnectTimeout TimeoutException", "", True),
        ("httpcore: UnsupportedProtocol", "", False),
        (f"requests.exceptions: ConnectionError {REQUESTS}", "Max retries exceeded", True),
        (f"requests.exceptions: ConnectTimeout ConnectionError Timeout {REQUESTS}", "", True),
        (f"requests.exceptions: ReadTimeout Timeout {REQUESTS}", "", True),
        (f"requests.exceptions: ChunkedEncodingError {REQUESTS}", "", True),
        (f"requests.exceptions: SSLError ConnectionError {REQUESTS}", SSL_TEXT, False),
        (f"requests.exceptions: SSLError ConnectionError {REQUESTS}", EOF_TEXT, True),
        (f"requests.exceptions: InvalidURL {REQUESTS} builtins.ValueError", "", False),
        (f"requests.exceptions: TooManyRedirects {REQUESTS}", "", False),
        (f"requests.exceptions: HTTPError {REQUESTS}", "", False),
        (f"{URLLIB3}: ReadTimeoutError TimeoutError {URLLIB3_REQUEST}", "", True),
        (f"{URLLIB3}: NewConnectionError ConnectTimeoutError TimeoutError HTTPError", "", True),
        (f"{URLLIB3}: ProtocolError HTTPError", "Connection aborted", True),
        (f"{URLLIB3}: MaxRetryError {URLLIB3_REQUEST}", "Max retries exceeded", True),
        (f"{URLLIB3}: MaxRetryError {URLLIB3_REQUEST}", f"Caused by SSLError({SSL_TEXT})", False),
        (f"{URLLIB3}: MaxRetryError {URLLIB3_REQUEST}", "ResponseError('too many redirects')", False),
        (f"{URLLIB3}: ResponseNotChunked ProtocolError HTTPError builtins.ValueError", "", False),
        (f"{URLLIB3}: LocationParseError LocationValueError builtins.ValueError HTTPError", "", False),
        (f"{URLLIB3}: TimeoutStateError HTTPError", "", False),
        (f"aiohttp.client_exceptions: ServerDisconnectedError ServerConnectionError {AIOHTTP}", "", True),
        (
            "aiohttp.client_exceptions: SocketTimeoutError ServerTimeoutError ServerConnectionError "
            f"{AIOHTTP} builtins.TimeoutError builtins.OSError",
            "",
            True,
        ),
        (
            f"aiohttp.client_exceptions: ClientConnectorError ClientOSError {AIOHTTP} builtins.OSError",
            "",
            True,
        ),
        ("aiohttp.client_exceptions: ClientPayloadError ClientError", "", True),
        (
            "aiohttp.client_exceptions: ClientConnectorCertificateError ClientSSLError ClientConnectorError "
            f"ClientOSError {AIOHTTP} ssl.SSLCertVerificationError ssl.SSLError builtins.OSError",
            "",
            False,
        ),
        (f"aiohttp.client_exceptions: ServerFingerprintMismatch ServerConnectionError {AIOHTTP}", "", False),
        ("aiohttp.client_exceptions: InvalidURL ClientError builtins.ValueError", "", False),
        ("aiohttp.client_exceptions: ClientResponseError ClientError", "", False),
        (f"{BOTO}: EndpointConnectionError ConnectionError BotoCoreError", "", True),
        (f"{BOTO}: ConnectTimeoutError ConnectionError BotoCoreError", "", True),
        (f"{BOTO}: ReadTimeoutError HTTPClientError BotoCoreError", "", True),
        (f"{BOTO}: ConnectionClosedError HTTPClientError BotoCoreError", "", True),
        (f"{BOTO}: SSLError ConnectionError BotoCoreError", SSL_TEXT, False),
        (f"{BOTO}: NoCredentialsError BotoCoreError", "", False),
        (f"{BOTO}: ParamValidationError BotoCoreError", "", False),
        ("redis.exceptions: ConnectionError RedisError", "Error 111 connecting", True),
        ("redis.exceptions: TimeoutError RedisError", "", True),
        ("redis.exceptions: BusyLoadingError ConnectionError RedisError", "", True),
        ("redis.exceptions: TryAgainError ResponseError RedisError", "", True),
        (
            "redis.exceptions: MasterDownError ClusterDownError ClusterError ResponseError RedisError",
            "",
            True,
        ),
        ("redis.exceptions: WatchError RedisError", "", True),
        ("redis.exceptions: LockError RedisError builtins.ValueError", "Unable to acquire lock within", True),
        (
            "redis.exceptions: LockNotOwnedError LockError RedisError builtins.ValueError",
            "no longer owned",
            False,
        ),
        ("redis.exceptions: AuthenticationError ConnectionError RedisError", "", False),
        ("redis.exceptions: AuthorizationError ConnectionError RedisError", "", False),
        ("redis.exceptions: ResponseError RedisError", "WRONGTYPE", False),
        ("grpc: grpc._channel._InactiveRpcError RpcError", "status = StatusCode.UNAVAILABLE", True),
        ("grpc: grpc.aio._call.AioRpcError RpcError", "status = StatusCode.NOT_FOUND", False),
        ("psycopg2: psycopg2.errors.DeadlockDetected OperationalError DatabaseError Error", "", True),
        ("psycopg2: psycopg2.errors.InvalidPassword OperationalError DatabaseError Error", "", False),
        ("psycopg2: InterfaceError Error", "connection already closed", True),
        ("acme: CmsDown httpx.ConnectError httpx.NetworkError httpx.TransportError", "", True),
    ],
)
def test_a_library_s_fault_is_known_by_its_names(spelled: str, message: str, recoverable: bool) -> None:
    verdict = classify_exception(names(spelled), None, message)
    assert verdict.recoverable is recoverable, verdict.reason


def wrapped(original: BaseException, kind: Any = sqlalchemy.exc.OperationalError) -> sqlalchemy.exc.DBAPIError:
    found = kind("SELECT 1", {}, original)
    assert isinstance(found, sqlalchemy.exc.DBAPIError)
    return found


@pytest.mark.parametrize(
    ("fault", "recoverable"),
    [
        (wrapped(psycopg.OperationalError("connection refused")), True),
        (wrapped(psycopg.OperationalError('database "x" does not exist')), False),
        (wrapped(psycopg.errors.DeadlockDetected("deadlock detected")), True),
        (wrapped(psycopg.errors.InvalidPassword("no")), False),
        (wrapped(psycopg.errors.TransactionTimeout("late"), sqlalchemy.exc.InternalError), True),
        (wrapped(psycopg.errors.UniqueViolation("twice"), sqlalchemy.exc.IntegrityError), False),
        (wrapped(psycopg.errors.UndefinedTable("none"), sqlalchemy.exc.ProgrammingError), False),
        (wrapped(sqlite3.OperationalError("database is locked")), True),
        (wrapped(sqlite3.OperationalError("no such table: x")), False),
        (wrapped(Exception("(1213, 'Deadlock found')")), True),
        (wrapped(Exception("connection was closed"), sqlalchemy.exc.InterfaceError), True),
        (wrapped(Exception("bad parameter"), sqlalchemy.exc.InterfaceError), False),
    ],
    ids=lambda found: str(found)[:60],
)
def test_what_sqlalchemy_wraps_is_judged_by_what_it_wraps(fault: sqlalchemy.exc.DBAPIError, recoverable: bool) -> None:
    assert classify_exception(mro_names(type(fault)), None, str(fault)).recoverable is recoverable


def test_sqlalchemy_really_names_what_it_wraps() -> None:
    with sa.create_engine("sqlite://").connect() as connection:
        with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
            connection.execute(sa.text("SELECT * FROM missing"))
        connection.connection.invalidate()
    verdict = classify_exception(mro_names(caught.type), None, str(caught.value))
    assert not verdict.recoverable
    assert "sqlite3.OperationalError" in verdict.reason


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
def test_a_status_that_passes_is_recoverable_whatever_the_class(status: int) -> None:
    assert classify_exception(["builtins.ValueError"], status).recoverable


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 500, 501, 505])
def test_any_other_refusal_is_unrecoverable_whatever_the_class(status: int) -> None:
    assert not classify_exception(["builtins.ConnectionError"], status).recoverable


def test_a_status_that_is_no_refusal_says_nothing() -> None:
    assert classify_exception(["builtins.ConnectionError"], 200).recoverable
    assert not classify_exception(["builtins.ValueError"], 204).recoverable


def test_a_refusal_that_names_a_time_to_come_back_passes() -> None:
    assert classify_exception(["httpx.HTTPStatusError"], 403, retry_after=timedelta(seconds=5)).recoverable
    assert classify_exception(["acme.Busy"], None, retry_after=timedelta(0)).recoverable


def test_aws_throttles_with_status_400() -> None:
    modelled = [
        "botocore.errorfactory.ProvisionedThroughputExceededException",
        f"{BOTO}.ClientError",
        *ENDING,
    ]
    assert classify_exception(modelled, 400).recoverable
    plain = [f"{BOTO}.ClientError", *ENDING]
    assert classify_exception(
        plain, 400, "An error occurred (ThrottlingException) when calling the X operation: Rate"
    ).recoverable
    assert not classify_exception(plain, 400, "An error occurred (ValidationException) when calling X").recoverable
    assert classify_exception(plain, 500, "An error occurred (InternalError) when calling X").recoverable


def test_what_is_unknown_says_what_to_do() -> None:
    verdict = classify_exception(mro_names(ValueError), None)
    assert verdict.reason == (
        "ValueError is not known to pass by itself; raise aft.Recoverable or declare recoverable=(ValueError,)"
    )


def test_a_reason_names_the_class_and_the_base_that_is_known() -> None:
    assert classify_exception(mro_names(psycopg.OperationalError)).reason == (
        "psycopg.OperationalError is a lost or refused connection"
    )
    assert "Lost (a builtins.ConnectionError)" in classify_exception(mro_names(Lost)).reason


def test_names_begin_with_the_class_itself() -> None:
    found = mro_names(psycopg.errors.DeadlockDetected)
    assert found[:2] == ["psycopg.errors.DeadlockDetected", "psycopg.OperationalError"]
    assert found[-1] == "builtins.object"


def test_every_error_of_postgresql_that_is_known_exists() -> None:
    from aft.recovery import known_exceptions

    for name in known_exceptions._FACTS:
        module, _, kind = name.rpartition(".")
        for known in (
            psycopg,
            psycopg.errors,
            psycopg_pool,
            pika.exceptions,
            sqlalchemy.exc,
            ssl,
            socket,
            smtplib,
        ):
            if known.__name__ == module:
                assert mro_names(getattr(known, kind))[0] == name


@given(st.lists(st.text(max_size=20), max_size=4), st.none() | st.integers(), st.text())
def test_judging_always_answers(mro: list[str], status: int | None, message: str) -> None:
    assert classify_exception(mro, status, message).reason


# ---------------------------------------------------------------------- what an exception carries


class Carrying(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


class Hostile(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no")

    @property
    def response(self) -> Any:
        raise RuntimeError("no")

    @property
    def headers(self) -> Any:
        return SimpleNamespace(items=lambda: 1 / 0)

    @property
    def retry_after(self) -> Any:
        raise KeyError("no")


BOTO_RESPONSE = {"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "7"}}}


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Carrying(status_code=503), 503),
        (Carrying(status=http.HTTPStatus.NOT_FOUND), 404),
        (Carrying(response=SimpleNamespace(status_code=429)), 429),
        (Carrying(response=SimpleNamespace(status=429)), 429),
        (Carrying(response=BOTO_RESPONSE), 503),
        (Carrying(status_code="503", response=SimpleNamespace(status_code=504)), 504),
        (Carrying(code=lambda: 503), None),
        (Carrying(status=True), None),
        (Carrying(status=99), None),
        (Carrying(code=600), None),
        (Carrying(response={"ResponseMetadata": None}), None),
        (Hostile(), None),
        (ValueError(), None),
    ],
    ids=repr,
)
def test_a_status_is_found_where_libraries_keep_it(fault: BaseException, status: int | None) -> None:
    found = http_status(fault)
    assert found == status
    assert type(found) is type(status)


def test_urllib_s_own_error_carries_status_and_headers() -> None:
    headers = email.message.Message()
    headers["Retry-After"] = "120"
    with urllib.error.HTTPError("http://x", 503, "busy", headers, None) as fault:
        assert http_status(fault) == 503
        assert retry_after(fault, NOW) == timedelta(minutes=2)
        assert classify_exception(mro_names(type(fault)), 503, str(fault)).recoverable


def with_header(value: Any, name: Any = "Retry-After") -> Carrying:
    return Carrying(response=SimpleNamespace(headers={"Content-Type": "x", name: value}))


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (with_header("30"), 30),
        (with_header("30", "retry-AFTER"), 30),
        (with_header(b"30", b"retry-after"), 30),
        (with_header("1.5"), 1.5),
        (with_header(" 5 "), 5),
        (with_header("-5"), 0),
        (with_header("99999999999999999999"), 7 * 86_400),
        (with_header("Thu, 29 Feb 2024 12:01:00 GMT"), 60),
        (with_header("Thu, 29 Feb 2024 11:00:00 GMT"), 0),
        (with_header("Thu, 28 Feb 2029 12:01:00 -0000"), 7 * 86_400),
        (with_header("soon"), None),
        (with_header(""), None),
        (with_header("nan"), None),
        (with_header(None), None),
        (with_header("9" * 5000), None),
        (Carrying(headers={"Retry-After": 3}), 3),
        (Carrying(headers=[("Retry-After", 3)]), None),
        (Carrying(response=BOTO_RESPONSE), 7),
        (Carrying(retry_after=2.5), 2.5),
        (Carrying(retry_after=timedelta(days=-1)), 0),
        (Carrying(retry_after=timedelta(days=30)), 7 * 86_400),
        (Carrying(retry_after=float("inf")), 7 * 86_400),
        (Carrying(retry_after=float("nan")), None),
        (Carrying(retry_after=10**400), 7 * 86_400),
        (Carrying(retry_after=True), None),
        (Carrying(retry_after=lambda: 3), None),
        (Hostile(), None),
        (ValueError(), None),
    ],
    ids=lambda found: str(getattr(found, "__dict__", found)).partition(" at 0x")[0][:60],
)
def test_a_server_s_wish_to_wait_is_found_and_bounded(fault: BaseException, seconds: float | None) -> None:
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert retry_after(fault, NOW) == expected


@given(st.text() | st.integers() | st.floats() | st.binary() | st.timedeltas())
def test_looking_for_a_wish_to_wait_never_raises(value: Any) -> None:
    for fault in (with_header(value), Carrying(retry_after=value)):
        found = retry_after(fault, NOW)
        assert found is None or timedelta(0) <= found <= timedelta(days=7)
