"""Parses PostgreSQL's protocol: splits it into frames, and finds the frame that makes a write durable.

That is a COMMIT of a transaction that has written, or a statement that writes while there is no transaction: each is a
transaction then. Nothing is guessed: where answers are outstanding, so that nobody knows yet whether there will be
a transaction, a frame is taken for a harmless one.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["COMMIT", "statement"]

#: The codes of first messages that ask for encryption, by TLS or by GSSAPI: a first message follows once more.
_ENCRYPTION = (80_877_103, 80_877_104)
#: What stands at the beginning of a statement: comments and brackets say nothing of it.
_FIRST = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)
#: A write anywhere in a statement; ``FOR UPDATE`` and ``FOR NO KEY UPDATE`` only lock.
_WRITE = re.compile(
    r"\b(INSERT\s+INTO|DELETE\s+FROM|(?<!FOR )(?<!KEY )(?<!DO )UPDATE)\s+(?:ONLY\s+)?(\w+)", re.IGNORECASE
)
_VERBS = {"BEGIN": "begin", "START": "begin", "COMMIT": "commit", "END": "commit"}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: its type, which is empty for the first one; its body; and its raw bytes."""

    kind: bytes
    body: bytes
    raw: bytes

    @property
    def asks_for_encryption(self) -> bool:
        """Whether the client requests encryption."""
        return not self.kind and int.from_bytes(self.body[:4], "big") in _ENCRYPTION


class Frames:
    """Splits the bytes of one side into frames, however they were packed."""

    def __init__(self, *, client: bool) -> None:
        self._pending = b""
        #: A client's first message has no type.
        self._first = client

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now."""
        self._pending += data
        while (frame := self._next()) is not None:
            self._pending = self._pending[len(frame.raw) :]
            self._first = self._first and frame.asks_for_encryption
            yield frame

    def _next(self) -> Frame | None:
        begin = 0 if self._first else 1
        if len(self._pending) < begin + 4:
            return None
        (length,) = struct.unpack_from("!I", self._pending, begin)
        end = begin + length
        if len(self._pending) < end:
            return None
        return Frame(self._pending[:begin], self._pending[begin + 4 : end], self._pending[:end])


@dataclass(frozen=True, slots=True)
class Write:
    """A durable write: the kind of message that commits it, and what it writes, as ``UPDATE aft_runs``.

    Of a COMMIT that is what the first statement wrote that its transaction has executed.
    """

    kind: Kind
    words: str


@dataclass(frozen=True, slots=True)
class _Statement:
    verb: str
    words: str = ""


@functools.lru_cache(maxsize=1024)
def _read(statement: bytes) -> _Statement:
    text = statement.decode(errors="replace")
    first = _FIRST.match(text)
    word = first[1].upper() if first else ""
    if word in _VERBS:
        return _Statement(_VERBS[word])
    found = _WRITE.findall(text) if word in ("INSERT", "UPDATE", "DELETE", "WITH") else []
    writes = dict.fromkeys(f"{how.split()[0].upper()} {table}" for how, table in found)
    return _Statement("write", ", ".join(writes)) if writes else _Statement("other")


class Session:
    """The state of one connection, from both directions. Not thread-safe."""

    def __init__(self) -> None:
        self._statements: dict[bytes, _Statement] = {}
        self._portals: dict[bytes, _Statement] = {}
        #: What the server says of a transaction: I none, T within one, E within one that has failed.
        self._status = b"I"
        #: How often it has still to say so.
        self._awaited = 0
        #: Whether a transaction has been begun since it said so last.
        self._begun = False
        #: What the transaction has written first.
        self._written = ""

    def sent(self, frame: Frame) -> Write | None:
        """Process a frame from the client; return the write that it makes durable if it is executed."""
        match frame.kind:
            case b"P":
                name, words, _ = frame.body.split(b"\0", 2)
                self._statements[name] = _read(words)
            case b"B":
                portal, name, _ = frame.body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, _Statement("other"))
            case b"E":
                return self._executed(self._portals.get(frame.body.split(b"\0", 1)[0], _Statement("other")))
            case b"Q":
                write = self._executed(_read(frame.body.rstrip(b"\0")))
                self._awaited += 1
                return write
            case b"" | b"S" | b"F":
                self._awaited += 1
        return None

    def heard(self, frame: Frame) -> None:
        """Process a frame from the server."""
        if frame.kind != b"Z":
            return
        self._awaited -= 1
        self._status, self._begun = frame.body, False
        if frame.body == b"I":
            self._written = ""

    def _executed(self, statement: _Statement) -> Write | None:
        if statement.verb == "begin":
            self._begun = True
        elif statement.verb == "commit":
            if self._written and self._status == b"T" and not self._awaited:
                return Write("COMMIT", self._written)
        elif statement.verb == "write":
            if self._status == b"I" and not self._begun and not self._awaited:
                return Write("statement", statement.words)
            self._written = self._written or statement.words
        return None


def did_nothing(tag: bytes) -> bool:
    """Whether the command tag of a statement says that it changed no row."""
    return tag.rstrip(b"\0").split(b" ")[-1] == b"0"
