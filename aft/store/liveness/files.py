"""Liveness locks on SQLite: one file per worker in a folder beside the database, locked with ``flock``.

The kernel releases the lock when the last process that has the file open is gone. A fork would keep it open, so a child
closes its copy; a process that is replaced by another program (exec) closes it by itself.

Who may run at the same time: any number of workers, and of probes that try their locks. A probe's own try is a shared
lock for an instant: it can only make a dead worker look alive for that instant. Names are never used twice, so any
process that knows a worker to be gone may remove its file.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from aft import after_fork
from aft.ids import WorkerId
from aft.store.liveness import Read
from aft.store.sqlite.file_identity import resolve
from aft.store.sqlite.private_files import make_folder_beside, open_beside
from aft.telemetry import logger

try:
    import fcntl
except ImportError:  # not on this system: only leases count
    fcntl = None  # type: ignore[assignment]

#: What a lock of this kind begins with; the file's name follows.
KIND = "file:"
_NAMES_FILE = re.compile(f"{KIND}[A-Za-z0-9_-]{{1,100}}")


def folder_of(database: str) -> Path:
    """Return the folder of a database's lock files."""
    return Path(f"{resolve(database)}-workers")


class FileLivenessLock:
    """A locked file. Thread-safe."""

    def __init__(self, database: str) -> None:
        self._database, self._folder = database, folder_of(database)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._path: Path | None = None
        after_fork.register(self)

    @property
    def text(self) -> str | None:
        path = self._path
        return None if path is None else f"{KIND}{path.name}"

    def acquire(self, worker: WorkerId) -> None:
        self.release()
        if fcntl is None:
            return
        path = self._folder / worker
        try:
            make_folder_beside(self._folder, self._database)
            file = _open_locked(path, self._database)
        except OSError as error:
            logger.info("no liveness lock can be taken, the lease alone tells: worker=%s why=%s", worker, error)
            return
        with self._lock:
            self._file, self._path = file, path

    def release(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        if file is not None:
            os.close(file)

    def forget_in_child(self) -> None:
        """After a fork: close the copy of the parent's lock, which must end with the parent."""
        self._lock = threading.Lock()
        file, self._file, self._path = self._file, None, None
        if file is not None:
            os.close(file)


def _open_locked(path: Path, database: str) -> int:
    file = open_beside(path, database)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # a probe's try lasts an instant
    except OSError:
        os.close(file)
        raise
    return file


class FileLivenessProbe:
    """Tries the locks of others; exact, so one check is enough, and cheap, so that checks are frequent."""

    pause = 0.2
    checks = 1

    def __init__(self, database: str) -> None:
        self._folder = folder_of(database)

    def are_all_held(self) -> bool:
        try:
            return all(self._is_held(f"{KIND}{file.name}") for file in self._folder.iterdir())
        except OSError:
            return False

    def check(self, read: Read, locks: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        found = {worker: self._is_held(lock) for worker, lock in locks.items()}
        return {worker: held for worker, held in found.items() if held is not None}

    def clean_up(self, lock: str) -> None:
        path = self._path(lock)
        if path is not None:
            with suppress(OSError):  # nobody needs it to be gone
                path.unlink(missing_ok=True)

    def _is_held(self, lock: str) -> bool | None:
        path = self._path(lock)
        if fcntl is None or path is None:
            return None
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return None  # not here: unknown
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def _path(self, lock: object) -> Path | None:
        """Return the file that a row's lock names; None if it is of another kind, or damaged."""
        if not isinstance(lock, str) or not _NAMES_FILE.fullmatch(lock):
            return None
        return self._folder / lock.removeprefix(KIND)
