"""Restricts a SQLite database, and the files beside it, to the users that may use the database.

It holds user data. So a new database is accessible to its owner only, and SQLite gives its ``-wal`` and ``-shm`` files
the same mode. aft's own files beside it are for those who may write to it: a user that may not must not be able to
block those that may. Symbolic links are not followed, and files of other users are refused: a user with access to
the folder could redirect us to another file.

SQLite itself uses whatever file has the right name: one that somebody else has put there could be read by him, or hold
a database of his. So ``check_database`` looks at these files before each new connection, and again when SQLite has
opened them. Who puts one there in between is found by the second look, before anything is written; but a ``-wal`` may
then have been read into the database.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aft.errors import StoreError

#: What SQLite's own files beside a database end with.
SQLITES = ("-wal", "-shm", "-journal")
#: What aft's own end with.
OURS = ("-turn", "-workers")
#: The mode of a new file: access for the owner only.
ALONE = 0o600
#: Links that are followed on the way to a file at most, as by the kernel.
MOST_LINKS = 40
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def make_database(path: str) -> None:
    """Make an empty, private file for a database, if there is none: SQLite's own would be readable by others."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, ALONE))
    except OSError:
        return  # it exists, or cannot be made: then SQLite raises the reason


def check_link(path: str, url: str) -> None:
    """Raise StoreError if a path is a link that another user may have put there; before anything is made behind it."""
    if why := _distrust_links(path):
        raise StoreError(f"the database {url!r} is not used: {why}")


def check_database(path: str, real: str, url: str) -> None:
    """Raise StoreError if a database's file, or one of SQLite's beside it, may be another user's.

    ``real`` is the path with links resolved. Costs a few microseconds, and does not open a file: that would end locks.
    """
    folder = _lstat(str(Path(real).parent))
    database = _lstat(real)
    if folder is None or database is None:
        return  # SQLite raises the reason
    why = _distrust_links(path) or _distrust_database(real, database, folder)
    for end in () if why else SQLITES:
        if found := _lstat(f"{real}{end}"):
            why = why or _distrust_beside(f"{real}{end}", found, database, folder)
    if why:
        raise StoreError(f"the database {url!r} is not used: {why}")


def find_untrusted_files(database: str) -> list[str]:
    """Return a message for each of aft's files beside a database that is a link, or another user's, so not used."""
    found = ((f"{database}{end}", _lstat(f"{database}{end}")) for end in OURS)
    owners = _owners(database)
    return [
        f"{path!r} is not used: it is {'a link' if stat.S_ISLNK(one.st_mode) else f'of {_name(one)}'}"
        for path, one in found
        if one is not None and (stat.S_ISLNK(one.st_mode) or one.st_uid not in owners)
    ]


def open_beside(path: Path | str, database: str) -> int:
    """Open, or make, a file beside a database; raises OSError if it is a link, or another user's."""
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
    """Make a folder beside a database, if there is none; raises OSError if it is a link, or another user's."""
    mode = _mode_of(database)
    inside = mode | (mode & 0o222) >> 1  # permission to work in a folder needs search permission
    path.mkdir(mode=inside, exist_ok=True)
    found = path.lstat()
    _check(path, found, database, stat.S_ISDIR(found.st_mode))
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != inside:
        path.chmod(inside)


def is_open_to_others(path: str) -> bool:
    """Return whether users other than its owner have access to a file; False if there is none."""
    try:
        return bool(Path(path).stat().st_mode & 0o077)
    except OSError:
        return False


def _mode_of(database: str) -> int:
    """Return the mode of a file beside a database: only users who may write to the database can open it.

    Whoever may open a file may lock it, and so block those who write.
    """
    try:
        return 0o660 if Path(database).stat().st_mode & stat.S_IWGRP else ALONE
    except OSError:
        return ALONE


def _check(path: Path | str, found: os.stat_result, database: str, is_kind: bool) -> None:
    if not is_kind or found.st_uid not in _owners(database):
        raise PermissionError(f"{str(path)!r} is a link, or was made by somebody else")


def _owners(database: str) -> set[int]:
    owners = {os.geteuid(), 0}
    try:
        owners.add(Path(database).stat().st_uid)
    except OSError:
        pass
    return owners


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _is_open(found: os.stat_result) -> bool:
    """Return whether all users may write to a file, or make files in a folder."""
    return bool(found.st_mode & stat.S_IWOTH)


def _distrust_links(path: str) -> str | None:
    """Return why a link on the way to a path, folders and other links included, is not followed; None: all are."""
    at, left, followed = Path("/"), list(reversed(Path.cwd().joinpath(path).parts[1:])), 0
    while left and followed < MOST_LINKS:
        name = left.pop()
        at = at.parent if name == ".." else at / name
        try:
            target = at.readlink()
        except OSError:
            continue  # it is no link, or not there
        if why := _distrust_link(at):
            return why
        followed += 1
        at, parts = (Path("/"), target.parts[1:]) if target.is_absolute() else (at.parent, target.parts)
        left += reversed(parts)
    return None


def _distrust_link(path: Path) -> str | None:
    link, folder = _lstat(str(path)), _lstat(str(path.parent))
    if link is None or folder is None:
        return None
    if not _is_open(folder) or link.st_uid in {os.geteuid(), 0, folder.st_uid}:
        return None
    return f"{str(path)!r} is a link of {_name(link)} in a folder where everybody may make files; name the file itself"


def _distrust_database(path: str, found: os.stat_result, folder: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return f"{path!r} is not a regular file; remove it, or name another one"
    if found.st_uid in {os.geteuid(), 0} or not (_is_open(found) or _is_open(folder)):
        return None
    opened = "it is writable for everybody" if _is_open(found) else "everybody may make files in its folder"
    return (
        f"{path!r} is of {_name(found)}, and {opened}, so it may have been put there for others to write; remove it, "
        f"or, if it is a database that you share, take that right away (chmod o-w), or `chown` it"
    )


def _distrust_beside(path: str, found: os.stat_result, database: os.stat_result, folder: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return f"{path!r} is not a regular file, and SQLite would write to it; remove it"
    # Whoever may write to the database by its group may have made this one: SQLite gives it the group's rights.
    of_group = bool(database.st_mode & stat.S_IWGRP) and found.st_gid == database.st_gid and not _is_open(folder)
    if not of_group and found.st_uid not in {os.geteuid(), 0, database.st_uid}:
        return (
            f"{path!r} is of {_name(found)}, not of the database's owner: it may hold other data, and others read it; "
            f"move it away, or `chown` it if it belongs to this database"
        )
    mode, most = stat.S_IMODE(found.st_mode), stat.S_IMODE(database.st_mode)
    if mode & 0o777 & ~most:
        return f"more users may use {path!r} ({mode:o}) than the database ({most:o}); chmod {mode & most:o} it"
    return None


def _name(found: os.stat_result) -> str:
    """Name a file's owner."""
    import pwd  # rarely needed

    try:
        return f"user {pwd.getpwuid(found.st_uid).pw_name!r}"
    except KeyError:
        return f"user {found.st_uid}"
