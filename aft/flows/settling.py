"""Steps that were asked for, one or several at a time, until each has its outcome, or the run must leave.

Recorded outcomes come from the journal. What is new is executed: one step on the flow's own thread, several on a
thread each. Outcomes reach the flow's code one at a time, in the order in which they were committed; so a replay, which
hands them out in that order, takes the same way. New steps begin only when every recorded outcome was handed out.

A step that was asked for comes to its end: completed, or failed for good. One that cannot go on now is blocked; when
nothing is at work any more and something is blocked, the run leaves with all that blocks it.

Who may run at the same time: the flow's own thread, which alone calls what is here, and the branches' threads, which
perform one step each and tell of it in ``_landings``.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from aft.errors import CodecError, ReplayDiverged, StoreError
from aft.flows.asks import Ask
from aft.flows.batch import MOST_BRANCHES, Batch
from aft.flows.interrupts import check_interrupts
from aft.flows.leaving import Awaits, Block, GivesBack, HasMail, InLadder, Leave, Lost, NewMail, Parks
from aft.flows.replay import Replay
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.runs.journal import Entry, Outcome
from aft.runs.owner import Fenced


class Settler:
    """Settles the steps of one pass over a flow's code. For the flow's own thread."""

    def __init__(self, stepper: Stepper, entries: list[Entry], parking: Callable[[BaseException], Parks]) -> None:
        self.replay = Replay(entries)
        self._stepper = stepper
        self._parking = parking
        #: Asked for in an async flow, and not handed out yet.
        self.pending: dict[StepPath, Ask] = {}
        self._landings: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        #: Have landed, and wait for their turn to be handed out.
        self._landed: deque[Ask] = deque()
        self._flying: set[Ask] = set()

    # Until all have their outcome ---------------------------------------------------------------------------------

    def settle(self, asks: Sequence[Ask], most: int | None = None) -> None:
        """Let each come to its outcome, so many at a time; leaves if one cannot.

        Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have. Where
        the journal goes on after such a failure, the flow has got on without those that have no outcome.
        """
        if not self._recall(asks):
            return
        if len(asks) == 1 and not self._flying:
            if asks[0].entry is None and not asks[0].blocks:
                standing = self._stepper.standing
                standing.begin_branch()
                try:
                    self._perform(asks[0], None)
                finally:
                    standing.end_branch()
        else:
            self._settle_beside(asks, most)
        if self._has_news(asks):
            self.settle(asks, most)
        self.check_blocks(asks)

    def _has_news(self, asks: Iterable[Ask]) -> bool:
        """Let steps look again that wait for what may have come while others were at work; tells whether any does."""
        waiting = [ask for ask in asks if ask.blocks and all(map(_waits_for_mail, ask.blocks))]
        if not waiting or not self._stepper.mailbox.take_news():
            return False
        for ask in waiting:
            ask.blocks, ask.flying = (), False
        return True

    def settle_under(self, path: StepPath) -> None:
        """Let everything under a savepoint come to its end that was begun there and that nobody waits for any more."""
        inside = [ask for other, ask in self.pending.items() if other.startswith(f"{path}.")]
        self.drop(ask for ask in inside if not ask.needed)
        if needed := [ask for ask in inside if ask.needed]:
            for ask in needed:
                del self.pending[ask.path]
            self.settle(needed)

    def drop(self, asks: Iterable[Ask]) -> None:
        """Forget steps that have no effects and that nobody waits for any more; so does a replay, at this place."""
        for ask in list(asks):
            del self.pending[ask.path]
            self.replay.pass_over(ask.path)
            self._stepper.owner.forget_wait(ask.path)

    def _recall(self, asks: Sequence[Ask]) -> bool:
        """Take what is recorded; False: the flow has got on since, and nothing is to be done any more."""
        try:
            for ask in asks:
                if ask.entry is None and not ask.flying:
                    ask.entry = self.replay.find(ask.path, ask.kind, ask.name)
            new = next((ask for ask in asks if ask.entry is None and not ask.flying), None)
            if new is None:
                return True  # before all that are pending are gone through: outcomes are handed out one by one
            beside = {other.path for other in asks} | self.pending.keys()
            if not self.replay.goes_on(beside):
                return True
            if _any_failed(asks):
                return False
            self.replay.check_spent(f"the code now calls {new.kind.value} {new.name!r} as step {new.path}", beside)
        except ReplayDiverged as error:
            raise Leave(self._parking(error)) from error
        return True

    def _settle_beside(self, asks: Sequence[Ask], most: int | None) -> None:
        batch = Batch(asks, most, self._stepper.standing)
        while True:
            while (ask := batch.next()) is not None:
                self._launch(ask)
            if not batch.is_at_work:
                return
            if not batch.land(landed := self._await_landing()):
                self._landed.append(landed)

    def check_blocks(self, asks: Iterable[Ask]) -> None:
        """Leave if any of these is blocked."""
        if blocks := [block for ask in asks for block in ask.blocks]:
            raise Leave(*blocks)

    # One outcome after the other ------------------------------------------------------------------------------------

    def next(self) -> Ask | None:
        """The next of the pending steps that has its outcome; None: there are none. Leaves if all are blocked."""
        while True:
            if (path := self.replay.next_of(self.pending)) is not None:
                self._recall([self.pending[path]])
                return self.pending.pop(path)
            if self._landed:
                ask = self._landed.popleft()
                if ask.entry is not None and self.pending.pop(ask.path, None) is not None:
                    return ask
                continue  # blocked, or dropped
            self._begin_pending()
            if self._flying:
                self._landed.append(self._await_landing())
            elif not self._landed and not self._has_news(self.pending.values()):
                self.check_blocks(self.pending.values())
                return None

    def _begin_pending(self) -> None:
        self.drop(ask for ask in self.pending.values() if ask.is_idle)
        if any(isinstance(block, Lost) for ask in self.pending.values() for block in ask.blocks):
            return
        new = [ask for ask in self.pending.values() if not ask.flying and not ask.blocks and ask.entry is None]
        if new:
            try:
                what = f"the code now calls {new[0].kind.value} {new[0].name!r} as step {new[0].path}"
                self.replay.check_spent(what, self.pending)
            except ReplayDiverged as error:
                raise Leave(self._parking(error)) from error
        launched = new[: MOST_BRANCHES - len(self._flying)]
        if self._stepper.standing.unseen:
            self._stepper.standing.suspect(ask.path for ask in launched)
        for ask in launched:
            self._launch(ask)

    # Branches -----------------------------------------------------------------------------------------------------

    def _launch(self, ask: Ask) -> None:
        ask.flying = True
        self._flying.add(ask)
        self._stepper.standing.begin_branch()
        if ask.quick:
            self._fly(ask)
            return
        here = contextvars.copy_context()
        thread = threading.Thread(target=here.run, args=(self._fly, ask), name=f"aft-branch-{ask.path}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            ask.blocks = [GivesBack(f"no thread can be started for step {ask.path}: {error}")]
            self._stepper.standing.end_branch()
            self._landings.put(ask)

    def _fly(self, ask: Ask) -> None:
        landed: list[Entry] = []

        def land(entry: Entry) -> None:
            ask.entry = entry
            landed.append(entry)
            self._landings.put(ask)

        try:
            self._perform(ask, land)
        finally:
            self._stepper.standing.end_branch()
            if not landed:
                self._landings.put(ask)

    def _await_landing(self) -> Ask:
        ask = self._landings.get()
        self._flying.discard(ask)
        return ask

    def land_all(self) -> list[Block]:
        """Wait until no branch is at work any more; returns all that blocks them."""
        while self._flying:
            self._landed.append(self._await_landing())
        found = [block for ask in (*self._landed, *self.pending.values()) for block in ask.blocks]
        return list({id(block): block for block in found}.values())

    def _perform(self, ask: Ask, land: Callable[[Entry], None] | None) -> None:
        try:
            ask.entry = check_interrupts(self._stepper, ask, land) or ask.perform(land)
        except Leave as leave:
            ask.blocks = leave.blocks
        except NewMail:
            ask.blocks = [HasMail()]
        except (Fenced, StoreError) as error:
            ask.blocks = [Lost(error)]
        except (ReplayDiverged, CodecError) as error:
            ask.blocks = [self._parking(error)]
        except BaseException as error:
            # Ctrl-C, or a defect of aft: the flow's code must not go on as if this were the activity's failure.
            ask.blocks = [Lost(error)]


def _any_failed(asks: Iterable[Ask]) -> bool:
    return any(ask.entry is not None and ask.entry.outcome is Outcome.FAILED for ask in asks)


def _waits_for_mail(block: Block) -> bool:
    """Whether something that comes into the inbox may end it."""
    return isinstance(block, Awaits) or (isinstance(block, InLadder) and block.fault.signal is not None)
