"""Every implementation of the broker port goes through the same suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aft.brokers.base import Broker, Topology
from tests.contract.harness import Harness, PrivateRabbitHarness, RabbitHarness, ServerHarness
from tests.servers import PrivateRabbit

#: Implementations; an embedded one is a case more in ``harness``, and in ``server`` where it has a server.
KINDS = ["rabbitmq", "rabbitmq-classic"]
SERVER_KINDS = ["rabbitmq", "rabbitmq-classic"]


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """One implementation, on a service that all tests share."""
    made = RabbitHarness(request.param, request.getfixturevalue("rabbit_url"))
    yield made
    made.close()


@pytest.fixture(params=SERVER_KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerHarness]:
    """One implementation, on a private server that the test may end; it runs again for the next."""
    private: PrivateRabbit = request.getfixturevalue("private_rabbit")
    private.start()
    made = PrivateRabbitHarness(request.param, private)
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
