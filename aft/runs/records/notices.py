"""The rows of notices: webhook requests about a run, delivered at least once.

Who may run at the same time: any number of writers and senders. A notice is written in the transaction of the event
that it reports, so that neither exists without the other. A sender takes what is due by moving ``due_at`` beyond the
time that sending may take, and sends after that has committed; others see it as not due. Taking counts the attempt, and
that count fences the sender: once another sender has taken the notice, a failure reported by the first one is stale,
and not written. A successful delivery is recorded whichever sender reports it.

After a crash while sending, or before the outcome is recorded, the notice becomes due again when its hold expires, and
is sent again with the same id. Receivers drop an id that they know.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sqlalchemy import ColumnElement, Connection, Row, Update, false, func, insert, or_, select, update

from aft import durations
from aft.codec.tags import MOST_BYTES
from aft.ids import NoticeId, RunId, new_id
from aft.security.redaction import redact_all
from aft.store.batch.row_format import next_count
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import later, now
from aft.store.tables import notices as table
from aft.telemetry import Event, NoticeAcknowledged, NoticeFailed, NoticeGivenUp

#: Seconds that a sender has to send what it took, and to record the outcome.
HOLD = 60.0
#: Seconds between two looks for notices that are written meanwhile.
LOOK = 1.0
#: The shortest and the longest back-off between two attempts, in seconds.
FIRST_WAIT, LONGEST_WAIT = 1.0, 600.0
#: How long a notice is tried before it is given up.
PATIENCE = timedelta(days=3)
#: URLs of notices that failed which are looked at to find out whose receivers fail.
MOST_FAILED = 1000
#: Characters of a URL, and of the reason that is kept.
MOST_URL, MOST_NOTE = 2000, 500

_URL = re.compile(r"[!-~]+")
_PORTS = {"http": 80, "https": 443}


class NoticeState(StrEnum):
    """The state of a notice."""

    OPEN = "open"  #: it is sent when it is due
    HEARD = "heard"  #: its receiver acknowledged it
    GIVEN_UP = "given_up"  #: it was refused, or not acknowledged for too long: see its note


@dataclass(frozen=True, slots=True)
class Notice:
    """One webhook request."""

    id: NoticeId
    run_id: RunId
    url: str = field(repr=False)
    body: str = field(repr=False)
    state: NoticeState
    #: How many times sending was begun.
    attempts: int
    due_at: datetime
    made_at: datetime
    ended_at: datetime | None
    #: Why the last attempt failed.
    note: str | None = field(repr=False)

    @property
    def receiver(self) -> str:
        """Its receiver, without the URL's path, which may hold a token."""
        return receiver(self.url)


_COLUMNS = [
    table.c[name]
    for name in ("id", "run_id", "url", "body", "state", "attempts", "due_at", "made_at", "ended_at", "note")
]


def check_url(url: str) -> str:
    """Return a URL that notices can be sent to, or raise ValueError that says why not.

    Its path is explicit, its host and port are spelled in one way; only a dot at the host's end is kept, as it keeps
    names from being looked for in the domains of this network.
    """
    try:
        parts = urlsplit(url) if len(url) <= MOST_URL and _URL.fullmatch(url) else None
        known = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, known = None, False
    if parts is None or not known:
        raise ValueError("not a URL to send notices to; write 'https://host/path', without spaces and in ASCII")
    if "@" in parts.netloc:
        raise ValueError("a URL to send notices to must not hold a user or password; receivers check the signature")
    place = _place(parts, spell_host(parts.hostname or ""))
    return parts._replace(netloc=place, path=parts.path or "/", fragment="").geturl()


def receiver(url: str) -> str:
    """Return the scheme, host and port of a URL: the name that its receiver has, however the URL spells it."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{_place(parts, spell_host(parts.hostname or '').rstrip('.'))}/"
    except ValueError:
        return "no URL"  # a row that was changed by hand


def spell_host(host: str) -> str:
    """Return a host, without brackets, in lower case and an address as it is usually written. Pure."""
    try:
        # IPv4 addresses may have fewer parts, and octal or hexadecimal ones, wherever a name is resolved.
        return str(ipaddress.IPv6Address(host)) if ":" in host else socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, ValueError):
        return host.lower()


def _place(parts: SplitResult, host: str) -> str:
    place = f"[{host}]" if ":" in host else host
    return place if parts.port in (None, _PORTS.get(parts.scheme)) else f"{place}:{parts.port}"


def put(connection: Connection, namespace: str, run_id: RunId, url: str, body: dict[str, Any]) -> NoticeId:
    """Write a notice, due at once; its body is redacted, and gets the notice's id as ``id``.

    Raises ValueError if the URL cannot be sent to, the body holds NaN or infinity, or it is too large; TypeError if it
    is no JSON.
    """
    notice_id = NoticeId(new_id())
    text = json.dumps({**redact_all(body), "id": notice_id}, allow_nan=False, separators=(",", ":"))
    if len(text) > MOST_BYTES:
        raise ValueError(f"a notice of {len(text)} bytes is too large; {MOST_BYTES} are the most")
    connection.execute(
        insert(table).values(
            id=notice_id,
            namespace=namespace,
            run_id=run_id,
            url=check_url(url),
            body=text,
            state=NoticeState.OPEN,
            due_at=now(),
            made_at=now(),
        )
    )
    return notice_id


def seconds_to_next(
    connection: Connection, namespace: str, but_not: Collection[str] = (), only: Collection[str] | None = None
) -> float | None:
    """Return the seconds until a notice is due, 0.0 if one is, None if there is none; for ``but_not`` see ``take``."""
    statement = select(func.min(table.c.due_at), now()).where(_is_open(namespace), *_is_for(but_not, only))
    due, at = connection.execute(statement).one()
    return None if due is None else max(0.0, (due - at).total_seconds())


def take(
    connection: Connection,
    namespace: str,
    limit: int,
    but_not: Collection[str] = (),
    only: Collection[str] | None = None,
    *,
    hold: float = HOLD,
) -> list[Notice]:
    """Take due notices, longest due first, and count the attempt; no other sender gets them for ``hold`` seconds.

    Skips the receivers ``but_not`` (see ``receiver``) and, with ``only``, all that are none of those.
    """
    due = (
        select(table.c.id)
        .where(_is_open(namespace), table.c.due_at <= now(), *_is_for(but_not, only))
        .order_by(table.c.due_at, table.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    ids = list(connection.execute(due).scalars())
    if not ids:
        return []
    taken = (
        update(table)
        .where(table.c.id.in_(ids))
        .values(due_at=later(hold), attempts=next_count(table.c.attempts))
        .returning(*_COLUMNS)
    )
    found = {row.id: _from_row(row) for row in connection.execute(taken)}
    return [found[each] for each in ids]


def record_delivery(connection: Connection, notice: Notice) -> list[Event]:
    """Record a delivery; returns its event, none if it was recorded before."""
    statement = (
        update(table)
        .where(table.c.id == notice.id, table.c.state != NoticeState.HEARD)
        .values(state=NoticeState.HEARD, ended_at=now(), note=None)
    )
    if not _did(connection, statement):
        return []
    return [
        NoticeAcknowledged(notice=notice.id, run=notice.run_id, receiver=notice.receiver, attempt=notice.attempts),
    ]


def record_failure(connection: Connection, notice: Notice, why: str, wait: timedelta) -> list[Event]:
    """Record a failed attempt, to be sent again after ``wait``; gives up after ``PATIENCE``.

    Writes nothing and returns no event if another sender has taken the notice.
    """
    again = (
        _mine(notice)
        .where(table.c.made_at > later(-PATIENCE.total_seconds()))
        .values(due_at=later(wait.total_seconds()), note=_clean(why))
        .returning(table.c.due_at)
    )
    due = connection.execute(again).scalar_one_or_none()
    if due is None:
        return give_up(connection, notice, f"not heard for {PATIENCE.days} days; at last: {why}")
    return [
        NoticeFailed(
            notice=notice.id,
            run=notice.run_id,
            receiver=notice.receiver,
            attempt=notice.attempts,
            why=_clean(why),
            again_at=due.isoformat(),
        )
    ]


def give_up(connection: Connection, notice: Notice, why: str) -> list[Event]:
    """Record that a notice will not be sent again, and why; does nothing if another sender has taken it."""
    statement = _mine(notice).values(state=NoticeState.GIVEN_UP, ended_at=now(), note=_clean(why))
    if not _did(connection, statement):
        return []
    return [
        NoticeGivenUp(
            notice=notice.id,
            run=notice.run_id,
            receiver=notice.receiver,
            attempt=notice.attempts,
            why=_clean(why),
        )
    ]


def heard_last(connection: Connection, namespace: str, most: int) -> list[str]:
    """Return the receivers of the newest notices that were acknowledged, the newest last.

    Those that another notice was last sent to in vain are left out.
    """
    heard = (table.c.namespace == namespace) & (table.c.state == NoticeState.HEARD)
    statement = select(table.c.url).where(heard).order_by(table.c.id.desc()).limit(most)
    newest = dict.fromkeys(receiver(url) for url in connection.execute(statement).scalars())
    failed = select(table.c.url).where(_is_open(namespace), table.c.note.is_not(None)).distinct().limit(MOST_FAILED)
    failing = {receiver(url) for url in connection.execute(failed).scalars()}
    return [each for each in reversed(newest) if each not in failing]


def of_run(connection: Connection, run_id: RunId) -> list[Notice]:
    """Return the notices about a run, oldest first."""
    statement = select(*_COLUMNS).where(table.c.run_id == run_id).order_by(table.c.id)
    return [_from_row(row) for row in connection.execute(statement)]


def wait_after(attempts: int, chance: float) -> timedelta:
    """Return the back-off after this number of attempts: twice as long each time, from 1 s to 10 min. Pure.

    ``chance`` in [0, 1) spreads those that failed together: over 1 to 2 s, 2 to 4 s, … and at last 5 to 10 min.
    """
    least = durations.back_off(max(attempts, 1), FIRST_WAIT, LONGEST_WAIT / 2)
    return timedelta(seconds=least * (1 + chance))


def _from_row(row: Row[Any]) -> Notice:
    return Notice(**(dict(row._mapping) | {"state": NoticeState(row.state)}))


def _is_open(namespace: str | ColumnElement[str]) -> ColumnElement[bool]:
    return (table.c.namespace == namespace) & (table.c.state == NoticeState.OPEN)


def _is_for(but_not: Collection[str], only: Collection[str] | None) -> list[ColumnElement[bool]]:
    found = [~_goes_to(but_not)] if but_not else []
    return found if only is None else [*found, _goes_to(only)]


def _goes_to(receivers: Collection[str]) -> ColumnElement[bool]:
    prefixes = [prefix for each in sorted(receivers) for prefix in _prefixes(each)]
    return or_(false(), *(table.c.url.startswith(prefix, autoescape=True) for prefix in prefixes))


def _prefixes(name: str) -> list[str]:
    """Return what URLs of a receiver may begin with, once they are checked: its host may end with a dot."""
    scheme, _, place = name.removesuffix("/").partition("://")
    host, colon, port = place.partition(":") if not place.startswith("[") else (place, "", "")
    return [f"{scheme}://{host}{dot}{colon}{port}/" for dot in ("", ".")]


def _mine(notice: Notice) -> Update:
    return update(table).where(
        table.c.id == notice.id, table.c.state == NoticeState.OPEN, table.c.attempts == notice.attempts
    )


def _did(connection: Connection, statement: Update) -> bool:
    return connection.execute(statement.returning(table.c.id)).first() is not None


def _clean(text: str) -> str:
    """Reduce a receiver's answer to one line that every database can store."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= MOST_NOTE else f"{line[: MOST_NOTE - 1]}…"


#: Whether a notice of a namespace is due, or becomes due before the next look.
ANY_SOON = PreparedQuery.of(select(table.c.id).where(_is_open(GIVEN), table.c.due_at <= later(LOOK)).limit(1))
