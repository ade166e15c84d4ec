"""Executes PostgreSQL's frequent statements with libpq itself, below psycopg's cursors.

A cursor makes some hundred Python calls for a statement, this a handful. Parameters are texts, the first is ``$1``.
Each statement is prepared with its first use on a connection; several are sent together, in one transaction, and cost
one round trip.
``prepared`` are the names of the statements that are prepared on the connection already. Errors are psycopg's own, as
from a cursor; all answers have been read by then, so the connection stays usable.
"""

from __future__ import annotations

import functools
import hashlib
import select
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn, PGresult

#: The parameters of a statement; bytes are JSON.
Parameters = Sequence[str | bytes | None]
#: libpq's result states: a command without rows, one with rows, and the end of a pipeline.
_DONE, _ROWS, _TOGETHER = 1, 2, 10


def execute(connection: psycopg.Connection[Any], prepared: set[bytes], statement: str, given: Parameters) -> PGresult:
    """Execute one statement; returns its rows."""
    server, name = connection.pgconn, name_of(statement)
    if name not in prepared:
        _check(server.prepare(name, statement.encode()))
        prepared.add(name)
    return _check(server.exec_prepared(name, _encode(given)))


def execute_all(
    connection: psycopg.Connection[Any], prepared: set[bytes], statements: Sequence[tuple[str, Parameters]]
) -> list[PGresult]:
    """Execute several statements in one round trip and one transaction; returns the rows of each."""
    server = connection.pgconn
    server.enter_pipeline_mode()
    new = set()
    for statement, given in statements:
        name = name_of(statement)
        if name not in prepared and name not in new:
            server.send_prepare(name, statement.encode())
            new.add(name)
        server.send_query_prepared(name, _encode(given))
    server.pipeline_sync()
    answers = list(_receive(server))
    server.exit_pipeline_mode()
    found = [answer for answer in map(_check, answers) if answer.status == _ROWS]
    prepared |= new
    return found


def _encode(given: Parameters) -> Any:
    """Encode parameters; libpq ends a text at its first NUL, so those are refused here."""
    encoded = [text if text is None or text.__class__ is bytes else text.encode() for text in given]  # type: ignore[union-attr]
    if b"\0" in b"".join(filter(None, encoded)):
        from psycopg import DataError

        raise DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return encoded


def _receive(server: PGconn) -> Iterator[PGresult]:
    """Yield all results. Waits here, because libpq's own wait in ``get_result`` would stop every thread."""
    while True:
        while (unsent := bool(server.flush())) or server.is_busy():
            _wait(server.socket, unsent=unsent)
            server.consume_input()
        answer = server.get_result()
        if answer is None:  # between two statements, or because there will be nothing more
            _check_line(server)
            continue
        if answer.status == _TOGETHER:
            return
        yield answer


def _check_line(server: PGconn) -> None:
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus

    if server.status != ConnStatus.OK:
        raise OperationalError("the connection is lost")


def _wait(socket: int, *, unsent: bool) -> None:
    if hasattr(select, "poll"):
        waiting = select.poll()
        waiting.register(socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        waiting.poll()
    else:
        select.select([socket], [socket] if unsent else [], [])


@functools.cache
def name_of(statement: str) -> bytes:
    """Return a name that is unique to this text, also across versions of aft: a pooler may mix their sessions."""
    return f"aft_{hashlib.sha256(statement.encode()).hexdigest()[:24]}".encode()


def _check(answer: PGresult) -> PGresult:
    if answer.status not in (_DONE, _ROWS):
        from psycopg.errors import error_from_result

        raise error_from_result(answer)
    return answer
