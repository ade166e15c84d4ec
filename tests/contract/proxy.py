"""A door between client and server that a test can slam or hold shut: connections lost, peers gone silent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self


class Proxy:
    """Forwards connections to a server on 127.0.0.1, until they are cut, or while they are not held.

    Each packet takes ``late`` seconds.
    """

    def __init__(self, port: int, late: float = 0.0) -> None:
        self._late = late
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        #: Whether new connections are refused, and how many were.
        self._refuses = False
        self.refused = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def cut(self) -> None:
        """Lose every connection that is open now; new ones are let through."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def refuse(self, refuses: bool) -> None:
        """Lose every connection and let no new one through, as if the server were down; or let them through again."""
        self._refuses = refuses
        if refuses:
            self.cut()

    def hold(self) -> None:
        """Keep the connections, but let nothing through: the peer has gone silent."""
        self._open.clear()

    def release(self) -> None:
        """Let everything through again."""
        self._open.set()

    def close(self) -> None:
        """Stop listening and lose every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                self.refused += 1
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            self._run(self._pump, client, server)
            self._run(self._pump, server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                time.sleep(self._late)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
        source.close()

    def _run(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
