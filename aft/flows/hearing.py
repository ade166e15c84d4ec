"""Which blocked steps of a run look again while others are at work: those for which something, or their time, has come.

A step looks into the inbox when it begins, and is blocked some time later. What another branch has found there
meanwhile may have been for it. So each step remembers how much had been found when it began to look
(``Ask.looked_at``); whoever is blocked, and began before something was found, looks again.

Who may run at the same time: the flow's own thread, which alone calls what is here, and the branches' threads, which
look into the same inbox and say when they began to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from aft.clock import Clock
from aft.flows import leaving
from aft.flows.asks import Ask
from aft.flows.leaving import Failed, HasMail, InLadder, NewMail
from aft.flows.mailbox import RunInbox
from aft.flows.standing import Standing

#: How long the other tasks of an async flow go on after a failure, before the run leaves to have it decided about.
PATIENCE = timedelta(seconds=1)


class Hearing:
    """What the steps of one pass have heard of. For the flow's own thread."""

    def __init__(self, mailbox: RunInbox, flying: Collection[Ask], clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self._flying = flying
        #: No step began to look when less than this had been found.
        self._looked_at = 0
        #: Those that have failed when they came to rest, and have to be decided about or to be tried again.
        self._failed: set[Ask] = set()

    def land(self, asks: Iterable[Ask]) -> None:
        """Say that steps have come to rest."""
        for ask in asks:
            if any(isinstance(block, (Failed, InLadder)) for block in ask.blocks):
                self._failed.add(ask)

    def find_failed(self) -> set[Ask]:
        """Find the steps that have failed and have not begun again since."""
        self._failed = {ask for ask in self._failed if ask.blocks}
        return self._failed

    def hold_back(self, new: list[Ask], standing: Standing) -> list[Ask]:
        """Return what an async flow begins now: nothing more while nobody decides about a failure of another task.

        So the run comes to rest soon, and leaves; only then is a failure decided about. What an earlier owner has
        begun, or may have, is looked at in any case, and so are waits.
        """
        if not self._is_patience_over():
            return new
        return [ask for ask in new if ask.quick or ask.was_begun() or ask.path in standing.doubts]

    def _is_patience_over(self) -> bool:
        undecided = [block for ask in self.find_failed() for block in ask.blocks if isinstance(block, Failed)]
        return any(self._clock.now() - block.fault.raised_at > PATIENCE for block in undecided)

    def waits(self, ask: Ask) -> bool:
        """Tell whether a step is blocked by what may end when something has come, or when a moment has."""
        return bool(ask.blocks) and ask not in self._flying and all(map(leaving.may_end, ask.blocks))

    def any_missed(self, asks: Iterable[Ask]) -> bool:
        """Tell whether something has come since one of these began to look, which is blocked now."""
        return self._mailbox.arrivals > self._looked_at and any(map(self._has_missed, asks))

    def wake_missed(self, asks: Iterable[Ask]) -> bool:
        """Let all look again that may have missed something; tells whether there are any."""
        if (arrivals := self._mailbox.arrivals) <= self._looked_at:
            return False
        missed = [ask for ask in asks if self._has_missed(ask)]
        for ask in missed:
            _begin_again(ask)
        # Those that are at work may have begun to look before, and may be blocked later.
        self._looked_at = min([arrivals, *(ask.looked_at for ask in self._flying)])
        return bool(missed)

    def look_again(self, asks: Iterable[Ask], beside: Iterable[Ask]) -> list[Ask]:
        """Let these look again if something came for them, or their time has come; returns who does.

        Those ``beside`` look again if they have missed something.
        """
        waiting = [ask for ask in asks if self.waits(ask)]
        try:
            self._mailbox.look()
        except NewMail:
            # Read by the next pass, which begins when what is at work has come to its end.
            for ask in waiting:
                ask.blocks = [HasMail()]
            return []
        self.wake_missed([*waiting, *beside])
        for ask in waiting:
            if ask.blocks and all(leaving.is_over(block, self._mailbox.now) for block in ask.blocks):
                _begin_again(ask)
        return [ask for ask in waiting if not ask.blocks]

    def _has_missed(self, ask: Ask) -> bool:
        return ask.looked_at < self._mailbox.arrivals and self.waits(ask)


def _begin_again(ask: Ask) -> None:
    ask.blocks, ask.flying = (), False
