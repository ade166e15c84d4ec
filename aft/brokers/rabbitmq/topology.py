"""The topology on RabbitMQ: declares and inspects queues, exchanges and their arguments.

The arguments of a queue cannot be changed once it exists; a change of one here must raise ``names.TOPOLOGY``.

**Wake-ups are routed by the run's flow@version**, so that a worker receives only what it has the code for::

                        ┌─ key bound ──► NS.resume.DIGEST.v2    the pool of workers with one set of flows; expires
    NS.resume.v2 ───────┤
    (direct exchange)   └─ else ──► NS.resume.shared.v2 ──► NS.resume.v2    the queue that every worker receives from
         ▲                          (its alternate exchange)
         │ dead-lettered after the wait, with its own routing key
    NS.delay.10s.v2 (queue) ◄── NS.delay.10s.v2 (fanout exchange)

- A pool's queue is declared and bound by its workers, each time that one connects, and when a message that should have
  come to it comes through the shared queue: if the exchange was deleted, its bindings are gone. A worker's set of flows
  never changes, nor do the bindings of a name. When no worker of the pool is left, the queue expires: a pool that a
  deploy has replaced would collect copies for ever. Messages in it are lost then, which costs a delay: the timer claims
  their runs after the grace.
- A key that several pools have gives each of them a copy (in a rolling deploy, or where fleets overlap). The first
  claims the run, the others find a stale wake: one more delivery and one more statement for each. So the pool that has
  a free slot gets the run, and no pool that drains keeps a wake-up for itself.
- A key that no pool has is not an error: the exchange's alternate routes the message to the shared queue. So nothing is
  returned to its publisher, which would retry at once; and a delay queue, which keeps and retries what it cannot
  dead-letter, always can. A worker that starts later finds it there. A worker without the flow that receives it does
  not touch the run: the timer of a worker that has the flow claims it after the grace.
- A role that may only declare passively uses its pool's queue as soon as it exists, until then only the shared one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from pika.channel import Channel
from pika.exchange_type import ExchangeType

from aft import names
from aft.brokers.base import QueuesDiffer, QueueStatus, Topology
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.explain import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelRefused,
)
from aft.brokers.rabbitmq.link import Link, Request
from aft.brokers.rabbitmq.live_events import declare_exchange
from aft.errors import BrokerError

QueueType = Literal["quorum", "classic"]
Arguments = dict[str, str | int]
#: What was refused, "queue" or "exchange" with its name, and why.
Refusals = dict[tuple[str, str], ChannelRefused]

#: Deliveries of one message before the broker moves it to the undeliverable queue. Each death of a consumer counts for
#: all that it had prefetched, so it is generous; attempts are counted in the database, not here.
DELIVERY_LIMIT = 100
#: For the undeliverable queue: inspecting it must not use deliveries up. -1 means no limit only since RabbitMQ 4.0.
NO_DELIVERY_LIMIT = 1_000_000_000
#: Milliseconds after which the queue of a pool without consumers is deleted. A wake-up that is older than the grace is
#: worthless, as the timer has claimed its run; a broker or a worker that restarts is back sooner.
POOL_EXPIRES = 60_000
#: The longest that RabbitMQ can keep a message back: an unsigned 32-bit number of milliseconds.
LONGEST_WAIT = timedelta(milliseconds=2**32 - 1)


class TopologyClient:
    """Declares and inspects the queues of a topology, each time on a connection of its own."""

    def __init__(self, address: Address, timeout: float, queue_type: QueueType, *, passive: bool) -> None:
        self._address = address
        self._timeout = timeout
        self._queue_type = queue_type
        self._passive = passive

    def version(self) -> str:
        """Return the server's name and version."""
        link = self._connect()
        try:
            return link.server
        finally:
            link.close()

    def declare(self, topology: Topology) -> None:
        """Make every queue and exchange exist; with ``passive`` only check that they do.

        Those that others have declared in another form keep none of the rest from being declared: QueuesDiffer is
        raised at the end. If that is so with each queue that every namespace has, and one differs in its type, the
        setting is wrong, and nothing more is declared. The queues of pools are declared by their workers
        (``rabbitmq.consumer``).
        """
        rest = queues(topology, self._queue_type)
        always = {name: rest.pop(name) for name in list(rest) if name not in topology.delay_queues}
        link = self._connect()
        try:
            wrong = self._declare_queues(link, always)
            if len(wrong) == len(always) and any(other_type(one.text, self._queue_type) for one in wrong.values()):
                raise BrokerError(self._describe(wrong))
            wrong |= self._declare_queues(link, rest) | self._declare_exchanges(link, topology)
        finally:
            link.close()
        if wrong:
            raise QueuesDiffer(self._describe(wrong), {name for _, name in wrong})

    def _declare_queues(self, link: Link, wanted: dict[str, Arguments]) -> Refusals:
        wrong: Refusals = {}
        for name, arguments in wanted.items():
            wrong |= self._declare(link, "queue", name, declare_queue(name, arguments, passive=self._passive))
        return wrong

    def _declare_exchanges(self, link: Link, topology: Topology) -> Refusals:
        events = names.live_events(topology.namespace)
        wrong = self._declare(link, "exchange", events, declare_exchange(topology.namespace, passive=self._passive))
        for each in exchanges(topology):
            wrong |= self._declare(link, "exchange", each.name, each.declare(passive=self._passive))
            if each.queue and not self._passive:
                wrong |= self._declare(link, "exchange", each.name, each.bind)
        return wrong

    def declare_pool(self, queue: str, keys: Iterable[str], channel: Channel) -> None:
        """Declare the queue of the pool with these keys, and bind it; for a link's own thread.

        Does not wait: a refusal closes the channel, and the broker answers in order, so that the answer to a later
        request on this channel comes when all of this is done.
        """
        name, namespace = names.pool(queue, keys := sorted(keys)), queue.partition(".")[0]
        arguments = dict[str, Any](pool_queue(namespace, self._queue_type))
        channel.queue_declare(name, durable=True, arguments=arguments)
        for key in keys:
            channel.queue_bind(name, queue, key)

    def exists(self, queue: str) -> bool:
        """Return whether a queue exists and this role may use it."""
        link = self._connect()
        try:
            link.request(declare_queue(queue, {}, passive=True))
        except ChannelRefused:
            return False
        finally:
            link.close()
        return True

    def status(self, topology: Topology) -> list[QueueStatus]:
        """Inspect every queue, creating none. A missing pool queue is left out: its workers declare it."""
        wanted = queues(topology, self._queue_type)
        pools = {name: pool_queue(topology.namespace, self._queue_type) for name in topology.pool_queues}
        link = self._connect()
        try:
            found = [self._inspect(link, name, arguments) for name, arguments in (wanted | pools).items()]
        finally:
            link.close()
        return [one for one in found if one.exists or one.name not in pools]

    def _connect(self) -> Link:
        link = Link(self._address, self._timeout, name="aft-topology")
        try:
            link.wait(self._timeout)
        except BrokerError:
            link.close()
            raise
        return link

    def _declare(self, link: Link, kind: str, name: str, request: Request) -> Refusals:
        """Return the refusal if this exists in another form or is another connection's; else raise BrokerError."""
        try:
            link.request(request)
        except ChannelRefused as refused:
            wrong = {(kind, name): refused}
            if refused.code in (RESOURCE_LOCKED, PRECONDITION_FAILED):
                return wrong
            raise BrokerError(self._describe(wrong)) from None
        return {}

    def _describe(self, wrong: Refusals) -> str:
        """Return what is wrong with the first one in full, and the names of the others."""
        (kind, name), *others = wrong
        more = f"; the same is to be looked at for {', '.join(repr(other) for _, other in others)}" if others else ""
        return f"{kind} {name!r} at {self._address}: {self._explain_refusal(wrong[kind, name])}{more}"

    def _inspect(self, link: Link, name: str, arguments: Arguments) -> QueueStatus:
        try:
            found = link.request(declare_queue(name, arguments, passive=True))
        except ChannelRefused as refused:
            return QueueStatus(name, exists=refused.code != NOT_FOUND, problem=self._explain_refusal(refused))
        problem = "" if self._passive else self._compare(link, name, arguments)
        return QueueStatus(name, True, found.message_count, found.consumer_count, problem)

    def _compare(self, link: Link, name: str, arguments: Arguments) -> str:
        """Return what is wrong with an existing queue's arguments, by declaring it, which changes nothing."""
        try:
            link.request(declare_queue(name, arguments, passive=False))
        except ChannelRefused as refused:
            return self._explain_refusal(refused)
        return ""

    def _explain_refusal(self, refused: ChannelRefused) -> str:
        match refused.code:
            case code if code == NOT_FOUND:
                who = " with a role that may" if self._passive else ""
                return f"it does not exist; declare it{who}: aft broker declare"
            case code if code == PRECONDITION_FAILED:
                return self._explain_difference(refused)
            case code if code == RESOURCE_LOCKED:
                return (
                    f"another connection has taken it for itself ({refused.text}); `rabbitmqctl list_queues name "
                    "owner_pid` and `rabbitmqctl list_connections pid user peer_host` tell whose it is: end that "
                    "connection (`rabbitmqctl close_connection PID REASON`), and take from its user the permission to "
                    "configure aft's queues"
                )
            case code if code == ACCESS_REFUSED:
                return f"{refused.text}; grant the permission, or declare passively"
        return f"the broker refused: {refused}"

    def _explain_difference(self, refused: ChannelRefused) -> str:
        if (other := other_type(refused.text, self._queue_type)) is None:
            return (
                f"it exists with other arguments ({refused.text}); see which users may configure it (`rabbitmqctl "
                "list_permissions`), delete it (`rabbitmqctl delete_queue NAME`; an exchange in the management "
                "interface), and run `aft broker declare`; or use another namespace"
            )
        # A type in the name would be no help: processes with different settings would not find each other's messages.
        return (
            f"it exists with other arguments ({refused.text}): as a {other} queue, and AFT_QUEUE_TYPE is "
            f"{self._queue_type!r}; set AFT_QUEUE_TYPE={other} for every process, or change the type: stop all "
            "dispatchers of the namespace, delete each queue that `aft broker status` shows (`rabbitmqctl delete_queue "
            "NAME`), then run `aft broker declare`. That loses no run: those that the deleted messages would have "
            "woken go on by their timers"
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange, and the queue that it is bound to, if any."""

    name: str
    type: ExchangeType
    queue: str = ""
    #: The exchange for messages that match no binding.
    alternate: str = ""

    def declare(self, *, passive: bool) -> Request:
        """Return the request that declares it, or, with ``passive``, only checks that it exists."""
        arguments = {"alternate-exchange": self.alternate} if self.alternate else None
        return lambda channel, reply: channel.exchange_declare(
            self.name,
            self.type.value,
            passive=passive,
            durable=True,
            arguments=None if passive else arguments,
            callback=reply,
        )

    def bind(self, channel: Channel, reply: Callable[[Any], None]) -> None:
        """Request its binding."""
        channel.queue_bind(self.queue, self.name, "", callback=reply)


def exchanges(topology: Topology) -> list[Exchange]:
    """Return the exchanges of wake-ups, in an order in which each comes after those that it refers to."""
    found: list[Exchange] = []
    for queue in topology.routed_queues:
        rest = names.shared(queue)
        found += [
            Exchange(rest, ExchangeType.fanout, queue=queue),
            Exchange(queue, ExchangeType.direct, alternate=rest),
        ]
    return found + [Exchange(name, ExchangeType.fanout, queue=name) for name in topology.delay_queues]


def other_type(text: str, queue_type: QueueType) -> QueueType | None:
    """Return the type of an existing queue, if the broker's text says that the type differs."""
    if "for exchange" in text or ("x-queue-type" not in text and "'type'" not in text):
        return None
    return "classic" if queue_type == "quorum" else "quorum"


def declare_queue(name: str, arguments: Arguments, *, passive: bool) -> Request:
    """Return the request that declares a durable queue, or, with ``passive``, only checks that it exists."""
    return lambda channel, reply: channel.queue_declare(
        name,
        passive=passive,
        durable=True,
        arguments=None if passive else dict[str, Any](arguments),
        callback=reply,
    )


def queues(topology: Topology, queue_type: QueueType) -> dict[str, Arguments]:
    """Return the arguments of every queue by its name, each after those that it dead-letters to.

    Raises ValueError for a wait that no queue can keep.
    """
    namespace = topology.namespace
    found = {names.undeliverable(namespace): _undeliverable(queue_type)}
    found |= {name: _work(namespace, queue_type) for name in topology.work_queues}
    found |= {name: _delay(namespace, wait, queue_type) for name, wait in topology.delay_queues.items()}
    return found


def _work(namespace: str, queue_type: QueueType) -> Arguments:
    limit: Arguments = {"x-delivery-limit": DELIVERY_LIMIT} if queue_type == "quorum" else {}
    aside: Arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": names.undeliverable(namespace)}
    return _forwarding(aside, queue_type) | limit


def pool_queue(namespace: str, queue_type: QueueType) -> Arguments:
    """Return the arguments of a pool's queue."""
    return _work(namespace, queue_type) | {"x-expires": POOL_EXPIRES}


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
    # No routing key is set: the message keeps its own, its run's flow@version.
    return _forwarding({"x-dead-letter-exchange": names.resume(namespace)}, queue_type) | {
        "x-message-ttl": milliseconds
    }


def _forwarding(target: Arguments, queue_type: QueueType) -> Arguments:
    """Return arguments that dead-letter messages to the target; a quorum queue keeps them until that has confirmed."""
    found: Arguments = {"x-queue-type": queue_type, "x-overflow": "reject-publish", **target}
    if queue_type == "quorum":
        found["x-dead-letter-strategy"] = "at-least-once"
    return found
