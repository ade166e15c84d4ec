"""Which PostgreSQL and which RabbitMQ do the tests use? The first of these that is there:

1. the one named by ``AFT_TEST_DATABASE_URL`` or ``AFT_TEST_BROKER_URL``
2. a server on the standard local port, with a database or a vhost of the tests' own
3. a container, where Docker answers
4. a private server process from installed binaries
5. the same, after ``apt-get install``, as root on Debian

If there is none, the tests that need it fail and say why; they are never skipped. All workers of a run share
one server (the first that needs it starts it, under a lock); each worker has a database of its own. What a
run made is removed at its end; what a crashed run left behind is removed by another one a day later.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import psycopg
from psycopg import sql

from tests.servers import PATIENCE, PrivatePostgres, PrivateRabbit, PrivateServer, ServerFailed

__all__ = [
    "PrivatePostgres",
    "PrivateRabbit",
    "begin_run",
    "database",
    "end_run",
    "postgres",
    "rabbit",
    "report",
]

#: Names the directory that the processes of one run share.
RUN_DIR = "AFT_TEST_RUN_DIR"
#: Seconds after which something of the tests' is taken for left behind.
LEFT_BEHIND = 86_400.0

_DATABASE = re.compile(r"aft_test_(\d{10})_\d+_\w+")
_VHOST = re.compile(r"aft-test-(\d{10})-\d+")
_DIRECTORY = "aft-tests-"


class NoService(Exception):
    """Raised when there is no server to test with; says what was tried."""


class Unavailable(Exception):
    """Raised by one way to get a server when it is not there; the next way is tried."""


@dataclass(frozen=True)
class Service:
    """A server that the run uses, and what is to be removed at its end."""

    kind: str
    how: str
    url: str
    directory: str = ""
    container: str = ""
    vhost: str = ""


# --- for conftest ---


def begin_run() -> None:
    """Make the directory that the processes of this run share."""
    _remove_left_behind()
    directory = tempfile.mkdtemp(prefix=_DIRECTORY)
    Path(directory).chmod(0o755)  # PostgreSQL runs as another user
    os.environ[RUN_DIR] = directory


def end_run() -> None:
    """Remove what this run made."""
    for service in _used():
        _remove(service)
    shutil.rmtree(_run_dir(), ignore_errors=True)
    del os.environ[RUN_DIR]


def report() -> list[str]:
    """Say which services this run used, one line each."""
    return [f"{service.kind}: {service.how}" for service in _used()]


def postgres() -> Service:
    """Return the run's PostgreSQL. Raises NoService."""
    ways = [_given_postgres, _local_postgres, _container_postgres, _private_postgres, _apt_postgres]
    return _shared("PostgreSQL", ways)


def rabbit() -> Service:
    """Return the run's RabbitMQ. Raises NoService."""
    ways = [_given_rabbit, _local_rabbit, _container_rabbit, _private_rabbit, _apt_rabbit]
    return _shared("RabbitMQ", ways)


@contextmanager
def database(service: Service, name: str) -> Iterator[str]:
    """Make an empty database on the server, give its URL, drop it at the end."""
    name = f"aft_test_{time.time():.0f}_{os.getpid()}_{name}"
    identifier = sql.Identifier(name)
    with psycopg.connect(service.url, autocommit=True) as admin:
        _drop_left_behind(admin)
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(identifier))
    try:
        yield urlsplit(service.url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(service.url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier))


# --- one server for all workers of a run ---


def _shared(kind: str, ways: Sequence[Callable[[], Service]]) -> Service:
    path = _run_dir() / f"{kind}.json"
    with _locked(path):
        if not path.exists():
            path.write_text(json.dumps(_first(kind, ways)))
        found = json.loads(path.read_text())
    if "failed" in found:
        raise NoService(found["failed"])
    return Service(**found)


def _first(kind: str, ways: Sequence[Callable[[], Service]]) -> dict[str, str]:
    reasons: list[str] = []
    for way in ways:
        try:
            return asdict(way())
        except Unavailable as reason:
            reasons.append(f"  - {reason}")
        except NoService as reason:
            return {"failed": str(reason)}
    return {"failed": "\n".join([f"the tests need {kind} and found none:", *reasons])}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run_dir() -> Path:
    return Path(os.environ[RUN_DIR])


def _used() -> list[Service]:
    found = [json.loads(path.read_text()) for path in sorted(_run_dir().glob("*.json"))]
    return [Service(**each) for each in found if "failed" not in each]


# --- PostgreSQL ---


def _given_postgres() -> Service:
    url = os.environ.get("AFT_TEST_DATABASE_URL")
    if not url:
        raise Unavailable("AFT_TEST_DATABASE_URL is not set")
    url = re.sub(r"^postgres(ql)?(\+\w+)?:", "postgresql:", url)
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.Error as error:
        raise NoService(f"AFT_TEST_DATABASE_URL is set, but: {_line(error)}") from error
    return Service("PostgreSQL", "the one of AFT_TEST_DATABASE_URL, a database for each worker", url)


def _local_postgres() -> Service:
    url = "postgresql://postgres@127.0.0.1:5432/postgres"
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.Error as error:
        raise Unavailable(f"on the standard port: {_line(error)}") from error
    return Service("PostgreSQL", "the server on 127.0.0.1:5432, a database for each worker", url)


def _container_postgres() -> Service:
    where, identifier = _container("postgres:17", 5432, {"POSTGRES_HOST_AUTH_METHOD": "trust"})
    url = f"postgresql://postgres@{where}/postgres"
    _until_it_answers(lambda: psycopg.connect(url, connect_timeout=2).close())
    return Service("PostgreSQL", "a container, postgres:17", url, container=identifier)


def _private_postgres() -> Service:
    if PrivatePostgres.binaries() is None:
        raise Unavailable("no installed postgres was found")
    return _private("PostgreSQL", PrivatePostgres(_run_dir() / "postgresql", fsync=False))


def _apt_postgres() -> Service:
    _apt_install("postgresql")
    return _private_postgres()


# --- RabbitMQ ---


def _given_rabbit() -> Service:
    url = os.environ.get("AFT_TEST_BROKER_URL")
    if not url:
        raise Unavailable("AFT_TEST_BROKER_URL is not set")
    try:
        _connect_rabbit(url)
    except Unavailable as error:
        raise NoService(f"AFT_TEST_BROKER_URL is set, but: {error}") from error
    return Service("RabbitMQ", "the one of AFT_TEST_BROKER_URL, namespaces of our own", url)


def _local_rabbit() -> Service:
    server = "amqp://guest:guest@127.0.0.1:5672/"
    _connect_rabbit(server)
    vhost = f"aft-test-{time.time():.0f}-{os.getpid()}"
    try:
        _make_vhost(vhost)
        _connect_rabbit(server + vhost)
    except Unavailable:
        return Service("RabbitMQ", "the server on 127.0.0.1:5672, namespaces of our own", server)
    return Service("RabbitMQ", f"the server on 127.0.0.1:5672, vhost {vhost}", server + vhost, vhost=vhost)


def _container_rabbit() -> Service:
    where, identifier = _container("rabbitmq:4", 5672, {})
    url = f"amqp://guest:guest@{where}/"
    _until_it_answers(lambda: _connect_rabbit(url))
    return Service("RabbitMQ", "a container, rabbitmq:4", url, container=identifier)


def _private_rabbit() -> Service:
    if PrivateRabbit.binaries() is None:
        raise Unavailable("no installed rabbitmq-server was found")
    return _private("RabbitMQ", PrivateRabbit(_run_dir() / "rabbitmq"))


def _apt_rabbit() -> Service:
    _apt_install("rabbitmq-server")
    return _private_rabbit()


def _connect_rabbit(url: str) -> None:
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = 5
    try:
        pika.BlockingConnection(parameters).close()
    except Exception as error:  # pika's connecting raises its own, and the socket's
        raise Unavailable(f"on {parameters.host}:{parameters.port}: {_line(error)}") from error


def _make_vhost(vhost: str) -> None:
    for old in _rabbitmqctl("list_vhosts", "name").split():
        if _is_left_behind(_VHOST, old):
            _rabbitmqctl("delete_vhost", old)
    _rabbitmqctl("add_vhost", vhost)
    _rabbitmqctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")


def _rabbitmqctl(*arguments: str) -> str:
    """Run it as root; without the management plugin there is no other way to make a vhost."""
    program = shutil.which("rabbitmqctl")
    if program is None or os.geteuid() != 0:
        raise Unavailable("rabbitmqctl needs root")
    try:
        done = subprocess.run([program, "-q", *arguments], capture_output=True, text=True, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        raise Unavailable(f"rabbitmqctl {arguments[0]}: {_line(error)}") from error
    return done.stdout


# --- ways that both have ---


def _private(kind: str, server: PrivateServer) -> Service:
    try:
        server.start()
    except ServerFailed as error:
        raise Unavailable(f"the installed one as a private process: {error}") from error
    return Service(kind, f"a private process on port {server.port}", server.url, str(server.directory))


def _container(image: str, port: int, environ: dict[str, str]) -> tuple[str, str]:
    """Start a container; return its host and port, and its id. Raises Unavailable without Docker."""
    if problem := _docker_problem():
        raise Unavailable(f"Docker: {problem}")
    # Its reaper would end the container with the worker that started it, while others still use it.
    import_module("testcontainers.core.config").testcontainers_config.ryuk_disabled = True
    container: Any = import_module("testcontainers.core.container").DockerContainer(image)
    container.with_exposed_ports(port).with_envs(**environ).start()
    where = f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"
    return where, container.get_wrapped_container().id


def _until_it_answers(connect: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return connect()
        except (Unavailable, psycopg.Error) as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"a container that never answered: {_line(error)}") from error
        time.sleep(0.2)


def _docker_problem() -> str:
    """Say why Docker cannot be used; empty if it answers."""
    problem = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its client forgets the socket that did not connect
        try:
            with _docker(timeout=2) as client:
                client.ping()
        except Exception as error:  # not installed, no socket, no permission, no answer
            problem = _line(error)
        gc.collect()
    return problem


def _docker(timeout: int) -> closing[Any]:
    return closing(import_module("docker").from_env(timeout=timeout))


def _apt_install(package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"apt-get install {package}: needs root on Debian")
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
        done = subprocess.run(["apt-get", "-q", *arguments], env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"apt-get install {package}: {done.stderr.strip()[-300:]}")


# --- removing ---


def _remove(service: Service) -> None:
    if service.vhost:
        with suppress(Unavailable):
            _rabbitmqctl("delete_vhost", service.vhost)
    if service.container:
        with _docker(timeout=60) as client:
            client.containers.get(service.container).remove(force=True, v=True)
    if service.directory:
        _private_at(Path(service.directory)).remove()


def _private_at(directory: Path) -> PrivateServer:
    return PrivatePostgres(directory) if directory.name == "postgresql" else PrivateRabbit(directory)


def _drop_left_behind(admin: psycopg.Connection) -> None:
    for (name,) in admin.execute("SELECT datname FROM pg_database").fetchall():
        if _is_left_behind(_DATABASE, name):
            with suppress(psycopg.Error):  # another run was faster
                admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _remove_left_behind() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*"):
        with suppress(OSError):
            if time.time() - directory.stat().st_mtime > LEFT_BEHIND:
                for state in directory.glob("*/server.json"):
                    _private_at(state.parent).remove()
                shutil.rmtree(directory, ignore_errors=True)


def _is_left_behind(pattern: re.Pattern[str], name: str) -> bool:
    found = pattern.fullmatch(name)
    return found is not None and time.time() - int(found.group(1)) > LEFT_BEHIND


def _line(error: Exception) -> str:
    return " ".join((str(error) or repr(error)).split())[:300]
