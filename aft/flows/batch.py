"""Several steps side by side, so many at a time: which of them is begun next?

Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have: an effect
that nobody saw must not be forgotten. While it is not decided whether a failure is final, nothing new is begun either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aft.flows.asks import Ask
from aft.flows.leaving import Awaits, Failed, GivesBack, HasMail, Lost, Parks
from aft.flows.standing import Standing
from aft.runs.journal import Outcome

#: What stops the run as a whole: nothing is begun any more.
STOPS = (GivesBack, HasMail, Lost, Parks)
#: Steps that one run executes side by side at the most, however many are asked for.
MOST_BRANCHES = 100


class Batch:
    """The steps of one call of ``parallel`` or ``map``. For the flow's own thread."""

    def __init__(self, asks: Sequence[Ask], most: int | None, standing: Standing) -> None:
        self._most = min(most or MOST_BRANCHES, MOST_BRANCHES)
        self._asks = set(asks)
        new = [ask for ask in asks if ask.entry is None and not ask.flying and not ask.blocks]
        # As many were under way at a time: what an earlier owner may have begun are the first without an outcome.
        ended = sum(ask.entry is not None for ask in asks)
        doubtful = set(asks[: ended + self._most]) if standing.unseen else set()
        standing.suspect(ask.path for ask in new if ask in doubtful)
        begun = {ask for ask in new if ask in doubtful or ask.was_begun()}
        self._begun = deque(ask for ask in new if ask in begun)
        self._fresh = deque(ask for ask in new if ask not in begun)
        self._at_work = {ask for ask in asks if ask.flying and ask.entry is None and not ask.blocks}
        self._awaiting = 0
        self._failed = self._undecided = self._stopped = False
        for ask in asks:
            self._count(ask)

    @property
    def is_at_work(self) -> bool:
        """Whether any of its steps is."""
        return bool(self._at_work)

    def next(self) -> Ask | None:
        """Take the next step that may be begun now; None: none may."""
        if self._stopped or len(self._at_work) + self._awaiting >= self._most:
            return None
        # What was begun, or may have been, is looked at in any case: it is tried again, or says when that is due.
        if self._begun:
            ask = self._begun.popleft()
        elif self._fresh and not self._undecided and not self._failed:
            ask = self._fresh.popleft()
        else:
            return None
        self._at_work.add(ask)
        return ask

    def land(self, ask: Ask) -> bool:
        """Say that a step has come to rest; False: it is not of this batch."""
        if ask not in self._asks:
            return False
        self._at_work.discard(ask)
        self._count(ask)
        return True

    def _count(self, ask: Ask) -> None:
        self._failed = self._failed or (ask.entry is not None and ask.entry.outcome is Outcome.FAILED)
        for block in ask.blocks:
            # A child that is awaited is at work, if not here.
            self._awaiting += isinstance(block, Awaits)
            self._undecided = self._undecided or isinstance(block, Failed)
            self._stopped = self._stopped or isinstance(block, STOPS)
