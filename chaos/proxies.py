"""A proxy to PostgreSQL whose connections can be cut, held, or made to lose a commit or its answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field

from chaos.wire import Frame, Frames, Kind, Session, Write, did_nothing
from tests.contract.proxy import Proxy

#: What a server says that does not encrypt.
_REFUSED = b"N"


@dataclass(frozen=True, slots=True)
class Loss:
    """What is to be lost, or was: the answer to an executed request, or the request itself."""

    carried_out: bool
    kind: Kind | None = None


@dataclass
class _Line:
    """One connection. ``lock`` is held for each frame: each direction has its own thread."""

    client: Frames = field(default_factory=lambda: Frames(client=True))
    server: Frames = field(default_factory=lambda: Frames(client=False))
    session: Session = field(default_factory=Session)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: What the client shall not hear the answer to, what was said of that so far, and whether it came to nothing.
    losing: Write | None = None
    wanted: Loss | None = None
    withheld: bytes = b""
    in_vain: bool = False


class CommitProxy(Proxy):
    """Forwards connections to a PostgreSQL on 127.0.0.1; ``lose_commit`` arms it to break one of them.

    It reads ``at_once`` bytes at the most. Whoever asks for encryption is refused: nothing could be recognised then.
    """

    def __init__(self, port: int, *, at_once: int = 65_536) -> None:
        self._at_once = at_once
        self._armed: Loss | None = None
        self._arming = threading.Lock()
        self._lines: dict[frozenset[socket.socket], _Line] = {}
        #: Answers that were lost to what was carried out, and requests that never got there, by what was written how.
        self.answers_lost: Counter[Write] = Counter()
        self.requests_lost: Counter[Write] = Counter()
        super().__init__(port)

    def lose_commit(self, *, carried_out: bool, kind: Kind | None = None) -> None:
        """Arm it to lose the next commit, of this kind if given: its answer or the request; its connection is cut.

        An answer that says that nothing was written is not worth losing: then the one after it is lost.
        """
        with self._arming:
            self._armed = Loss(carried_out, kind)

    def disarm(self) -> None:
        """Disarm it."""
        with self._arming:
            self._armed = None

    @property
    def is_armed(self) -> bool:
        """Whether a loss is armed."""
        return self._armed is not None

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        ends = frozenset((source, sink))
        with self._lock:
            line = self._lines.setdefault(ends, _Line())
        from_client = source.getsockname()[1] == self.port
        with contextlib.suppress(OSError):
            while data := source.recv(self._at_once):
                self._open.wait()
                passed = self._from_client(line, data, source) if from_client else self._from_server(line, data)
                if passed is None:
                    break
                sink.sendall(passed)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
            self._lines.pop(ends, None)
        source.close()

    def _from_client(self, line: _Line, data: bytes, client: socket.socket) -> bytes | None:
        """Return the bytes to forward to the server; None: cut the connection."""
        passed = b""
        for frame in line.client.feed(data):
            if frame.asks_for_encryption:
                client.sendall(_REFUSED)
                continue
            with line.lock:
                write = line.session.sent(frame)
                if write is not None and not self._may_go(line, write):
                    return None
            passed += frame.raw
        return passed

    def _may_go(self, line: _Line, write: Write) -> bool:
        with self._arming:
            armed = self._armed
            if armed is None or armed.kind not in (None, write.kind):
                return True
            self._armed = None
        if armed.carried_out:
            line.losing, line.wanted, line.withheld, line.in_vain = write, armed, b"", False
        else:
            self.requests_lost[write] += 1
        return armed.carried_out

    def _from_server(self, line: _Line, data: bytes) -> bytes | None:
        """Return the bytes to forward to the client; None: cut the connection."""
        passed = b""
        for frame in line.server.feed(data):
            with line.lock:
                line.session.heard(frame)
                if line.losing is None:
                    passed += frame.raw
                elif (heard := self._withhold(line, line.losing, frame)) is None:
                    return None
                else:
                    passed += heard
        return passed

    def _withhold(self, line: _Line, losing: Write, frame: Frame) -> bytes | None:
        """Buffer an answer until it is complete, and drop it then; if nothing was written, forward it."""
        line.withheld += frame.raw
        line.in_vain = line.in_vain or frame.kind == b"E" or (frame.kind == b"C" and did_nothing(frame.body))
        if frame.kind != b"Z":
            return b""
        if not line.in_vain:
            self.answers_lost[losing] += 1
            return None
        with self._arming:
            self._armed = self._armed or line.wanted
        line.losing = None
        return line.withheld
