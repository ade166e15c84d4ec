"""A broker that is far away: each packet takes its time, and a connection takes many."""

from __future__ import annotations

from urllib.parse import urlsplit

import aft
from tests.contract.proxy import Proxy
from tests.setups import Setup

#: So long that nobody but a message wakes a run, or has its fault decided, within a test.
NEVER = "10m"


@aft.activity(name="far_step", levels=[aft.Level("10ms", tries=9)])
def step() -> int:
    if aft.current().attempt == 1:
        raise aft.Recoverable("not yet")
    return 7


@aft.flow(name="far_order")
def order() -> int:
    return step()


def test_messages_come_however_long_a_connection_takes(production: Setup) -> None:
    """Longer than a receiver waits for messages at a time."""
    port = urlsplit(production.broker).port or 5672
    production.app()  # knows which queues are to be removed
    with Proxy(port, late=0.05) as line:
        far = Setup(
            "far", production.database, production.broker.replace(f":{port}", f":{line.port}"), production.namespace
        )
        with far.app(grace=NEVER) as app, app.dispatcher():
            assert app.submit(order).result(60) == 7
