"""Actor: who gives an order, why, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import RunRow
from aft.runs.wakes.wake import NewInboxItem


@dataclass(frozen=True, slots=True)
class Actor:
    """The person, or the exlet, that gives orders: its name, its reason, and the time.

    ``grace`` is the time that a message about an order may take before the timer wakes the run.
    """

    name: str
    note: str | None
    at: datetime
    grace: timedelta

    def new_item(self, verb: InboxVerb, payload: dict[str, Any]) -> NewInboxItem:
        """Return the inbox item that gives an order."""
        return NewInboxItem(verb, payload, self.name, self.at, self.grace)


#: Gives an order to a run whose row is locked; raises OrderRefused.
Order = Callable[[Connection, RunRow, Actor], None]
