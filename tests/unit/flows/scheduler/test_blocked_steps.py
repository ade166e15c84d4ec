"""A step that is blocked after something was found in the inbox, and had looked there before, looks again."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from aft.clock import SystemClock
from aft.flows.scheduler.blocked_steps import BlockedSteps
from aft.flows.session.blocks import WaitPending
from aft.flows.steps.request import StepRequest
from aft.ids import StepPath
from aft.runs.records.journal import EntryKind
from aft.runs.waits import Wait, WaitKind

NOTHING: Any = None


def make_ask(arrivals_seen: int) -> StepRequest:
    ask = StepRequest(StepPath("1"), EntryKind.SIGNAL, "s", NOTHING, NOTHING)
    ask.arrivals_seen = arrivals_seen
    return ask


def block(ask: StepRequest) -> None:
    ask.blocks = [WaitPending(Wait(ask.path, WaitKind.SIGNAL, "s", datetime.now(UTC)))]


def test_who_began_to_look_before_something_was_found_and_is_blocked_after_that_looks_again() -> None:
    mailbox: Any = SimpleNamespace(arrivals=1)
    ask = make_ask(arrivals_seen=0)
    running = {ask}
    blocked = BlockedSteps(mailbox, running, SystemClock())
    assert not blocked.unblock_missed([ask])  # it is at work
    running.clear()
    block(ask)
    assert blocked.any_missed([ask])
    assert blocked.unblock_missed([ask])
    assert not ask.blocks


def test_who_looked_since_is_left_alone() -> None:
    mailbox: Any = SimpleNamespace(arrivals=1)
    ask = make_ask(arrivals_seen=1)
    block(ask)
    blocked = BlockedSteps(mailbox, set(), SystemClock())
    assert not blocked.any_missed([ask])
    assert not blocked.unblock_missed([ask])
    mailbox.arrivals = 2
    assert blocked.unblock_missed([ask])
