"""A line to PostgreSQL that can be cut, held, and made to lose the answer to a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.contract.proxy import Proxy

#: What the driver sends to commit: a simple query.
_COMMIT = b"COMMIT\x00"


class CommitProxy(Proxy):
    """Forwards connections to a PostgreSQL on 127.0.0.1; ``lose_commit`` arms it, and it breaks one line once."""

    def __init__(self, port: int) -> None:
        self._armed: bool | None = None
        self._arming = threading.Lock()
        #: Clients that hear nothing more.
        self._deafened: set[socket.socket] = set()
        #: COMMITs that were carried out and whose answers were lost, and COMMITs that never got there.
        self.answers_lost = 0
        self.commits_lost = 0
        super().__init__(port)

    def lose_commit(self, *, carried_out: bool) -> None:
        """Lose the next COMMIT: its answer only, or the COMMIT itself; either way its line is cut."""
        with self._arming:
            self._armed = carried_out

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        to_server = source.getsockname()[1] == self.port
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                if not (self._may_go(source, data) if to_server else self._may_be_heard(sink)):
                    break
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
            self._deafened.discard(source)
        source.close()

    def _may_go(self, client: socket.socket, data: bytes) -> bool:
        if _COMMIT not in data:
            return True
        with self._arming:
            armed, self._armed = self._armed, None
        if armed is None:
            return True
        if armed:
            with self._lock:
                self._deafened.add(client)
        else:
            self.commits_lost += 1
        return armed

    def _may_be_heard(self, client: socket.socket) -> bool:
        """The server has answered, so it has carried out what it was sent; does the client hear of it?"""
        with self._lock:
            if client not in self._deafened:
                return True
        self.answers_lost += 1
        return False
