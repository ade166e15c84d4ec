"""How do live events travel between processes that share a SQLite file? Through Unix sockets beside it.

Each listener binds one socket in a directory that only this user can enter; a sender sends to every socket of
the namespace that it finds there. The kernel keeps nothing: a listener that died leaves an empty socket file,
which the next sender finds refused and removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aft.brokers.embedded.background import Background
from aft.clock import SystemClock
from aft.errors import BrokerError

#: Bytes of the longest message; longer ones are dropped.
LARGEST = 60 * 1024

#: Bytes of the longest path a socket may have, on any system.
_LONGEST_PATH = 103
#: Bytes of the longest socket name: a namespace of 40, a separator, and random hexadecimal digits.
_LONGEST_NAME = 40 + 1 + 12
#: A listener whose socket is full gets so many more chances, a millisecond apart; then it counts as slow.
_CHANCES = 20
#: Seconds in which a slow listener gets one chance only.
_SLOW = 1.0

_log = logging.getLogger(__name__)
_ticks = SystemClock().ticks


def directory_for(database: Path) -> Path:
    """Tell where the sockets of a database are: beside it, or if that is too long, among temporary files."""
    real = database.resolve()
    beside = real.with_name(real.name + ".express")
    if len(os.fsencode(beside)) + 1 + _LONGEST_NAME <= _LONGEST_PATH:
        return beside
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"aft-{os.geteuid()}-{digest}"


class SocketExpress:
    """Carries express messages between the processes of one machine."""

    def __init__(self, database: Path) -> None:
        self._directory = directory_for(database)  # resolved now: the process may change its own later
        self._socket: socket.socket | None = None
        self._slow_until: dict[Path, float] = {}

    def send(self, namespace: str, body: bytes) -> None:
        if len(body) > LARGEST:
            return
        try:
            # Listed anew for each message: that takes microseconds, and a new listener misses nothing.
            for path in _sockets(self._directory, namespace):
                self._send_to(path, body)
        except FileNotFoundError:
            return  # nobody has ever listened
        except OSError as error:
            _log.debug("express message dropped: %s", error)

    def is_heard(self, namespace: str) -> bool:
        return self._directory.exists()  # the last listener takes it along

    def listen(self, namespace: str, hear: Callable[[bytes], None]) -> Callable[[], None]:
        path = self._directory / f"{namespace}~{secrets.token_hex(6)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            _bind(listener, path)
        except OSError as error:
            listener.close()
            raise BrokerError(f"cannot listen to express messages at {str(path)!r}: {error}") from error
        listener.setblocking(False)
        thread = Background(f"aft-hear-{namespace}", lambda thread: _hear(thread, listener, hear))

        def end() -> None:
            path.unlink(missing_ok=True)
            thread.stop()
            listener.close()
            with contextlib.suppress(OSError):
                self._directory.rmdir()  # the last one to leave; others keep it by being in it

        return end

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send_to(self, path: Path, body: bytes) -> None:
        chances = 1 if self._slow_until.pop(path, 0.0) > _ticks() else _CHANCES
        for _ in range(chances):
            try:
                self._sender().sendto(body, str(path))
                return
            except ConnectionRefusedError:
                # Its owner is gone: a socket answers from the moment its file exists.
                path.unlink(missing_ok=True)
                return
            except FileNotFoundError:
                return
            except BlockingIOError:
                time.sleep(0.001)
        self._slow_until[path] = _ticks() + _SLOW

    def _sender(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            # Where the default is smaller than a message; a system that refuses drops the long ones.
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        return self._socket


def _hear(thread: Background, listener: socket.socket, hear: Callable[[bytes], None]) -> None:
    while thread.wait_for(listener):
        with contextlib.suppress(OSError):
            while not thread.stopping:
                hear(listener.recv(LARGEST))


def _sockets(directory: Path, namespace: str) -> list[Path]:
    _check_private(directory)
    return [path for path in directory.iterdir() if path.name.partition("~")[0] == namespace]


def _bind(listener: socket.socket, path: Path) -> None:
    for _ in range(_CHANCES):
        _make_private(path.parent)
        try:
            listener.bind(str(path))
            return
        except FileNotFoundError:
            continue  # somebody left last, and took the directory, between these two lines
    raise FileNotFoundError(f"{str(path.parent)!r} is removed again and again")


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    _check_private(directory)


def _check_private(directory: Path) -> None:
    # The temporary directory is everybody's: a stranger may have made this one, to listen there.
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{str(directory)!r} is not a private directory of this user")
