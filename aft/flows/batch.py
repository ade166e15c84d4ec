"""Several steps side by side, so many at a time: which of them is begun next?

Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have: an effect
that nobody saw must not be forgotten. While it is not decided whether a failure is final, nothing new is begun either:
the run leaves, and is back soon.

They are begun in order, and so many are at work at a time. So what an earlier owner may have begun without anybody
having seen it are the first of which nothing is known, at most so many. An activity's final failure is journaled when
no other is at work: where the journal has one, all that had been begun was seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from aft.fault import FaultState
from aft.flows.asks import Ask
from aft.flows.leaving import Awaits, Block, Failed, GivesBack, HasMail, Lost, Parks
from aft.flows.standing import Standing
from aft.runs.journal import EntryKind, Outcome

#: What stops the run as a whole: nothing is begun any more.
STOPS = (GivesBack, HasMail, Lost, Parks)
#: Steps that one run executes side by side at the most, however many are asked for.
MOST_BRANCHES = 100
#: How soon a run looks whether a failure was decided about, to begin more, and how seldom at the most.
SOON, SELDOM = timedelta(seconds=0.5), timedelta(minutes=1)


class Batch:
    """The steps of one call of ``parallel`` or ``map``. For the flow's own thread."""

    def __init__(self, asks: Sequence[Ask], most: int | None, standing: Standing) -> None:
        self._most = min(most or MOST_BRANCHES, MOST_BRANCHES)
        self._asks = set(asks)
        new = [ask for ask in asks if ask.entry is None and not ask.flying and not ask.blocks]
        begun = {ask for ask in new if ask.was_begun()}
        if standing.unseen and not any(map(_is_final_failure, asks)):
            unknown = [ask for ask in new if ask not in begun][: self._most]
            doubtful = [ask for ask in unknown if ask.kind is EntryKind.ACTIVITY]
            standing.suspect(ask.path for ask in doubtful)
            begun.update(doubtful)
        final = {ask for ask in begun if standing.has_failed_for_good(ask.path)}
        self._begun = deque(ask for ask in new if ask in begun and ask not in final)
        self._final = deque(ask for ask in new if ask in final)
        self._fresh = deque(ask for ask in new if ask not in begun)
        self._at_work = {ask for ask in asks if ask.flying and ask.entry is None and not ask.blocks}
        self._awaiting: set[Ask] = set()
        # What stands against those that were begun is known before they are looked at again.
        faults = {fault.state for ask in begun if (fault := standing.fault(ask.path)) is not None}
        self._failed, self._undecided = bool(final), FaultState.OPEN in faults
        self._stopped = False
        for ask in asks:
            self._count(ask)

    @property
    def is_at_work(self) -> bool:
        """Whether any of its steps is."""
        return bool(self._at_work)

    @property
    def keeps_back(self) -> bool:
        """Whether steps are not begun only because a failure is not decided about."""
        return bool(self._fresh) and self._undecided and not (self._failed or self._stopped)

    def next(self) -> Ask | None:
        """Take the next step that may be begun now; None: none may."""
        if self._stopped or len(self._at_work) + len(self._awaiting) >= self._most:
            return None
        # What was begun, or may have been, is looked at in any case: it is tried again, or says when that is due.
        if self._begun:
            ask = self._begun.popleft()
        elif self._final and not self._at_work:
            ask = self._final.popleft()
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

    def begin_again(self, ask: Ask) -> None:
        """Say that a step of it, which was blocked, is at work once more."""
        self._awaiting.discard(ask)
        self._at_work.add(ask)

    def _count(self, ask: Ask) -> None:
        self._failed = self._failed or (ask.entry is not None and ask.entry.outcome is Outcome.FAILED)
        for block in ask.blocks:
            # A child that is awaited is at work, if not here.
            if isinstance(block, Awaits):
                self._awaiting.add(ask)
            self._undecided = self._undecided or isinstance(block, Failed)
            self._stopped = self._stopped or isinstance(block, STOPS)


def _is_final_failure(ask: Ask) -> bool:
    """Whether the journal has an activity's final failure that came after all that were at work beside it.

    One that was interrupted fails at once, and so does one of an async flow's tasks.
    """
    entry = ask.entry
    failed = entry is not None and entry.outcome is Outcome.FAILED and entry.interrupt is None
    return failed and ask.kind is EntryKind.ACTIVITY and ask.future is None


def pause_before_more(blocks: Iterable[Block], now: datetime) -> timedelta:
    """Decide how long a run is away that keeps steps back: the longer nobody decides about a failure, the longer."""
    undecided = max((now - block.fault.raised_at for block in blocks if isinstance(block, Failed)), default=SOON)
    return min(max(undecided, SOON), SELDOM)
