"""The audit log: who did what by hand, and why. Written in the action's own transaction, and never changed.

Most actions are on a run; those on schedules, rules, exlets and refused messages have no run, and name their object in
the note. No record holds a value that was given: no arguments, no signal's value, no text of a rule.

``actor`` is a name that the caller gives. Two more names are told by others: the user of the process by the operating
system, and the user of the session by the database. A record outlives its run.

Records are in the order in which the database got them: whoever may add one chooses its id and its time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, insert, literal_column, select

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


#: The columns of an entry.
COLUMNS = [audit.c[name] for name in AuditEntry.__slots__]


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
    statement = select(*COLUMNS).where(audit.c.run_id == run_id).order_by(order_of(connection))
    return [read_entry(row) for row in connection.execute(statement)]


def newest(connection: Connection, limit: int) -> list[AuditEntry]:
    """Return the latest actions in this database, newest first."""
    statement = select(*COLUMNS).order_by(order_of(connection).desc()).limit(limit)
    return [read_entry(row) for row in connection.execute(statement)]


def order_of(connection: Connection) -> ColumnElement[int]:
    """Return what orders records: the number that the database gave each when it was added."""
    is_counted = connection.dialect.name == "postgresql"
    return audit.c.number if is_counted else literal_column(f"{audit.name}.rowid", BigInteger)


def read_entry(row: Row[Any]) -> AuditEntry:
    """Read an entry from its row, which begins with ``COLUMNS``."""
    return AuditEntry(*row[: len(COLUMNS)])


def find_os_user() -> str:
    """Return the user of this process, as the operating system tells it; ``$USER`` does not count.

    In a user namespace it is whoever made that who says which user this is.
    """
    if not hasattr(os, "getuid"):
        return os.getlogin()[:MOST_NAME]
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name[:MOST_NAME]
    except KeyError:
        return str(os.getuid())
