"""SQLite's signs: a file for each worker in a folder beside the database, locked with ``flock`` while it lives.

The kernel lets go of the lock when the last process that has the file open is gone. A fork would keep it open, so a
child closes its copy; a process that is replaced by another program closes it by itself.

Who may run at the same time: any number of workers, and of lookouts that try their locks. A lookout's own try is a
shared lock for a moment: it can only make a dead worker look alive for that moment. Names are never used twice, so a
file may be removed by anybody who knows its worker to be gone.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from sqlalchemy import Connection

from aft import forked
from aft.ids import WorkerId
from aft.store.identity import resolve
from aft.store.private import make_folder_beside, open_beside
from aft.telemetry import logger

try:
    import fcntl
except ImportError:  # not on this system: leases alone tell
    fcntl = None  # type: ignore[assignment]

#: What a sign of this kind begins with; the file's name follows.
KIND = "file:"


def folder_of(database: str) -> Path:
    """Where the files of a database's workers are."""
    return Path(f"{resolve(database)}-workers")


class FileSign:
    """A locked file. Thread-safe."""

    def __init__(self, database: str) -> None:
        self._database, self._folder = database, folder_of(database)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._path: Path | None = None
        forked.tell(self)

    @property
    def text(self) -> str | None:
        path = self._path
        return None if path is None else f"{KIND}{path.name}"

    def give(self, worker: WorkerId) -> None:
        self.take_back()
        if fcntl is None:
            return
        path = self._folder / worker
        try:
            make_folder_beside(self._folder, self._database)
            file = _open_locked(path, self._database)
        except OSError as error:
            logger.info("no sign of life can be given, the lease alone tells: worker=%s why=%s", worker, error)
            return
        with self._lock:
            self._file, self._path = file, path

    def take_back(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        if file is not None:
            os.close(file)

    def forget_in_child(self) -> None:
        """After a fork: the lock is the parent's, and must end with it."""
        self._lock = threading.Lock()
        file, self._file, self._path = self._file, None, None
        if file is not None:
            os.close(file)


def _open_locked(path: Path, database: str) -> int:
    file = open_beside(path, database)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # a lookout's try lasts a moment
    except OSError:
        os.close(file)
        raise
    return file


class FileLookout:
    """Tries the locks of others; exact, so one look is enough, and cheap, so it looks often."""

    pause = 0.05
    looks = 1

    def __init__(self, database: str) -> None:
        self._folder = folder_of(database)

    def look(self, connection: Connection, signs: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        found = {worker: self._is_held(sign) for worker, sign in signs.items() if sign.startswith(KIND)}
        return {worker: held for worker, held in found.items() if held is not None}

    def forget(self, sign: str) -> None:
        if sign.startswith(KIND):
            self._path(sign).unlink(missing_ok=True)

    def _is_held(self, sign: str) -> bool | None:
        if fcntl is None:
            return None
        try:
            file = os.open(self._path(sign), os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return None  # not here: nothing can be told
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def _path(self, sign: str) -> Path:
        return self._folder / Path(sign.removeprefix(KIND)).name
