"""Files beside a SQLite database are for those only who may use the database.

It holds what customers typed. So a new one is its owner's alone, and SQLite gives its ``-wal`` and ``-shm`` files the
same mode. What aft keeps beside it has that mode, too: whoever may not write to the database must not be able to hold
up those who may. Links are not followed, and what a stranger has put there is not used: somebody with access to the
folder could lead us to a file that is not ours.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: What a new file, and a new folder, allows: its owner, and nobody else.
ALONE, ALONE_INSIDE = 0o600, 0o700
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def make_database(path: str) -> None:
    """Make an empty file for a database, if there is none: SQLite would let everybody read it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, ALONE))
    except OSError:
        return  # it is there, or cannot be made: then SQLite says why


def open_beside(path: Path | str, database: str) -> int:
    """Open, or make, a file beside a database; raises OSError if it is a link, or a stranger's."""
    mode = _mode_of(database)
    file = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, mode)
    try:
        found = os.fstat(file)
        _check(path, found, database, stat.S_ISREG(found.st_mode))
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(file, mode)
    except BaseException:
        os.close(file)
        raise
    return file


def make_folder_beside(path: Path, database: str) -> None:
    """Make a folder beside a database, if there is none; raises OSError if it is a link, or a stranger's."""
    mode = _mode_of(database)
    inside = mode | (mode & 0o444) >> 2  # whoever may read may look inside
    path.mkdir(mode=inside, exist_ok=True)
    found = path.lstat()
    _check(path, found, database, stat.S_ISDIR(found.st_mode))
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != inside:
        path.chmod(inside)


def is_open_to_others(path: str) -> bool:
    """Tell whether somebody else than its owner may read or write a file; False if there is none."""
    try:
        return bool(Path(path).stat().st_mode & 0o077)
    except OSError:
        return False


def _mode_of(database: str) -> int:
    try:
        return stat.S_IMODE(Path(database).stat().st_mode) & 0o666 | ALONE
    except OSError:
        return ALONE


def _check(path: Path | str, found: os.stat_result, database: str, is_kind: bool) -> None:
    owners = {os.geteuid(), 0}
    try:
        owners.add(Path(database).stat().st_uid)
    except OSError:
        pass
    if not is_kind or found.st_uid not in owners:
        raise PermissionError(f"{str(path)!r} is a link, or was made by somebody else")
