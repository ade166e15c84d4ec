"""Measures how fast RabbitMQ takes and delivers messages on a quorum queue, with pika alone.

``one``: each confirmed before the next is sent. ``window``: up to a thousand under way. ``consume``: what is there is
taken and acknowledged, a hundred at once.
"""

from __future__ import annotations

import time
from typing import Any

import pika
from pika.channel import Channel

from bench import jobs
from bench.limits.hops import DURABLE
from bench.limits.unconfirmed import Unconfirmed

QUEUE = "limits.confirms"
WINDOW = 1000
#: Deliveries that one acknowledgement is for.
MANY = 100
BODY = b"x" * 200


class Pipeline:
    """Publishes ``count`` messages with a window of unconfirmed ones, consumes them, and times both."""

    def __init__(self, broker: str, count: int) -> None:
        self.count, self.sent, self.taken = count, 0, 0
        self.unconfirmed = Unconfirmed()
        self.spent: dict[str, float] = {}
        self._connection = pika.SelectConnection(pika.URLParameters(broker), on_open_callback=self._opened)

    def run(self) -> dict[str, float]:
        """Run it, and return the messages per second in each direction."""
        self._connection.ioloop.start()
        return {name: self.count / spent for name, spent in self.spent.items()}

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._begin)

    def _begin(self, channel: Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm)
        self._began = time.perf_counter()
        self._send()

    def _send(self) -> None:
        while self.sent < self.count and len(self.unconfirmed) < WINDOW:
            self._channel.basic_publish("", QUEUE, BODY, DURABLE)
            self.unconfirmed.add()
            self.sent += 1

    def _on_confirm(self, frame: Any) -> None:
        self.unconfirmed.confirm(frame)
        if self.sent < self.count:
            self._send()
        elif not self.unconfirmed and "window" not in self.spent:
            self.spent["window"] = time.perf_counter() - self._began
            self._channel.basic_qos(prefetch_count=WINDOW)
            self._began = time.perf_counter()
            self._channel.basic_consume(QUEUE, self._on_message)

    def _on_message(self, channel: Channel, method: Any, properties: Any, body: bytes) -> None:
        self.taken += 1
        if self.taken % MANY == 0 or self.taken == self.count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self.taken == self.count:
            self.spent["consume"] = time.perf_counter() - self._began
            self._connection.ioloop.stop()


def one_by_one(broker: str, seconds: float) -> float:
    """Return the messages per second when each is confirmed before the next."""
    connection = pika.BlockingConnection(pika.URLParameters(broker))
    channel = connection.channel()
    channel.queue_delete(QUEUE)
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    rate = jobs.in_threads(1, seconds, lambda number: channel.basic_publish("", QUEUE, BODY, DURABLE))
    channel.queue_purge(QUEUE)
    connection.close()
    return rate


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    one = one_by_one(job["broker"], job["seconds"])
    jobs.answer({"one": one, **Pipeline(job["broker"], job["count"]).run()})


if __name__ == "__main__":
    main()
