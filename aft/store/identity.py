"""Notices that the SQLite file of this process was deleted, moved or replaced while it is open.

SQLite goes on reading and writing the files that it has opened. Once their names are gone, or belong to other files, no
other process finds what is written there, and it ends with this process; SQLite does not look in WAL mode. So each
transaction compares the path with what was opened: one that begins, by the database file; one that has committed, by
the database file and its ``-wal`` file, before anything is reported as durable.

Who may run at the same time: any number of threads of this process, and whoever changes the files. A file that goes
between the COMMIT and the comparison makes a durable write look lost, which is true a moment later; one that goes after
it takes with it what was durable, as it would without a process running.

Where the path is a link, SQLite has its own files beside the file that the link leads to; so do we, so that whoever
opens a database finds the same ones, whichever way.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from aft.errors import DatabaseMoved

#: Where a connection keeps the identity of the ``-wal`` file that it writes to.
_WAL = "aft_wal"

Identity = tuple[int, int]


def resolve(path: str) -> str:
    """Return the path that links lead to: what lies beside a database is named after that."""
    return str(Path(path).resolve())


class FileIdentity:
    """Device and inode of one SQLite database, noted when it is opened first. Thread-safe."""

    def __init__(self, path: str, url: str) -> None:
        self._path = path
        self._wal = f"{path}-wal"
        self._url = url
        self._noted: Identity | None = None
        #: Why nothing may be read or written any more: the ``-wal`` file is lost, and a new one would not fit.
        self._lost: str | None = None

    def note(self, info: MutableMapping[str, Any]) -> None:
        """Note what a new connection has opened; ``info`` belongs to that connection."""
        if self._noted is None:
            self._noted = _identify(self._path)
            self._wal = f"{resolve(self._path)}-wal"
        self.check()
        self._note_wal(info)

    def check(self) -> None:
        """Raise DatabaseMoved if the path does not lead to the file that was opened."""
        if self._lost is not None:
            raise DatabaseMoved(self._lost)
        if self._noted is not None and (found := _identify(self._path)) != self._noted:
            raise DatabaseMoved(self._explain(self._path, found))

    def check_written(self, info: MutableMapping[str, Any]) -> None:
        """Raise DatabaseMoved if what this connection has just committed is not in the files that others open."""
        self.check()
        if _WAL not in info:
            self._note_wal(info)
        elif (found := _identify(self._wal)) != info[_WAL]:
            self._lost = self._explain(self._wal, found)
            raise DatabaseMoved(self._lost)

    def _note_wal(self, info: MutableMapping[str, Any]) -> None:
        # A new database has none before the first write.
        if (found := _identify(self._wal)) is not None:
            info[_WAL] = found

    def _explain(self, path: str, found: Identity | None) -> str:
        became = "is gone" if found is None else "was replaced by another file"
        which = "" if path == self._path else f", which belongs to the database {self._url!r},"
        return (
            f"the file {path!r}{which} {became} while this process had it open; nothing more is read or written here, "
            "and what was written since is lost: stop the process, put the file or a backup back, start it again"
        )


def _identify(path: str) -> Identity | None:
    """Return a file's device and inode; None if there is no such file."""
    try:
        found = os.stat(path)  # noqa: PTH116  # with each transaction: a Path costs more than the call
    except OSError:
        return None  # nor can anybody else open it
    return found.st_dev, found.st_ino
