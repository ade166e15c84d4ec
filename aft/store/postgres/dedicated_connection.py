"""Connections to PostgreSQL outside the pool: for locks and notifications, which end with their connection."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy import Engine

#: Seconds; short, because the callers can go on without such a connection.
CONNECT_TIMEOUT = 5
#: Nothing is sent for long times: only the keepalive detects that the server's machine is gone.
_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 10_000}

#: A database may be set to another style, in which no driver reads times.
_DATES = "SET datestyle = 'ISO'"
#: The same for the server: by default it would take two hours to detect that our machine is gone, and keep its locks.
_ALIVE = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5"
#: Milliseconds after which it gives up sending us an answer. Not every system that PostgreSQL runs on can do that.
_HEARD = "SET tcp_user_timeout = 30000"

DedicatedConnection = psycopg.Connection[Any]


def connect(engine: Engine) -> DedicatedConnection:
    """Connect outside the pool, in autocommit; raises psycopg.Error.

    A fresh connection, never a pooled one: after the server was away, the pool's are dead one by one.
    """
    _, parameters = engine.dialect.create_connect_args(engine.url)
    settings = {"connect_timeout": CONNECT_TIMEOUT, "application_name": "aft", **_KEEPALIVE, **parameters}
    connection = psycopg.connect(**settings, autocommit=True)
    try:
        watch_line(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def watch_line(connection: DedicatedConnection, *settings: str) -> None:
    """Make the server detect a dead client; other settings are sent in the same round trip."""
    try:
        connection.execute("; ".join([_DATES, *settings, _ALIVE, _HEARD]))
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject):
        connection.rollback()
        connection.execute("; ".join([_DATES, *settings, _ALIVE]))
