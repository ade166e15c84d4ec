"""The audit log: who did what by hand, and why. Written in the action's own transaction, and never changed.

Most actions are on a run; those on schedules, rules, exlets and refused messages have no run, and name their object in
the note. No record holds a value that was given: no arguments, no signal's value, no text of a rule.

``actor`` is a name that the caller gives. Two more names are not the caller's choice: the user of the process, from the
operating system, and the user of the session, from the database. A record outlives its run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Row, insert, select

from aft.ids import RunId, new_id
from aft.store.db_time import now
from aft.store.tables import audit

#: Characters of a user's name.
MOST_NAME = 200
#: The run of actions on something else.
NO_RUN = RunId("")
#: What sending a signal is called.
SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action of a person; ``seq`` is its position in the chain, None until it is chained."""

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
    """Record an action."""
    connection.execute(
        insert(audit).values(
            id=new_id(), run_id=run_id, actor=actor, action=action, note=note, at=now(), os_user=find_os_user()
        )
    )


def write_about(connection: Connection, actor: str, action: str, what: str) -> None:
    """Record an action on something else than a run: its name, and not what it holds."""
    write(connection, NO_RUN, actor, action, what)


def of_run(connection: Connection, run_id: RunId) -> list[AuditEntry]:
    """Return the actions on a run, oldest first."""
    statement = select(audit).where(audit.c.run_id == run_id).order_by(audit.c.id)
    return [read_entry(row) for row in connection.execute(statement)]


def newest(connection: Connection, limit: int) -> list[AuditEntry]:
    """Return the latest actions in this database, newest first."""
    statement = select(audit).order_by(audit.c.id.desc()).limit(limit)
    return [read_entry(row) for row in connection.execute(statement)]


def read_entry(row: Row[tuple[object, ...]]) -> AuditEntry:
    """Read an entry from its row."""
    return AuditEntry(**row._mapping)


def find_os_user() -> str:
    """Return the operating system's user of this process; unlike ``$USER``, it cannot be chosen."""
    if not hasattr(os, "getuid"):
        return os.getlogin()[:MOST_NAME]
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name[:MOST_NAME]
    except KeyError:
        return str(os.getuid())
