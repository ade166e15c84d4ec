"""What the contract suite needs of an implementation beside the port: to make brokers, and to do harm.

An implementation joins the suite with one subclass of :class:`Harness` and, where a server can be restarted,
one of :class:`ServerHarness`; and with its line in ``make_broker``, so that a process of its own can be told
what to use.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from aft.brokers.base import Broker, Consumer, Delivery, Topology
from aft.errors import BrokerError, Unroutable
from tests.contract.kinds import make_broker
from tests.servers import PrivateRabbit
from tests.setups import forget_queues

#: The waits that every test's topology declares.
SHORT, LONG = timedelta(milliseconds=400), timedelta(seconds=2)

T = TypeVar("T")


class Harness(ABC):
    """One implementation at one place; closes the brokers that it made."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self._made: list[Broker] = []
        self._topologies: list[Topology] = []

    def broker(self, *, timeout: float = 10.0) -> Broker:
        """Make another client of the same broker."""
        made = make_broker(self.kind, self.url, timeout=timeout)
        self._made.append(made)
        return made

    def topology(self, *waits: timedelta) -> Topology:
        """Make up a namespace, with these waits or the usual ones; nothing is declared."""
        made = Topology(f"t{secrets.token_hex(6)}", frozenset(waits or (SHORT, LONG)))
        self._topologies.append(made)
        return made

    @contextmanager
    def holder(self, queue: str, count: int) -> Iterator[subprocess.Popen[str]]:
        """Run a process that has received so many messages of a queue, and acknowledges none."""
        command = [sys.executable, "-m", "tests.contract.hold", self.kind, self.url, queue, str(count)]
        with subprocess.Popen(command, cwd=Path.cwd(), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == f"holding {count}\n"
                yield process
            finally:
                process.kill()

    def close(self) -> None:
        """Let go of everything that was made."""
        for broker in self._made:
            broker.close()
        for topology in self._topologies:
            self.forget(topology)

    @abstractmethod
    def forget(self, topology: Topology) -> None:
        """Remove a namespace's queues."""


class ServerHarness(Harness):
    """One implementation on a private server that tests may end."""

    def settle(self) -> None:
        """Return when what was declared survives even a crash."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down in order."""

    @abstractmethod
    def kill(self) -> None:
        """End the server as a power cut would."""

    @abstractmethod
    def start(self) -> None:
        """Start the server again, with its data."""


class RabbitHarness(Harness):
    """RabbitMQ, on the server that all tests share."""

    def forget(self, topology: Topology) -> None:
        forget_queues(self.url, topology)


class PrivateRabbitHarness(RabbitHarness, ServerHarness):
    """RabbitMQ, on a server of the tests' own."""

    def __init__(self, kind: str, server: PrivateRabbit) -> None:
        super().__init__(kind, server.url)
        self._server = server

    def settle(self) -> None:
        # A quorum queue declared less than half a second before a crash can be left without a leader for
        # good: the node writes down the names of its members that late (seen with 3.10.8).
        time.sleep(1.5)

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


def receive(consumer: Consumer, limit: int, timeout: float, *, within: float = 15.0) -> list[Delivery]:
    """Receive for so long, from when the consumer has connected: a short first call may end before that."""
    deadline = time.monotonic() + within
    while True:
        try:
            return consumer.receive(limit, timeout)
        except Unroutable:
            raise
        except BrokerError:
            if time.monotonic() >= deadline:
                raise


def drain(consumer: Consumer, count: int, *, within: float = 15.0) -> list[Delivery]:
    """Receive and acknowledge exactly so many messages; fails when fewer come in time."""
    found: list[Delivery] = []
    for left in _remaining(within):
        deliveries = consumer.receive(count - len(found), left)
        consumer.ack(deliveries)
        found += deliveries
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} messages came within {within} s")


def collect(consumer: Consumer, count: int, *, within: float = 15.0) -> list[Delivery]:
    """Receive exactly so many messages, acknowledging none; fails when fewer come in time."""
    found: list[Delivery] = []
    for left in _remaining(within):
        found += consumer.receive(count - len(found), left)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} messages came within {within} s")


def eventually(look: Callable[[], T], *, within: float = 15.0) -> T:
    """Look again and again until there is something true to see."""
    for _ in _remaining(within):
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it did not happen within {within} s")


def _remaining(seconds: float) -> Iterator[float]:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        yield left
