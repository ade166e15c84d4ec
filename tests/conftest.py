"""The services that tests share: a database of its own for each worker, a broker for all of them.

``tests/services.py`` tells where they come from; the terminal's summary says which were taken.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from aft.store import leases
from tests import compiled_statements, declarations, services, world
from tests.setups import SETUPS, Setup, migrate

# How long an example takes says more of what else is going on than of the claim.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    compiled_statements.share()
    if not _is_worker(config):
        services.begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        services.end_run()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in services.report():
        terminalreporter.write_line(f"service {line}")


@pytest.fixture(autouse=True)
def declarations_of_this_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """An app of a test knows the flows that its module declares, imports or names, as a process of users does."""
    with declarations.only_of(request.module):
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty PostgreSQL database of this worker's own; dropped at the end."""
    service = _take(services.postgres)
    with services.database(service, os.environ.get("PYTEST_XDIST_WORKER", "main")) as url:
        yield url


@pytest.fixture(scope="session")
def rabbit_url() -> str:
    """The URL of a RabbitMQ that all workers share; use a namespace of your own."""
    return _take(services.rabbit).url


@pytest.fixture(scope="session")
def migrated_url(postgres_url: str) -> str:
    """The URL of this worker's PostgreSQL database, at the newest schema."""
    migrate(postgres_url)
    return postgres_url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file at the newest schema, to be copied: to migrate one takes longer than most tests."""
    file = tmp_path_factory.mktemp("template") / "aft.db"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """Each combination of database and broker in turn, in a namespace of the test's own."""
    made = make_setup(request.param, request, tmp_path)
    yield made
    made.close()


def make_setup(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Setup:
    """Make one combination."""
    if name == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "aft.db")
        return Setup(name, f"sqlite:///{tmp_path / 'aft.db'}", "embedded")
    broker = request.getfixturevalue("rabbit_url") if name.endswith("rabbitmq") else "embedded"
    return Setup(name, request.getfixturevalue("migrated_url"), broker)


@pytest.fixture
def production(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """PostgreSQL and RabbitMQ."""
    made = make_setup("postgresql+rabbitmq", request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def order() -> Iterator[str]:
    """What a test calls what it is about: a text that no other test has. Its gates stand open in the end."""
    yield from world.new_order()


@pytest.fixture
def journey() -> Iterator[str]:
    """An order, by the name that travellers have for it."""
    yield from world.new_order()


@pytest.fixture
def place() -> Iterator[str]:
    """An order, by the name of where it is carried out."""
    yield from world.new_order()


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> float:
    """Three heartbeats a second in a lease that outlasts any pause; returns its length in seconds."""
    monkeypatch.setattr(leases, "BEATS", 180)
    return 60.0


def _take(find: Callable[[], services.Service]) -> services.Service:
    try:
        return find()
    except services.NoService as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
