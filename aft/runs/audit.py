"""Who did what to a run by hand, and why. Written in the transaction of the deed, and never changed.

``actor`` is a name that somebody gives. Beside it stand names that are not given: the user of the process, as its
operating system knows it, and the user of the session, as the database does. A record outlives its run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Row, insert, select

from aft.ids import RunId, new_id
from aft.store.moments import now
from aft.store.tables import audit

#: Characters of a user's name.
MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that a person did; ``seq`` is its place in the chain, None as long as it has none."""

    id: str
    run_id: RunId
    actor: str
    action: str
    note: str | None
    at: datetime
    os_user: str | None
    db_user: str | None
    seq: int | None
    hash: str | None


def write(connection: Connection, run_id: RunId, actor: str, action: str, note: str | None) -> None:
    """Record a deed."""
    connection.execute(
        insert(audit).values(
            id=new_id(), run_id=run_id, actor=actor, action=action, note=note, at=now(), os_user=find_os_user()
        )
    )


def of_run(connection: Connection, run_id: RunId) -> list[AuditEntry]:
    """Return what was done to a run by hand, oldest first."""
    statement = select(audit).where(audit.c.run_id == run_id).order_by(audit.c.id)
    return [read(row) for row in connection.execute(statement)]


def newest(connection: Connection, limit: int) -> list[AuditEntry]:
    """Return what was done last by hand in this database, the newest first."""
    statement = select(audit).order_by(audit.c.id.desc()).limit(limit)
    return [read(row) for row in connection.execute(statement)]


def read(row: Row[tuple[object, ...]]) -> AuditEntry:
    """Make a deed of its row."""
    return AuditEntry(**row._mapping)


def find_os_user() -> str:
    """Tell whom the operating system executes this process for; unlike ``$USER``, that cannot be chosen."""
    if not hasattr(os, "getuid"):
        return os.getlogin()[:MOST_NAME]
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name[:MOST_NAME]
    except KeyError:
        return str(os.getuid())
