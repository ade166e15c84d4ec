"""Steps that were asked for, one or several at a time, until each has its outcome, or the run must leave.

Recorded outcomes come from the journal. What is new is executed: one step on the flow's own thread, several on a
thread each. Outcomes reach the flow's code one at a time, in the order in which they were committed; so a replay, which
hands them out in that order, takes the same way. New steps begin only when every recorded outcome was handed out.

A step that was asked for comes to its end: completed, or failed for good. One that cannot go on now is blocked; when
nothing is at work any more and something is blocked, the run leaves with all that blocks it. While others are at work,
a blocked step is looked at again when its time has come, when something came for it, or when the run is interrupted;
a wait that begins then is stored, so that the next owner knows since when it has lasted.

Who may run at the same time: the flow's own thread, which alone calls what is here; the branches' threads, which
perform one step each and tell of it in ``flows.landings``; and the thread that watches the inbox.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from aft.errors import CodecError, LimitExceeded, ReplayDiverged, StoreError
from aft.flows import leaving
from aft.flows.asks import Ask, Landed
from aft.flows.batch import MOST_BRANCHES, StepBatch, find_doubtful, is_over, pause_before_more
from aft.flows.hearing import Hearing
from aft.flows.interrupts import Interrupts
from aft.flows.landings import Landings
from aft.flows.leaving import Block, GivesBack, HasMail, Leave, NewMail, NotBegun, Parks, WriteFailed
from aft.flows.replay import Beside, Replay
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.runs.journal import Entry
from aft.runs.owner import Fenced

#: Brings a step to its outcome.
Performs = Callable[[Landed | None], Entry]


class Settler:
    """Settles the steps of one pass over a flow's code. For the flow's own thread."""

    def __init__(self, stepper: Stepper, entries: list[Entry], parking: Callable[[BaseException], Parks]) -> None:
        self.replay = Replay(entries)
        self._stepper = stepper
        self._parking = parking
        #: Asked for in an async flow, and not handed out yet.
        self.pending: dict[StepPath, Ask] = {}
        self.interrupts = Interrupts(stepper)
        self._landings = Landings(stepper.owner)
        self._flying: set[Ask] = set()
        self._landed: deque[Ask] = deque()  # these wait for their turn to be handed out
        self._hearing = Hearing(stepper.mailbox, self._flying, stepper.tools.clock)
        self._keeps_back = False
        self.is_ending = False  #: whether the flow has returned: what it left comes to its end, with its ladder

    # Until all have their outcome ---------------------------------------------------------------------------------

    def settle(self, asks: Sequence[Ask], most: int | None = None) -> None:
        """Let each come to its outcome, so many at a time; leaves if one cannot.

        Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have. Where
        the journal goes on after such a failure, the flow has got on without those that have no outcome.
        """
        with leaving.leave_if_kept(self._parking):
            if self._stepper.standing.turns_back:
                self.see_pending()
            self._settle(asks, most)

    def _settle(self, asks: Sequence[Ask], most: int | None) -> None:
        goes_on = self._recall(asks)
        for entry in [ask.entry for ask in asks if ask.entry is not None and ask.has_failed]:
            self._spread(entry, asks)
        if not goes_on:
            return
        if len(asks) == 1 and not self._flying:
            self._settle_alone(asks[0])
        else:
            self._settle_beside(asks, most)
        if self._hearing.wake_missed((*asks, *self.pending.values())):
            self._settle(asks, most)
        self.check_blocks(asks)

    def _settle_alone(self, ask: Ask) -> None:
        if ask.entry is None:
            self.reach_frontier([ask])
        if ask.entry is None and not ask.blocks and not self._interrupt(ask):
            standing = self._stepper.standing
            standing.begin_branch()
            try:
                self._perform(ask, None, ask.perform)
            finally:
                standing.end_branch()
        if ask.blocks:
            self._interrupt(ask)

    def reach_frontier(self, asks: Sequence[Ask] = (), most: int | None = 1) -> None:
        """Say that the journal has nothing more for these steps of one call, nor for those that are pending."""
        standing = self._stepper.standing
        if standing.begun and not is_over(asks):
            self._check_begun(asks)
        if not standing.doubts.before_frontier or (found := find_doubtful(asks, most, standing)) is None:
            return
        self.doubt_pending()
        standing.reach_frontier(found)

    def _check_begun(self, asks: Iterable[Ask]) -> None:
        """Raise ReplayDiverged if the code does not ask for all that was begun: before it begins anything itself."""
        begun = self._stepper.standing.begun
        new = [ask for ask in (*asks, *self.pending.values()) if ask.entry is None]
        for ask in new:
            begun.check(ask.path, ask.kind, ask.name)
        calls = f"it calls {new[0].kind.value} {new[0].name!r} as step {new[0].path}" if new else "it goes on"
        begun.check_asked(calls, self._stepper.course.was_asked)
        begun.clear()  # what is begun from now on is begun by this code

    def see_pending(self) -> None:
        """Let pending steps in doubt come to their end, in a run that is undone after that: it begins no others."""
        standing = self._stepper.standing
        self.doubt_pending()
        if standing.turns_back:
            for ask in self.pending.values():
                if not ask.flying and ask.entry is None and ask.undoable and standing.is_unseen(ask.path):
                    self._launch(ask)
            self.land_all()

    def doubt_pending(self) -> None:
        """Say that an owner which died may have begun the pending steps for which the journal has nothing."""
        standing = self._stepper.standing
        if standing.doubts.before_frontier:
            pending = [ask for ask in self.pending.values() if not self.replay.has(ask.path)]
            for path in find_doubtful(pending, None, standing) or ():
                standing.lost_sight(path)

    def _interrupt(self, ask: Ask, begun: str | None = None) -> bool:
        """Let a step fail that is not at work, if an interrupt reaches it; tells whether it does."""
        if not self.interrupts.any() or not self.interrupts.reaches(ask):
            return False
        self._perform(ask, None, partial(self.interrupts.fail, ask, begun=begun))
        if ask.entry is not None:
            self._spread(ask.entry)
        return True

    def _spread(self, entry: Entry, asks: Iterable[Ask] = ()) -> None:
        """Let an interrupt reach all that stand beside a step which has heard of it."""
        self.interrupts.spread(entry, (*asks, *self.pending.values()))

    def settle_under(self, path: StepPath) -> None:
        """Let everything under a savepoint come to its end that was begun there and that nobody waits for any more."""
        inside = [ask for other, ask in self.pending.items() if other.startswith(f"{path}.")]
        self.drop(ask for ask in inside if not ask.needed)
        self.interrupts.abandon(inside)
        needed = [self.pending.pop(ask.path) for ask in inside if ask.needed]
        try:
            if needed:
                self.settle(needed)
        finally:
            for ask in needed:
                ask.release()

    def drop(self, asks: Iterable[Ask]) -> None:
        """Forget steps that have no effects and that nobody waits for any more; so does a replay, at this place."""
        for ask in list(asks):
            del self.pending[ask.path]
            self.replay.pass_over(ask.path)
            self._stepper.owner.forget_wait(ask.path)

    def _recall(self, asks: Sequence[Ask]) -> bool:
        """Take what is recorded; False: the flow has got on since, and nothing is to be done any more."""
        for ask in asks:
            if ask.entry is None and not ask.flying:
                ask.entry = self.replay.find(ask.path, ask.kind, ask.name)
                if ask.entry is not None:
                    ask.check_same(ask.entry)
        new = next((ask for ask in asks if ask.entry is None and not ask.flying), None)
        if new is None:
            return True  # before all that are pending are gone through: outcomes are handed out one by one
        if not self.replay.goes_on(beside := {other.path for other in asks} | self.pending.keys()):
            return True
        if any(ask.has_failed for ask in asks):
            return False
        self.check_spent(f"the code now calls {new.kind.value} {new.name!r} as step {new.path}", new.path, beside)
        return True

    def check_spent(self, now: str, path: StepPath, asked: Container[str]) -> None:
        """Raise ReplayDiverged if the journal has outcomes that the code of this task did not ask for."""
        self.replay.check_spent(now, Beside(path, asked, self._stepper.branches))

    def _settle_beside(self, asks: Sequence[Ask], most: int | None) -> None:
        if any(ask.entry is None for ask in asks):
            self.reach_frontier(asks, most)
        batch = StepBatch(asks, most, self._stepper.standing)
        while True:
            if self.interrupts.any():
                for blocked in asks:
                    if blocked.blocks and blocked not in self._flying and self._interrupt_beside(blocked, asks, batch):
                        batch.land(blocked)
            with self._stepper.standing.beside():
                while (ask := batch.next()) is not None:
                    if self.interrupts.any() and self._interrupt_beside(ask, asks, batch):
                        batch.land(ask)
                    else:
                        self._launch(ask)
            if not batch.is_at_work:
                self._keeps_back = batch.keeps_back
                return
            if (landed := self._await_landing(asks)) is None:
                for again in self._hearing.look_again(asks, self.pending.values()):
                    batch.begin_again(again)
            elif not batch.land(landed):
                self._landed.append(landed)

    def _interrupt_beside(self, ask: Ask, asks: Sequence[Ask], batch: StepBatch) -> bool:
        if not self._interrupt(ask, batch.spell_begun()):
            return False
        if ask.entry is not None:
            self._spread(ask.entry, asks)
        return True

    def check_blocks(self, asks: Iterable[Ask]) -> None:
        """Leave if any of these is blocked; the deadline, if it is ahead, reaches them where they are."""
        if blocks := [block for ask in asks for block in ask.blocks]:
            pause = pause_before_more(blocks, self._stepper.tools.clock.now()) if self._keeps_back else None
            raise Leave(*blocks, *self.interrupts.bounds(pause))

    # One outcome after the other ------------------------------------------------------------------------------------

    def next(self) -> Ask | None:
        """The next of the pending steps that has its outcome; None: there are none. Leaves if all are blocked."""
        with leaving.leave_if_kept(self._parking):
            return self._next()

    def _next(self) -> Ask | None:
        while True:
            if (path := self.replay.next_of(self.pending)) is not None:
                self._recall([self.pending[path]])
                return self._hand_out(self.pending.pop(path))
            if self._landed:
                ask = self._landed.popleft()
                if ask.entry is not None and self.pending.pop(ask.path, None) is not None:
                    return self._hand_out(ask)
                continue  # blocked, or dropped
            self._begin_pending()
            self._interrupt_pending()
            if self._landed:
                continue
            if self._flying:
                if (landed := self._await_landing(self.pending.values())) is not None:
                    self._landed.append(landed)
                else:
                    self._hearing.look_again(self.pending.values(), ())
            elif not self._hearing.wake_missed(self.pending.values()):
                self.check_blocks(self.pending.values())
                return None

    def _hand_out(self, ask: Ask) -> Ask:
        self.interrupts.pass_on(ask)
        if ask.entry is not None and ask.has_failed:
            self._spread(ask.entry)
        return ask

    def _interrupt_pending(self) -> None:
        """Let all pending steps fail that are not at work and that an interrupt reaches.

        Under the owner's lock, and only when nothing has landed that the flow does not know of yet: the first one that
        is told must be the next that the flow hears of, or its task might be cancelled before, and nobody would.
        """
        if not self.interrupts.any():
            return
        with self._stepper.owner.lock:
            if self._landed or (self._flying and self._landings.any):
                return
            for ask in list(self.pending.values()):
                if ask not in self._flying and self.interrupts.reaches(ask) and self.interrupts.may_fail(ask):
                    self._launch(ask, partial(self.interrupts.fail, ask))

    def _begin_pending(self) -> None:
        self.drop(ask for ask in self.pending.values() if ask.is_idle)
        if not self.is_ending:
            self.interrupts.abandon(self.pending.values())
        if any(isinstance(block, WriteFailed) for ask in self.pending.values() for block in ask.blocks):
            return
        new = [ask for ask in self.pending.values() if not ask.flying and not ask.blocks and ask.entry is None]
        if new:
            what = f"the code now calls {new[0].kind.value} {new[0].name!r} as step {new[0].path}"
            self.replay.check_spent(what, self.pending)
            self.reach_frontier()
        if new and self.interrupts.any():
            new = [ask for ask in new if not self.interrupts.reaches(ask)]
        begin = self._hearing.hold_back(new, self._stepper.standing)
        self._keeps_back = len(begin) < len(new)
        with self._stepper.standing.beside() if len(begin) > 1 else nullcontext():
            for ask in begin:
                if not ask.takes_signal and (ask.quick or len(self._flying) < MOST_BRANCHES):
                    self._launch(ask)
            all(map(self._look_for_signal, [ask for ask in begin if ask.takes_signal]))  # until one says that it cannot

    def _look_for_signal(self, ask: Ask) -> bool:
        """Let a step take its signal; False: not before the flow has heard of an outcome that was recorded.

        That may cancel the step's task, and the signal would be lost. Under the lock nothing is recorded meanwhile.
        """
        with self._stepper.owner.lock:
            self._landed += self._land(self._landings.take_all())
            if any(landed.entry is not None for landed in self._landed):
                return False
            self._launch(ask)
            return ask.entry is None

    # Branches -----------------------------------------------------------------------------------------------------

    def _launch(self, ask: Ask, how: Performs | None = None) -> None:
        """Let a step be performed, on a thread of its own unless that is quick; ``how``: quickly, in another way."""
        ask.flying = True
        self._flying.add(ask)
        self._stepper.standing.begin_branch()
        if ask.quick or how is not None:
            self._fly(ask, how or ask.perform)
            return
        here, fly = contextvars.copy_context(), (self._fly, ask, ask.perform)
        thread = threading.Thread(target=here.run, args=fly, name=f"aft-branch-{ask.path}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            ask.blocks = [GivesBack(f"no thread can be started for step {ask.path}: {error}")]
            self._stepper.standing.end_branch()
            self._landings.put(ask)

    def _fly(self, ask: Ask, perform: Performs) -> None:
        landed: list[Entry] = []

        def land(entry: Entry) -> None:
            ask.entry = entry
            landed.append(entry)
            self._landings.put(ask)

        try:
            self._perform(ask, land, perform)
        finally:
            self._stepper.standing.end_branch()
            if not landed:
                self._landings.put(ask)

    def _await_landing(self, beside: Iterable[Ask]) -> Ask | None:
        """Wait until a branch has come to rest; None: a step that is blocked beside has to be looked at first."""
        stepper, owner = self._stepper, self._stepper.owner
        if self._hearing.any_missed(beside):
            return None
        failed = self._hearing.find_failed()
        if not (owner.run.waits or failed or owner.run.deadline_at):
            return self._take_landing(None)
        blocks = [block for ask in (beside if owner.run.waits else failed) for block in ask.blocks]
        owner.store_waits()
        limits = [*map(leaving.ends_at, blocks), self.interrupts.bound]
        due = min((limit for limit in limits if limit is not None), default=None)
        seconds = None if due is None else max(0.0, (due - stepper.mailbox.now).total_seconds())
        if not any(map(leaving.hears_mail, blocks)):
            return self._take_landing(seconds)
        with stepper.tools.inbox_watch.over(owner.run_id, owner.read_to, self._landings.arrived):
            return self._take_landing(seconds)

    def _take_landing(self, seconds: float | None) -> Ask | None:
        ask = self._landings.take(seconds)
        return None if ask is None else self._land([ask])[0]

    def _land(self, asks: list[Ask]) -> list[Ask]:
        self._flying.difference_update(asks)
        self._hearing.land(asks)
        return asks

    def land_all(self) -> list[Block]:
        """Wait until no branch is at work any more; returns all that blocks them."""
        while self._flying:
            if (landed := self._take_landing(None)) is not None:
                self._landed.append(landed)
        return list({id(b): b for ask in (*self._landed, *self.pending.values()) for b in ask.blocks}.values())

    def _perform(self, ask: Ask, land: Callable[[Entry], None] | None, perform: Performs) -> None:
        standing, ask.looked_at = self._stepper.standing, self._stepper.mailbox.arrivals
        if standing.turns_back and not (ask.undoable and standing.is_unseen(ask.path)):
            ask.blocks = [NotBegun()]
            return
        try:
            standing.begun.check(ask.path, ask.kind, ask.name)
            ask.entry = perform(land)
            ask.blocks = ()
        except Leave as leave:
            ask.blocks = leave.blocks
        except NewMail:
            ask.blocks = [HasMail()]
        except (Fenced, StoreError) as error:
            ask.blocks = [WriteFailed(error)]
        except (ReplayDiverged, CodecError, LimitExceeded) as error:
            ask.blocks = [self._parking(error)]
        except BaseException as error:
            # Ctrl-C, or a defect of aft: the flow's code must not go on as if this were the activity's failure.
            ask.blocks = [WriteFailed(error)]
