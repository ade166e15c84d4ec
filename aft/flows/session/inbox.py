"""The unread inbox of a run that is being executed.

Signals wait here until the flow's code takes them, in the order in which they were sent. Orders and rulings are not
kept here: they change what the run does, so it starts another pass with them (``InboxChanged``). An item is marked read
in the database only in the transaction that records its effect; a crash leaves it unread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import cast

from aft.clock import Clock
from aft.flows.session.blocks import InboxChanged
from aft.flows.session.run_records import NOW
from aft.ids import StepPath
from aft.runs.ownership.owner import Owner
from aft.runs.records import inbox
from aft.runs.records.inbox import HINTS, MAIL, InboxItem, InboxVerb
from aft.store.db_time import read_time


class RunInbox:
    """The unread signals of one run, for one pass over its code. Thread-safe."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self._signals: list[InboxItem] = []
        self._lock = threading.Lock()
        #: The local boot-time clock when the database's time was queried, and that time.
        self.measured: tuple[float, datetime] | None = None
        #: How often items were found in the inbox; a step that read it before that has to read it again.
        self.arrivals = 0

    @property
    def now(self) -> datetime:
        """The database's time: queried once, then advanced by the local boot-time clock, which never jumps.

        The wall clock of this machine has no influence on what is due.
        """
        if self.measured is None:
            return self.query_now()
        ticks, database_time = self.measured
        return database_time + timedelta(seconds=self._clock.ticks() - ticks)

    def query_now(self) -> datetime:
        """Query the database's time again: a wait begins when the run has reached it."""
        ((found,),) = self._owner.query([(NOW, "")])[0]
        database_time = cast(datetime, read_time(found))
        # Taken after the answer: the time that is computed from it is never ahead of the database's.
        self.measured = self._clock.ticks(), database_time
        return database_time

    def fill(self, items: Iterable[InboxItem]) -> None:
        """Set the unread items."""
        items = list(items)
        self._signals = [item for item in items if item.verb is InboxVerb.SIGNAL]
        self._owner.pointers_read = [item.seq for item in items if item.verb in HINTS]

    def read_new(self) -> None:
        """Read new items; raises InboxChanged if one is an order or a ruling."""
        owner = self._owner
        if owner.inbox_seq <= owner.read_to:
            return
        with self._lock:
            seen, after = owner.inbox_seq, owner.read_to
            if seen <= after:
                return  # another branch has just read it, and may have found more than this one knows of
            items = owner.read(lambda connection: inbox.unread(connection, owner.run_id, after))
            if any(item.verb not in MAIL for item in items):
                raise InboxChanged
            self._signals += [item for item in items if item.verb is InboxVerb.SIGNAL]
            self.arrivals += bool(items)
            owner.pointers_read += [item.seq for item in items if item.verb is InboxVerb.CHILD]
            owner.read_to = max(seen, *(item.seq for item in items), after)

    def take(self, name: str, path: StepPath | None = None) -> InboxItem | None:
        """Take the oldest signal of this name, or None.

        A signal that a try of a step has taken is for the next try of that step only, and comes first there.
        """
        with self._lock:
            found = [item for item in self._signals if item.payload.get("name") == name]
            for wanted in (path, None):
                for item in found:
                    if item.taken_by == wanted:
                        self._signals.remove(item)
                        return item
        return None
