"""Detects that the SQLite file of this process was deleted, moved or replaced while it is open.

SQLite goes on reading and writing the files that it has opened. Once their names are gone, or belong to other files, no
other process finds what is written there, and it is lost with this process; SQLite does not check in WAL mode. So each
transaction compares the path with what was opened: when it begins, the database file; after its commit, the database
file and its ``-wal`` file, before anything is reported as durable.

Who may run at the same time: any number of threads of this process, and others that change the files. A file that is
removed between the COMMIT and the comparison makes a durable write look lost, which it then is; a later removal loses
durable data, as it would without a process running.

If the path is a symbolic link, SQLite has its own files beside the link's target; so has aft, so that all who open the
database use the same ones, by either path.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from aft.errors import DatabaseMoved
from aft.store.sqlite.private_files import check_database, check_link, make_database

#: Where a connection keeps the identity of the ``-wal`` file that it writes to.
_WAL = "aft_wal"

Identity = tuple[int, int]


def resolve(path: str) -> str:
    """Return the path with symbolic links resolved: files beside a database are named after that."""
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

    def watch(self, engine: Engine, file: str) -> None:
        """Check the file before each connection that a pool makes, and note what it has opened; ``file`` is resolved.

        Before connecting: SQLite would make a new, empty file in the place of the lost one.
        """

        def open_file(*_: object) -> None:
            self.check()
            check_link(self._path, self._url)
            make_database(file)
            check_database(self._path, file, self._url)

        def note_opened(_: object, record: ConnectionPoolEntry) -> None:
            check_database(self._path, file, self._url)  # what SQLite has opened since
            self.note(record.info)

        event.listen(engine, "do_connect", open_file)
        event.listen(engine, "connect", note_opened)

    def check_unopened(self) -> None:
        """Raise StoreError if nothing was opened yet, and the path is a link that another user may have put there."""
        if self._noted is None:
            check_link(self._path, self._url)

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
        return None  # nor can another process open it
    return found.st_dev, found.st_ino
