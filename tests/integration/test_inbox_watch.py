"""Claims about watching inboxes: each run that waits beside others is told once, and an idle watch ends its thread."""

from __future__ import annotations

import threading

import pytest

import aft
from aft.flows.runtime import inbox_watch
from aft.flows.runtime.inbox_watch import InboxWatch
from aft.runs.states import Status
from tests.acceptance.agency import approval
from tests.setups import Setup, eventually


@pytest.fixture
def run(setup: Setup) -> aft.Run:
    """A run that waits for a signal."""
    app = setup.app()
    with app.dispatcher():
        made = app.submit(approval, "watched")
        eventually(lambda: made.status is Status.WAITING)
    return made


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "aft-inbox-watch"]


def test_a_run_is_told_once_that_something_has_come(setup: Setup, run: aft.Run) -> None:
    watch, told = InboxWatch(setup.apps[0].store), list[int]()
    with watch.over(run.id, 0, told.append):
        run.signal("verdict", "yes")
        eventually(lambda: told == [1])
        run.signal("verdict", "yes")
        with watch.over(run.id, 1, told.append):
            eventually(lambda: len(told) == 2)
    assert told == [1, 2]


def test_a_run_is_not_told_of_what_it_has_seen_nor_after_it_waits_no_more(setup: Setup, run: aft.Run) -> None:
    watch, told, others = InboxWatch(setup.apps[0].store), list[int](), list[int]()
    run.signal("verdict", "yes")
    with watch.over(run.id, 0, others.append), watch.over(run.id, 1, told.append):
        eventually(lambda: others == [1])
    run.signal("verdict", "yes")
    with watch.over(run.id, 0, others.append):
        eventually(lambda: others == [1, 2])
    assert told == []


def test_the_thread_ends_when_no_run_is_watched(setup: Setup, run: aft.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_watch, "IDLE", 0.05)
    watch = InboxWatch(setup.apps[0].store)
    eventually(lambda: not watching())
    for _ in range(2):
        with watch.over(run.id, 0, lambda length: None):
            assert len(watching()) == 1
        eventually(lambda: not watching())
