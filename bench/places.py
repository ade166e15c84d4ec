"""Databases and a vhost to measure on, created at the beginning and removed at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from aft.brokers.rabbitmq import RabbitBroker
from aft.store import Store, schema

DATABASE = "postgresql://postgres@127.0.0.1:5432/postgres"
BROKER = "amqp://guest:guest@127.0.0.1:5672/"


class Places:
    """Databases by name, created on first use, and one vhost."""

    def __init__(self, server: str, broker: str, directory: Path) -> None:
        self._server = server
        self.broker = broker
        self.directory = directory
        self._made: dict[str, str] = {}
        self._files = 0

    def database(self, name: str) -> str:
        """Return the URL of an empty database; the same one for the same name."""
        if name not in self._made:
            full = f"aft_bench_{os.getpid()}_{name}"
            with psycopg.connect(self._server, autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(full)))
            self._made[name] = urlunsplit(urlsplit(self._server)._replace(path=f"/{full}"))
        return self._made[name]

    def migrated(self, name: str) -> str:
        """Return the URL of a database with aft's tables."""
        is_new = name not in self._made
        url = self.database(name)
        if is_new:
            store = Store(url)
            schema.upgrade(store)
            store.close()
        return url

    def versions(self) -> dict[str, str]:
        """Return the versions of the servers."""
        with psycopg.connect(self._server) as connection:
            postgres = connection.info.parameter_status("server_version") or "?"
        broker = RabbitBroker(self.broker)
        try:
            return {"PostgreSQL": postgres.split()[0], "RabbitMQ": broker.version().removeprefix("RabbitMQ ")}
        finally:
            broker.close()

    def file(self) -> str:
        """Return a path that is not used."""
        self._files += 1
        return str(self.directory / f"file-{self._files}")

    def remove(self) -> None:
        """Drop every database that was created."""
        with psycopg.connect(self._server, autocommit=True) as connection:
            for url in self._made.values():
                name = sql.Identifier(urlsplit(url).path[1:])
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        self._made.clear()


@contextmanager
def places(server: str, broker: str) -> Iterator[Places]:
    """Yield databases and a vhost, and remove them at the end."""
    with tempfile.TemporaryDirectory(prefix="aft-bench-") as directory, _vhost(broker) as url:
        made = Places(server, url, Path(directory))
        try:
            yield made
        finally:
            made.remove()


@contextmanager
def _vhost(broker: str) -> Iterator[str]:
    """Yield a vhost of our own if rabbitmqctl can create one, else the one that the URL names."""
    if urlsplit(broker).path not in ("", "/") or shutil.which("rabbitmqctl") is None:
        yield broker
        return
    name = f"aft-bench-{os.getpid()}"
    user = urlsplit(broker).username or "guest"
    _rabbitmqctl("add_vhost", name)
    try:
        _rabbitmqctl("set_permissions", "-p", name, user, ".*", ".*", ".*")
        yield urlunsplit(urlsplit(broker)._replace(path=f"/{name}"))
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            _rabbitmqctl("delete_vhost", name)


def _rabbitmqctl(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "--quiet", *arguments], check=True, capture_output=True, timeout=60)
