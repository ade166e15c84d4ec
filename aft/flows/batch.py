"""Several steps side by side, so many at a time: which of them is begun next?

Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have: an effect
that nobody saw must not be forgotten. While it is not decided whether a failure is final, nothing new is begun either:
the run leaves, and is back soon.

They are begun in order, and so many are at work at a time. So what an owner that died may have begun without anybody
having seen it are the first of which nothing is known, at most so many. That an activity's failure is final is decided
while nobody owns the run, and journaled when no other is at work: once it is decided, all that had been begun was seen,
or is known by name to be in doubt. A failure by an interrupt is journaled while others are at work, and says which.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from aft.fault import FaultState
from aft.flows.asks import Ask
from aft.flows.doubts import UNDO
from aft.flows.leaving import Awaits, Block, Failed, GivesBack, HasMail, Parks, WriteFailed
from aft.flows.standing import Standing
from aft.ids import StepPath
from aft.rules import kept
from aft.runs.journal import EntryKind

#: What stops the run as a whole: nothing is begun any more.
STOPS = (GivesBack, HasMail, WriteFailed, Parks)
#: Steps that one run executes side by side at the most, however many are asked for.
MOST_BRANCHES = 100
#: How soon a run looks whether a failure was decided about, to begin more, and how seldom at the most.
SOON, SELDOM = timedelta(seconds=0.5), timedelta(minutes=1)


class StepBatch:
    """The steps of one call of ``parallel`` or ``map``. For the flow's own thread."""

    def __init__(self, asks: Sequence[Ask], most: int | None, standing: Standing) -> None:
        self._most = min(most or MOST_BRANCHES, MOST_BRANCHES)
        self._asks = set(asks)
        new = [ask for ask in asks if ask.entry is None and not ask.flying and not ask.blocks]
        begun = {ask for ask in new if ask.path in standing.doubts or ask.was_begun()}
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

    def spell_begun(self) -> str | None:
        """Spell the paths of the steps that were begun and have not come to rest; None: all were begun."""
        return json.dumps([ask.path for ask in (*self._at_work, *self._begun)]) if self._fresh else None

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
        """Let a step of it, which was blocked, be the next that is begun, when there is room for it."""
        self._awaiting.discard(ask)
        self._begun.append(ask)

    def _count(self, ask: Ask) -> None:
        self._failed = self._failed or ask.has_failed
        for block in ask.blocks:
            # A child that is awaited is at work, if not here.
            if isinstance(block, Awaits):
                self._awaiting.add(ask)
            self._undecided = self._undecided or isinstance(block, Failed)
            self._stopped = self._stopped or isinstance(block, STOPS)


def find_doubtful(asks: Sequence[Ask], most: int | None, standing: Standing) -> list[StepPath] | None:
    """Find the steps of one call that an owner which died may have begun, where the journal has nothing more.

    Also the compensators of those that it may have been undoing, because a rule has them begin anew.

    None: the call is over. One of its steps has failed, and the others were never begun: the code has gone on.
    """
    new = [ask for ask in asks if ask.entry is None and ask.kind is EntryKind.ACTIVITY]
    known = [ask for ask in new if ask.was_begun() and standing.may_be_at_work(ask.path)]
    unknown = [ask for ask in new if not ask.was_begun()][: _most_at_work(asks, most, standing)]
    # What leaves a trace before it begins, or none at all, has not begun where there is no trace.
    known = [ask for ask in known if not ask.is_traced or ask.path in standing.armed]
    unknown = [ask for ask in unknown if not ask.is_traced]
    if any(_is_final_failure(ask, standing) for ask in asks):
        unknown = []
    begun = next((entry.value for ask in asks if (entry := ask.entry) and entry.interrupt is not None), None)
    if begun is not None:
        unknown = [ask for ask in unknown if ask.path in json.loads(begun)]
    doubtful = [ask.path for ask in (*known, *unknown)]
    doubtful += [StepPath(f"{ask.path}{UNDO}") for ask in new if standing.may_be_undone(ask.path)]
    return None if not doubtful and is_over(asks) else doubtful


def is_over(asks: Sequence[Ask]) -> bool:
    """Tell whether a call has failed, and what it has no outcomes of was never begun: the code may have gone on."""
    return any(ask.has_failed for ask in asks) and not any(ask.was_begun() for ask in asks if ask.entry is None)


def _most_at_work(asks: Iterable[Ask], most: int | None, standing: Standing) -> int:
    """How many were begun at a time: with code that allowed more, its failures say how many."""
    faults = [fault for ask in asks if (fault := standing.fault(ask.path)) is not None]
    return min(max([most or MOST_BRANCHES, *(kept.read(fault).abreast for fault in faults)]), MOST_BRANCHES)


def _is_final_failure(ask: Ask, standing: Standing) -> bool:
    """Whether an activity has failed for good, after all that were at work beside it; the journal may not have it yet.

    One that was interrupted fails at once, and so does one of an async flow's tasks.
    """
    if ask.kind is not EntryKind.ACTIVITY or ask.future is not None:
        return False
    if ask.entry is None:
        return standing.has_failed_for_good(ask.path)
    return ask.has_failed and ask.entry.interrupt is None


def pause_before_more(blocks: Iterable[Block], now: datetime) -> timedelta:
    """Decide how long a run is away that keeps steps back: the longer nobody decides about a failure, the longer."""
    undecided = max((now - block.fault.raised_at for block in blocks if isinstance(block, Failed)), default=SOON)
    return min(max(undecided, SOON), SELDOM)
