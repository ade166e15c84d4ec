"""RabbitMQ behind aft's broker port; the only package that imports pika.

Modules: ``address`` (the checked URL), ``link`` (one connection on its own thread), ``reconnect`` (reconnects with
back-off), ``publisher``, ``consumer``, ``live_events``, ``topology`` (queues and their arguments), ``explain`` (pika's
errors in one line for people), and ``broker``, which puts them together.
"""

from __future__ import annotations

import logging

from aft.brokers.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]

# What pika logs as errors is an expected part of reconnecting, and reaches the caller as a BrokerError.
# Without a handler Python would print it to stderr; who configures logging still sees it.
logging.getLogger("pika").addHandler(logging.NullHandler())
