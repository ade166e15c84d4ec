"""Every implementation of the broker port goes through the same suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aft.brokers.base import Broker, Topology
from tests.contract.harness import Harness, PrivateRabbitHarness, RabbitHarness, ServerHarness
from tests.contract.harness_embedded import EmbeddedHarness, PrivatePostgresHarness
from tests.servers import PrivatePostgres, PrivateRabbit

KINDS = ["rabbitmq", "rabbitmq-classic", "embedded-sqlite", "embedded-postgresql"]
#: Those that carry live events.
LIVE_KINDS = ["rabbitmq", "rabbitmq-classic", "embedded-postgresql"]
#: Those with a server that can be ended.
SERVER_KINDS = ["rabbitmq", "rabbitmq-classic", "embedded-postgresql"]


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """One implementation, on a service that all tests share."""
    made = make_harness(request.param, request, tmp_path)
    yield made
    made.close()


def make_harness(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    """Make the harness of an implementation."""
    if kind == "embedded-sqlite":
        return EmbeddedHarness(kind, f"sqlite:///{tmp_path / 'aft.db'}")
    if kind == "embedded-postgresql":
        return EmbeddedHarness(kind, request.getfixturevalue("postgres_url"))
    return RabbitHarness(kind, request.getfixturevalue("rabbit_url"))


@pytest.fixture(params=SERVER_KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerHarness]:
    """One implementation, on a private server that the test may end; it runs again for the next."""
    embedded = request.param == "embedded-postgresql"
    private = request.getfixturevalue("private_postgres" if embedded else "private_rabbit")
    private.start()
    made = (PrivatePostgresHarness if embedded else PrivateRabbitHarness)(request.param, private)
    yield made
    private.start()
    made.close()


@pytest.fixture
def broker(harness: Harness) -> Broker:
    """A broker of the implementation."""
    return harness.broker()


@pytest.fixture
def topology(harness: Harness, broker: Broker) -> Topology:
    """A declared topology in a namespace of the test's own."""
    made = harness.topology()
    broker.declare(made)
    return made


@pytest.fixture(scope="session")
def private_rabbit() -> Iterator[PrivateRabbit]:
    """A RabbitMQ of this worker's own, for tests that end it; each leaves it running."""
    with PrivateRabbit() as private:
        yield private


@pytest.fixture(scope="session")
def private_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL of this worker's own, for tests that end it; each leaves it running."""
    with PrivatePostgres() as private:
        yield private
