"""Generates inputs that a broken, foreign or hostile sender could put on a queue, into a row or a variable.

Everything is drawn from one seeded source, so that a finding is a seed and a number. Half of the messages begin as
right ones and are damaged; the other half are built key by key from what is almost right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from aft.envelope import MOST_BYTES, MOST_DEPTH, MOST_DIGITS, MOST_TEXT, Message, MessageKind
from aft.ids import FaultId, OrderId, RunId

#: What stands for a password: it must not turn up in any text.
SECRET = "s3cr3t"
KEYS = ("v", "id", "kind", "run", "fault", "order", "at", "trace")

_TIMES = (
    "2024-05-17T12:30:00+00:00",
    "2024-05-17T12:30:00",
    "2024-05-17",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999-23:59",
    "2024-02-30T00:00:00+00:00",
    "2024-05-17T24:00:00+00:00",
    "2024-05-17T12:30:60+00:00",
    "2024-05-17T12:30:00+24:00",
    "2024-05-17T12:30:00+00:00:00.000001",
    "2024-W20-5T12:30:00Z",
    "20240517T123000Z",
    "2024-05-17 12:30:00Z",
    "٢٠٢٤-٠٥-١٧T١٢:٣٠:٠٠+00:00",
    "10000-01-01T00:00:00Z",
    "-001-01-01T00:00:00Z",
    "1e9",
    "now",
)
_TEXTS = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff\ud800",
    "١٢٣",
    "é" * 40,
    "\u202e",
    "\n",
    "'; DROP TABLE runs; --",
    "%s%n",
    "../../etc/passwd",
    "\x7f",
    "\\",
    '"',
    "[[[[[[[[",
    "}}}}}}}}",
)
#: Tokens as they stand in JSON, and some that have no right to.
_TOKENS = (
    *("null", "true", "false", "NaN", "Infinity", "-Infinity", "-0", "0", "1", "2", "1.0", "1e0", "1e400", "-1e-400"),
    *(
        "01",
        "+1",
        ".5",
        "1.",
        "0x1",
        "1_0",
        "١",
        "{}",
        "[]",
        '""',
        "'1'",
        '"\\ud800"',
        '"\\u0000"',
        '"\\q"',
        "undefined",
    ),
    *("9" * MOST_DIGITS, "9" * (MOST_DIGITS + 1), "1" * 5000, "1e" + "9" * 30, "[" * 3 + "]" * 3, "{" * 9, "[" * 4000),
)
_NOISE = (
    *(b"\xff", b"\xfe\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\x00", b"\\", b'"'),
    *(b"\\u", b"\\\\", b'\\"', b"{", b"}", b"[", b"]", b":", b",", b"\r\n", b"9" * 25, b'\\\\"' * 40, b'"' * 40),
)


def a_message(rng: random.Random) -> Message:
    """Return a valid message."""
    kind = rng.choice(tuple(MessageKind))
    about_order = kind is MessageKind.RESUME and rng.random() < 0.5
    wake = _id(rng)
    trace = {_id(rng): rng.choice(_TEXTS) for _ in range(rng.choice((0, 0, 0, 1, 3)))}
    at = datetime(rng.randint(1, 9999), 6, 15, rng.randrange(24), tzinfo=_zone(rng))
    return Message(
        id=_id(rng),
        kind=kind,
        run=RunId(_id(rng)),
        fault=None if about_order else FaultId(wake),
        order=OrderId(wake) if about_order else None,
        at=at,
        trace=trace,
    )


def an_input(rng: random.Random) -> bytes:
    """Return bytes that may arrive where a message is expected."""
    chosen = rng.random()
    if chosen < 0.45:
        return damaged(rng, a_message(rng).encode().encode())
    if chosen < 0.85:
        return _almost(rng)
    return rng.choice((_noise, _deep, _long, _long_texts, _quotes, _whole))(rng)


def damaged(rng: random.Random, body: bytes) -> bytes:
    """Return a copy with one to four damages."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        body = rng.choice(_DAMAGES)(rng, body)
    return body


def _cut(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randint(0, len(body))]


def _flip(rng: random.Random, body: bytes) -> bytes:
    if not body:
        return body
    where = rng.randrange(len(body))
    return body[:where] + bytes([body[where] ^ (1 << rng.randrange(8))]) + body[where + 1 :]


def _put(rng: random.Random, body: bytes) -> bytes:
    where = rng.randint(0, len(body))
    return body[:where] + rng.choice(_NOISE) + body[where:]


def _take_out(rng: random.Random, body: bytes) -> bytes:
    where = rng.randint(0, len(body))
    return body[:where] + body[where + rng.randint(1, 12) :]


def _repeat(rng: random.Random, body: bytes) -> bytes:
    start = rng.randint(0, len(body))
    end = min(len(body), start + rng.randint(1, 60))
    return body[:end] + body[start:end] * rng.choice((1, 1, 2, 30)) + body[end:]


def _swap_token(rng: random.Random, body: bytes) -> bytes:
    quoted = body.split(b'"')
    where = rng.randrange(len(quoted))
    quoted[where] = rng.choice(_TOKENS).encode("utf-8", "surrogatepass")
    return b'"'.join(quoted)


_DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut,
    _flip,
    _flip,
    _put,
    _take_out,
    _repeat,
    _swap_token,
)


def _almost(rng: random.Random) -> bytes:
    """Return an object written key by key: some wrong, some missing, some duplicate, some unknown."""
    pairs = [(key, json.dumps(value)) for key, value in json.loads(a_message(rng).encode()).items()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.random()
        if change < 0.6 or not pairs:
            pairs.insert(rng.randint(0, len(pairs)), (rng.choice(KEYS), _value(rng)))
            if rng.random() < 0.8:
                pairs = list(dict(pairs).items())
        elif change < 0.8:
            pairs.pop(rng.randrange(len(pairs)))
        else:
            pairs.append((rng.choice(("later", "", "V", "v ", "trace", "\ud800")), _value(rng)))
    rng.shuffle(pairs)
    blank = rng.choice(("", "", " ", "\n\t "))
    text = "{" + f",{blank}".join(f"{json.dumps(key)}:{blank}{value}" for key, value in pairs) + "}"
    return text.encode("utf-8", "surrogatepass")


def _value(rng: random.Random) -> str:
    """Return a JSON value, or text that resembles one."""
    chosen = rng.random()
    if chosen < 0.3:
        return rng.choice(_TOKENS)
    if chosen < 0.5:
        return json.dumps(rng.choice(_TIMES), ensure_ascii=rng.random() < 0.5)
    if chosen < 0.7:
        return json.dumps(rng.choice(_TEXTS), ensure_ascii=rng.random() < 0.5)
    if chosen < 0.8:
        return json.dumps("x" * (MOST_TEXT + rng.choice((-1, 0, 1, 4000))))
    if chosen < 0.9:
        return json.dumps(
            {rng.choice(_TEXTS): rng.choice((*_TEXTS, 1, None, [], {})) for _ in range(rng.randint(0, 4))}
        )
    return json.dumps(
        rng.choice([rng.getrandbits(70), rng.random(), [1], [[["x"]]], rng.choice(tuple(MessageKind)).value])
    )


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 7, 300, MOST_BYTES, MOST_BYTES + 1)))


def _deep(rng: random.Random) -> bytes:
    opening = rng.choice((b"[", b'{"a":', b'[{"v":', b'"[" '))
    return opening * rng.choice((MOST_DEPTH, MOST_DEPTH + 1, 60, 1300)) + rng.choice((b"", b"1", b"]", b"}" * 50))


def _long(rng: random.Random) -> bytes:
    """Return a valid message, padded to about the largest size allowed."""
    body = a_message(rng).encode().encode()
    return body + b" " * (MOST_BYTES - len(body) + rng.choice((-1, 0, 1, 100_000)))


def _long_texts(rng: random.Random) -> bytes:
    """Return a valid message with a long trace of characters that grow when they are escaped."""
    character = rng.choice(("a", "é", "\u2028", "\U0001f600", "\\", '"', "\x01", "\ud800", "["))
    body = json.loads(a_message(rng).encode()) | {"trace": {"a": character * rng.randint(100, 8_000)}}
    return json.dumps(body, ensure_ascii=rng.random() < 0.3).encode("utf-8", "surrogatepass")


def _quotes(rng: random.Random) -> bytes:
    """Return many quotes that are not closed, on which a careless pattern would not terminate."""
    piece = rng.choice((b'\\"', b'\\\\"', b'"\\', b'"', b'\\\\\\"', b'"a', b'"\\\\', b"\\\\", b'[\\"', b'9"', b"1"))
    return rng.choice((b"", b"{", b'{"', b'"')) + piece * rng.randint(1, MOST_BYTES // len(piece) - 2)


def _whole(rng: random.Random) -> bytes:
    return rng.choice((*_TOKENS, *map(json.dumps, _TEXTS))).encode("utf-8", "surrogatepass")


def _id(rng: random.Random) -> str:
    if rng.random() < 0.8:
        return str(UUID(int=rng.getrandbits(128), version=4))
    return rng.choice(("r", "x" * MOST_TEXT, " ", "'", "a b", "[{", '"', "\\"))


def _zone(rng: random.Random) -> timezone:
    return UTC if rng.random() < 0.7 else timezone(timedelta(seconds=rng.randint(-86_399, 86_399)))


# --- what lies in rows, and what users pass -----------------------------------------------------------------------

_MARKS = (
    "dict",
    "tuple",
    "set",
    "frozenset",
    "datetime",
    "time",
    "date",
    "timedelta",
    "decimal",
    "uuid",
    "bytes",
    "",
    "x",
)


def a_stored_text(rng: random.Random) -> str:
    """Return text that may stand in a column of arguments or results."""
    chosen = rng.random()
    if chosen < 0.5:
        return json.dumps(_tagged(rng, rng.randint(0, 4)), ensure_ascii=rng.random() < 0.5)
    if chosen < 0.8:
        text = json.dumps(_tagged(rng, 3))
        return damaged(rng, text.encode()).decode("utf-8", rng.choice(("replace", "surrogateescape", "ignore")))
    if chosen < 0.9:
        return an_input(rng).decode("utf-8", "surrogateescape")
    return rng.choice(("[", '{"a":', '{"$aft":"tuple","v":[', '"\\')) * rng.choice((1, 21, 63, 64, 65, 3000))


def _tagged(rng: random.Random, depth: int) -> Any:
    """Return JSON with tags in it, valid and invalid ones."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice((*_TEXTS, *_TIMES, None, True, 0, -1, 10**30, 1e300, 0.1, "1e999999", "AAAA", "a"))
    inner = [_tagged(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    chosen = rng.random()
    if chosen < 0.3:
        return inner
    if chosen < 0.5:
        return {rng.choice(("a", "b", "steps", "$aft", "v")): item for item in inner}
    tagged: dict[str, Any] = {"$aft": rng.choice(_MARKS), "v": rng.choice((inner, *inner, [inner], rng.choice(_TIMES)))}
    if rng.random() < 0.2:
        tagged[rng.choice(("zone", "fold", "self", "kind", "v2"))] = rng.choice(
            ("Europe/Berlin", "../../etc", "/etc/passwd", "", "\x00", "America", 1, 7, None, [])
        )
    return tagged


class _Sly(str):
    """A text whose comparisons raise."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = str.__hash__


class _Mute:
    """An object whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


def a_python_value(rng: random.Random, depth: int = 4) -> Any:
    """Return a value that a user may pass as an argument, or return."""
    if depth and rng.random() < 0.5:
        return _a_container(rng, [a_python_value(rng, depth - 1) for _ in range(rng.randint(0, 3))])
    return rng.choice(_VALUES)(rng)


def _a_container(rng: random.Random, inner: list[Any]) -> Any:
    chosen = rng.random()
    if chosen < 0.3:
        return inner
    if chosen < 0.5:
        return tuple(inner)
    if chosen < 0.6:
        inner.append(inner)  # it holds itself
        return inner
    try:
        return dict.fromkeys(inner, 1) if chosen < 0.8 else frozenset(inner)
    except (TypeError, RuntimeError):
        return {"a": inner, "$aft": 1}


_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: rng.choice(_TEXTS),
    lambda rng: rng.choice((0, -1, True, None, 10**30, 10**4000, 10**5000, -(10**4400))),
    lambda rng: rng.choice((0.0, -0.0, 1e308, float("inf"), float("nan"))),
    lambda rng: rng.choice((Decimal("NaN"), Decimal("sNaN"), Decimal("1e999999"), Decimal("-0.0"), Decimal("1.10"))),
    lambda rng: rng.choice((datetime.min, datetime.max, datetime.now(UTC), date.max, time(1, fold=1))),
    lambda rng: datetime(2024, 10, 27, 2, 30, fold=rng.randint(0, 1), tzinfo=ZoneInfo("Europe/Berlin")),
    lambda rng: datetime.max.replace(tzinfo=_zone(rng)),
    lambda rng: rng.choice((timedelta.max, timedelta.min, timedelta(microseconds=1))),
    lambda rng: rng.choice((b"", b"\xff" * 99, bytearray(b"x"), memoryview(b"x"))),
    lambda rng: rng.choice((_Sly("sly"), _Mute(), object(), object, len, iter([1]), range(3), 1j, Ellipsis)),
    lambda rng: UUID(int=rng.getrandbits(128)),
)


# --- settings, durations, ladders, addresses ----------------------------------------------------------------------


def a_setting(rng: random.Random) -> str:
    """Return a text for a variable; one that resembles a URL contains the secret."""
    chosen = rng.random()
    if chosen < 0.4:
        return a_url(rng)
    if chosen < 0.7:
        return a_duration(rng)
    if chosen < 0.9:
        return a_ladder(rng)
    return rng.choice((*_TEXTS, *_TOKENS, "quorum", "classic", "embedded", "yes", "on", "aft", "A", "a" * 41))


def a_duration(rng: random.Random) -> str:
    pieces = (
        "1",
        "10",
        "0",
        "-1",
        ".5",
        "1.",
        "9" * 400,
        "١",
        "1e5",
        "s",
        "m",
        "h",
        "d",
        "ms",
        "S",
        "w",
        " ",
        "nan",
        "\n",
    )
    return "".join(rng.choice(pieces) for _ in range(rng.choice((1, 2, 2, 4, 4, 30))))


def a_ladder(rng: random.Random) -> str:
    marks = ("*3", "*0", "*", "*-1", "*9999999", "*" + "9" * 500, "*٣", "", "")
    many = rng.choice((0, 1, 2, 3, 3, 33))
    return rng.choice((",", ", ", ";", ",,")).join(
        rng.choice(("10s", "1m", a_duration(rng))) + rng.choice(marks) for _ in range(many)
    )


def a_url(rng: random.Random) -> str:
    """Return a URL with a password, valid or invalid elsewhere."""
    scheme = rng.choice(
        (
            "amqp",
            "amqps",
            "postgresql",
            "postgresql+psycopg",
            "postgres",
            "sqlite",
            "mysql",
            "http",
            "",
            "AMQP",
            "a mqp",
        )
    )
    odd = ("", "", "", "", "/", "?", "#", "%", "%zz", ":", "@", "[", "]", " ", "é", "\t", "\\")
    host = rng.choice(("localhost", "127.0.0.1", "[::1]", "[::1", "", "h" * 300, "höst", "a b", "h,i", "%00"))
    port = rng.choice(("", ":5672", ":0", ":99999", ":-1", ":x", ":", ":٥"))
    path = rng.choice(("", "/", "/v", "/%2F", "/a/b", "/:memory:", "//x", "/\x01"))
    query = rng.choice(("", "", "?heartbeat=x", "?a", "?ssl_options=print(1)", "?retry_delay=[", "?x=%ff", "#f"))
    return f"{scheme}://user:{rng.choice(odd)}{SECRET}{rng.choice(odd)}@{host}{port}{path}{query}"
