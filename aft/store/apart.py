"""Connections to PostgreSQL outside the pool: for what lives as long as its connection does."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy import Engine

#: Seconds; short, because whoever waits for such a connection can go on without it.
CONNECT_TIMEOUT = 5
#: Nothing is sent for long: only the keepalive notices that the server's machine is gone.
_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 10_000}

Apart = psycopg.Connection[Any]


def connect(engine: Engine) -> Apart:
    """Connect outside the pool, in autocommit; raises psycopg.Error.

    A fresh connection, never a pooled one: after the server was away, the pool's are dead one by one.
    """
    _, parameters = engine.dialect.create_connect_args(engine.url)
    settings = {"connect_timeout": CONNECT_TIMEOUT, "application_name": "aft", **_KEEPALIVE, **parameters}
    return psycopg.connect(**settings, autocommit=True)
