"""Which queues are there, and with which arguments? Declared as they should be, or looked at as they are.

The arguments of a queue cannot be changed once it exists; whoever changes one here raises ``names.TOPOLOGY``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from aft import names
from aft.brokers.base import QueueStatus, Topology
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.explain import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, Refused
from aft.brokers.rabbitmq.express import declare_exchange
from aft.brokers.rabbitmq.link import Link, Question
from aft.errors import BrokerError

QueueType = Literal["quorum", "classic"]
Arguments = dict[str, str | int]

#: Deliveries of one message before the broker puts it aside. Each death of a consumer costs all it had
#: prefetched one, so it is generous; attempts are counted in the database, not here.
DELIVERY_LIMIT = 100
#: For the queue of those put aside: looking at it must not use anything up. -1 says so only since RabbitMQ
#: 4.0.
NO_DELIVERY_LIMIT = 1_000_000_000
#: The longest that RabbitMQ can keep a message back: an unsigned 32-bit number of milliseconds.
LONGEST_WAIT = timedelta(milliseconds=2**32 - 1)


class Surveyor:
    """Declares and inspects the queues of a topology, each time on a connection of its own."""

    def __init__(self, address: Address, timeout: float, queue_type: QueueType, *, passive: bool) -> None:
        self._address = address
        self._timeout = timeout
        self._queue_type = queue_type
        self._passive = passive

    def version(self) -> str:
        """Ask the server for its name and version."""
        link = self._connect()
        try:
            return link.server
        finally:
            link.close()

    def declare(self, topology: Topology) -> None:
        """Make every queue and the express exchange exist; with ``passive`` only make sure that they do."""
        wanted = queues(topology, self._queue_type)
        link = self._connect()
        try:
            for name, arguments in wanted.items():
                self._declare(link, f"queue {name!r}", declare_queue(name, arguments, passive=self._passive))
            exchange = f"exchange {names.express(topology.namespace)!r}"
            self._declare(link, exchange, declare_exchange(topology.namespace, passive=self._passive))
        finally:
            link.close()

    def status(self, topology: Topology) -> list[QueueStatus]:
        """Look at every queue, creating none."""
        wanted = queues(topology, self._queue_type)
        link = self._connect()
        try:
            return [self._look(link, name, arguments) for name, arguments in wanted.items()]
        finally:
            link.close()

    def _connect(self) -> Link:
        link = Link(self._address, self._timeout, name="aft-topology")
        try:
            link.wait(self._timeout)
        except BrokerError:
            link.close()
            raise
        return link

    def _declare(self, link: Link, what: str, question: Question) -> None:
        try:
            link.ask(question)
        except Refused as refused:
            raise BrokerError(f"{what} at {self._address}: {self._advice(refused)}") from None

    def _look(self, link: Link, name: str, arguments: Arguments) -> QueueStatus:
        try:
            found = link.ask(declare_queue(name, arguments, passive=True))
        except Refused as refused:
            return QueueStatus(name, exists=refused.code != NOT_FOUND, problem=self._advice(refused))
        problem = "" if self._passive else self._compare(link, name, arguments)
        return QueueStatus(name, True, found.message_count, found.consumer_count, problem)

    def _compare(self, link: Link, name: str, arguments: Arguments) -> str:
        """Return what is wrong with an existing queue's arguments: to declare it as it is changes nothing."""
        try:
            link.ask(declare_queue(name, arguments, passive=False))
        except Refused as refused:
            return self._advice(refused)
        return ""

    def _advice(self, refused: Refused) -> str:
        match refused.code:
            case code if code == NOT_FOUND:
                who = " with a role that may" if self._passive else ""
                return f"it does not exist; declare it{who}: aft broker declare"
            case code if code == PRECONDITION_FAILED:
                return (
                    f"it exists with other arguments ({refused.text}); "
                    "drain and delete it and declare anew, or use another namespace"
                )
            case code if code == ACCESS_REFUSED:
                return f"{refused.text}; grant the permission, or declare passively"
        return f"the broker refused: {refused}"


def declare_queue(name: str, arguments: Arguments, *, passive: bool) -> Question:
    """Ask for a durable queue with these arguments, or, passively, only whether it is there."""
    return lambda channel, reply: channel.queue_declare(
        name,
        passive=passive,
        durable=True,
        arguments=None if passive else dict[str, Any](arguments),
        callback=reply,
    )


def queues(topology: Topology, queue_type: QueueType) -> dict[str, Arguments]:
    """Return the arguments of every queue by its name, those first that others dead-letter to.

    Raises ValueError for a wait that no queue can keep.
    """
    namespace = topology.namespace
    found = {names.undeliverable(namespace): _undeliverable(queue_type)}
    found |= {name: _work(namespace, queue_type) for name in topology.work_queues}
    found |= {name: _delay(namespace, wait, queue_type) for name, wait in topology.delay_queues.items()}
    return found


def _work(namespace: str, queue_type: QueueType) -> Arguments:
    limit: Arguments = {"x-delivery-limit": DELIVERY_LIMIT} if queue_type == "quorum" else {}
    return _forwarding(names.undeliverable(namespace), queue_type) | limit


def _undeliverable(queue_type: QueueType) -> Arguments:
    limit: Arguments = {"x-delivery-limit": NO_DELIVERY_LIMIT} if queue_type == "quorum" else {}
    return Arguments({"x-queue-type": queue_type}) | limit


def _delay(namespace: str, wait: timedelta, queue_type: QueueType) -> Arguments:
    milliseconds = round(wait / timedelta(milliseconds=1))
    if milliseconds < 1:
        raise ValueError(f"a wait of {wait} needs no delay queue; publish to the resume queue instead")
    if wait > LONGEST_WAIT:
        raise ValueError(f"RabbitMQ keeps a message back for {LONGEST_WAIT.days} days at the most, not {wait}")
    # The time is the queue's, not the message's: messages leave in order, a short one would wait behind a
    # long one.
    return _forwarding(names.resume(namespace), queue_type) | {"x-message-ttl": milliseconds}


def _forwarding(target: str, queue_type: QueueType) -> Arguments:
    """Forward what expires or is put aside to the target; a quorum queue keeps it until that confirmed."""
    found: Arguments = {
        "x-queue-type": queue_type,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": target,
        "x-overflow": "reject-publish",
    }
    if queue_type == "quorum":
        found["x-dead-letter-strategy"] = "at-least-once"
    return found
