"""What has come into the inbox of a run that is being executed.

Signals wait here until the flow's code asks for them, in the order in which they were sent. What a person asks for is
not here: it changes the way the run takes, so the run begins anew with it (``NewMail``). One is taken out of the
database only in the transaction that records what was made of it; a crash leaves it unread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import select

from aft.clock import Clock
from aft.flows.leaving import NewMail
from aft.ids import StepPath
from aft.runs import inbox
from aft.runs.inbox import HINTS, MAIL, Letter, Verb
from aft.runs.owner import Owner
from aft.store.moments import now


class RunInbox:
    """The unread signals of one run, for one pass over its code. Thread-safe."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self._signals: list[Letter] = []
        self._lock = threading.Lock()
        #: When the database was asked for its time, by the local boot-time clock, and what it said.
        self._asked: tuple[float, datetime] | None = None
        #: How often something was found in the inbox; whoever looked before that has to look again.
        self.arrivals = 0

    @property
    def now(self) -> datetime:
        """The database's time: asked for once, and counted on by the local boot-time clock, which never jumps.

        The wall clock of this machine has no say in what is due.
        """
        if self._asked is None:
            return self.ask_now()
        ticks, said = self._asked
        return said + timedelta(seconds=self._clock.ticks() - ticks)

    def ask_now(self) -> datetime:
        """Ask for the database's time anew: a wait begins when the run has come to it."""
        said: datetime = self._owner.read(lambda connection: connection.execute(select(now())).scalar_one())
        # Taken after the answer: what is counted on from here is never ahead of the database.
        self._asked = self._clock.ticks(), said
        return said

    def fill(self, letters: Iterable[Letter]) -> None:
        """Put in what is unread."""
        letters = list(letters)
        self._signals = [letter for letter in letters if letter.verb is Verb.SIGNAL]
        self._owner.heard = [letter.seq for letter in letters if letter.verb in HINTS]

    def look(self) -> None:
        """Read what has come since; raises NewMail if a person asks for something."""
        owner = self._owner
        if owner.inbox_seq <= owner.read_to:
            return
        with self._lock:
            seen, after = owner.inbox_seq, owner.read_to
            if seen <= after:
                return  # another branch has just looked, and may have found more than we know of
            letters = owner.read(lambda connection: inbox.unread(connection, owner.run_id, after))
            if any(letter.verb not in MAIL for letter in letters):
                raise NewMail
            self._signals += [letter for letter in letters if letter.verb is Verb.SIGNAL]
            self.arrivals += bool(letters)
            owner.heard += [letter.seq for letter in letters if letter.verb is Verb.CHILD]
            owner.read_to = max(seen, *(letter.seq for letter in letters), after)

    def take(self, name: str, path: StepPath | None = None) -> Letter | None:
        """Take the oldest signal of this name; None if there is none.

        One that a try of a step has taken is for the next try of that step only, and comes first there.
        """
        with self._lock:
            found = [letter for letter in self._signals if letter.payload.get("name") == name]
            for wanted in (path, None):
                for letter in found:
                    if letter.taken_by == wanted:
                        self._signals.remove(letter)
                        return letter
        return None
