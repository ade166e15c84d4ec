"""What the activities of tests do to the world: a ledger of it, trouble ahead, and gates that hold them up.

All by order: whatever a test calls what it is about, a text that no other test has. Nothing is declared here, so that
a test sees only the flows that it means.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aft
from tests.setups import Setup, eventually

#: What was done for an order, in order.
ledger: defaultdict[str, list[str]] = defaultdict(list)
#: Exceptions to be raised, by (order, what is done): taken off one by one.
trouble: defaultdict[tuple[str, str], list[BaseException]] = defaultdict(list)
#: Idempotency keys that were seen, by (order, what is done).
keys: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
#: Set to let go on what waits for an order, or for what is done for it.
gates: defaultdict[str | tuple[str, str], threading.Event] = defaultdict(threading.Event)
#: Orders about which a mistake in the code is fixed.
fixed: set[str] = set()
#: Orders, or things that are done for them, whose code is broken.
broken: set[str | tuple[str, str]] = set()
#: How often something was tried, by order, or by (order, what it is).
tries: Counter[str | tuple[str, str] | tuple[str, int]] = Counter()
#: Set when something has come to a place, by order, or by (order, the place).
reached: defaultdict[str | tuple[str, str], threading.Event] = defaultdict(threading.Event)
#: The app that an order's activities ask for something.
apps: dict[str, aft.Aft] = {}


class Busy(Exception):
    """Will pass."""


class Refused(Exception):
    """Will not."""


class Gate(threading.Event):
    """A gate that tells when somebody has come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.reached.set()
        return super().wait(timeout)


def shut(order: str, what: str) -> Gate:
    """Hold something up, until its gate is opened."""
    gates[order, what] = gate = Gate()
    return gate


def retry_after_fix(run: aft.Run[Any], order: str) -> None:
    """Fix the mistake for which a run is parked, and have it tried again."""
    eventually(lambda: run.status == "parked")
    fixed.add(order)
    run.retry()


def new_order() -> Iterator[str]:
    """Yield a text that no other test has; open all its gates in the end, so that nothing waits there for ever."""
    made = secrets.token_hex(4)
    yield made
    gates[made].set()
    for key in list(gates):
        if isinstance(key, tuple) and key[0] == made:
            gates[key].set()


@contextmanager
def paused_owner(setup: Setup, flow: aft.Flow[[str], Any], order: str) -> Iterator[aft.Run]:
    """Start a run whose owner stops beating while it is inside its activity, as a paused process would.

    It is inside when the ledger tells of the order; what waits for the order's gate goes on at the end of this block.
    """
    app = setup.app(lease="2s", grace="300ms")
    started = threading.Thread(target=app.start, args=(flow, order))
    started.start()
    eventually(lambda: ledger[order])
    assert app._deps is not None
    app._deps.lease._stopping.set()
    (run,) = app.runs()
    try:
        yield run
    finally:
        gates[order].set()
        started.join(30)
