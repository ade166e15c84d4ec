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
from aft.flows.deadlines import check_deadline
from aft.flows.leaving import Block, Failed, GivesBack, HasMail, Leave, Lost, NewMail, Parks
from aft.flows.replay import Replay
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.runs.journal import Entry, Outcome
from aft.runs.owner import Fenced

#: What keeps more branches from being begun: the run stops as a whole, or will if the failure is found to be final.
_STOPS = (Failed, GivesBack, HasMail, Lost, Parks)


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

        Once one has failed for good no more are begun, except those that an earlier owner may have begun.
        """
        for ask in asks:
            if ask.entry is None and not ask.flying:
                ask.entry = self._take(ask, asks)
        if len(asks) == 1 and not self._flying:
            if asks[0].entry is None:
                with self._stepper.standing.branch():
                    self._perform(asks[0], None)
        else:
            self._settle_beside(asks, most or len(asks))
        self.check_blocks(asks)

    def settle_under(self, path: StepPath) -> None:
        """Let everything under a savepoint come to its end that was begun there and that nobody waits for any more."""
        inside = [self.pending.pop(other) for other in list(self.pending) if other.startswith(f"{path}.")]
        self._landed = deque(ask for ask in self._landed if ask not in inside)
        if needed := [ask for ask in inside if ask.needed]:
            self.settle(needed)

    def _take(self, ask: Ask, asks: Sequence[Ask]) -> Entry | None:
        beside = {other.path for other in asks} | self.pending.keys()
        try:
            return self.replay.take(ask.path, ask.kind, ask.name, beside)
        except ReplayDiverged as error:
            raise Leave(self._parking(error)) from error

    def _settle_beside(self, asks: Sequence[Ask], most: int) -> None:
        new = deque(ask for ask in asks if ask.entry is None and not ask.flying and not ask.blocks)
        mine = set(asks)
        while new or mine & self._flying:
            while new and len(mine & self._flying) < most and self._may_begin(asks, new[0], most):
                self._launch(new.popleft())
            if not mine & self._flying:
                return
            if (ask := self._await_landing()) not in mine:
                self._landed.append(ask)

    def _may_begin(self, asks: Sequence[Ask], ask: Ask, most: int) -> bool:
        if any(isinstance(block, _STOPS) for other in asks for block in other.blocks):
            return False
        if not any(other.entry is not None and other.entry.outcome is Outcome.FAILED for other in asks):
            return True
        ended = sum(other.entry is not None for other in asks)
        return self._stepper.standing.unseen and asks.index(ask) < ended + most

    def check_blocks(self, asks: Iterable[Ask]) -> None:
        """Leave if any of these is blocked."""
        if blocks := [block for ask in asks for block in ask.blocks]:
            raise Leave(*blocks)

    # One outcome after the other ------------------------------------------------------------------------------------

    def next(self) -> Ask | None:
        """The next of the pending steps that has its outcome; None: there are none. Leaves if all are blocked."""
        while True:
            if (path := self.replay.next_of(self.pending)) is not None:
                ask = self.pending[path]
                ask.entry = self._take(ask, [])
                return self.pending.pop(path)
            if self._landed:
                ask = self._landed.popleft()
                if ask.entry is not None:
                    return self.pending.pop(ask.path)
                continue  # blocked
            self._begin_pending()
            if self._flying:
                self._landed.append(self._await_landing())
            elif not self._landed:
                self.check_blocks(self.pending.values())
                return None

    def _begin_pending(self) -> None:
        new = [ask for ask in self.pending.values() if not ask.flying and not ask.blocks and ask.entry is None]
        if new:
            try:
                what = f"the code now calls {new[0].kind.value} {new[0].name!r} as step {new[0].path}"
                self.replay.check_spent(what, self.pending)
            except ReplayDiverged as error:
                raise Leave(self._parking(error)) from error
        for ask in new:
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
        thread.start()

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
            ask.entry = check_deadline(self._stepper, ask, land) or ask.perform(land)
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
