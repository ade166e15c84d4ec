"""Branches look into one inbox at the same time: what one of them has found is not found again."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from aft.clock import SystemClock
from aft.flows.session.inbox import RunInbox
from aft.ids import OrderId
from aft.runs.records import inbox
from aft.runs.records.inbox import InboxItem, InboxVerb


class Inbox:
    """An owner whose run has an item more than the owner has read; reading it takes until it is let go on."""

    run_id = "run"

    def __init__(self) -> None:
        self.read_to, self.known = 24, 25
        self.pointers_read: list[int] = []
        self.asked, self.reads = threading.Semaphore(0), threading.Event()
        self.goes_on = threading.Event()

    @property
    def inbox_seq(self) -> int:
        self.asked.release()
        return self.known

    def read(self, look: Any) -> Any:
        found = look(None)
        self.reads.set()
        assert self.goes_on.wait(60)
        return found


def test_what_one_branch_has_read_is_not_read_again_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        InboxItem(seq, OrderId(f"{seq}"), InboxVerb.SIGNAL, {"name": "s"}, "me", datetime.now(UTC), False)
        for seq in (25, 26)
    ]
    monkeypatch.setattr(inbox, "unread", lambda _, run, after: [one for one in items if one.seq > after])
    owner = Inbox()
    mailbox = RunInbox(cast(Any, owner), SystemClock())
    first, second = threading.Thread(target=mailbox.read_new), threading.Thread(target=mailbox.read_new)
    first.start()
    assert owner.reads.wait(60)
    for _ in range(2):
        owner.asked.acquire(timeout=60)  # by the first: before it looks, and while it does
    second.start()
    owner.asked.acquire(timeout=60)  # the second one believes that there is something to be read
    owner.goes_on.set()
    first.join(60)
    second.join(60)
    owner.known = 26
    mailbox.read_new()
    taken = [mailbox.take("s") for _ in range(3)]
    assert [one and one.seq for one in taken] == [25, 26, None]
