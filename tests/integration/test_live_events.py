"""Live events: whoever subscribes hears of each run that something happens to; beside a SQLite file there are none."""

from __future__ import annotations

import secrets
import time

from aft.telemetry.live_events import runs_of
from tests.acceptance.theatre import premiere
from tests.setups import Setup


def test_a_subscriber_hears_of_a_run_that_another_process_executes(setup: Setup) -> None:
    here, elsewhere = setup.app(), setup.app()
    with elsewhere.dispatcher():
        subscription = here.broker.subscribe(here.namespace)
        assert (subscription is None) == (setup.name == "sqlite")
        run = here.submit(premiere, secrets.token_hex(4))
        run.signal("word")
        assert run.result(60) == [10, 10]
        if subscription is not None:
            heard, end = set[str](), time.monotonic() + 60
            while run.id not in heard and time.monotonic() < end:
                heard |= runs_of(subscription.receive(1) or b"")
            assert heard == {run.id}
            subscription.close()
