"""Early ends of one pass over a flow's code: the run leaves, parks, or continues as new, whatever the code does.

The code may swallow what is raised through it. Each call of a step therefore raises it again, and the end of the pass
uses what was decided here, not what the code has returned or raised. For the flow's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

from aft.fault import FaultKind, FaultState
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.replay.continue_as_new import NextGeneration
from aft.flows.runtime.forks import ForkGuard
from aft.flows.runtime.generators import is_closing
from aft.flows.session.blocks import Block, Blocked, ParkNeeded, explain_blocked
from aft.flows.steps.run_session import RunSession

T = TypeVar("T")


class PassExit:
    """The ``Blocked`` of one pass, if it has one, and the checks that enforce it in the flow's code."""

    def __init__(self, session: RunSession, flow: str) -> None:
        self._session = session
        self._flow = flow
        self.home = ForkGuard()
        self.given: Blocked | None = None
        self.renewal = NextGeneration()

    def leave(self, error: BaseException) -> NoReturn:
        """Raise the Blocked that an exception of the engine means, where the flow's code has called.

        In a generator that is being closed it raises GeneratorExit.
        """
        self.given = leave = explain_blocked(error, self.make_parking)
        if is_closing():
            leave.__context__ = None
            raise GeneratorExit
        if leave is error:
            raise leave
        raise leave from error

    def leave_for_mistake(self, error: BaseException) -> None:
        """Prepare to park if the code ended by a programming error: generators closed after that execute no step."""
        if self.given is None and failures.must_park(error):
            self.given = Blocked(self.make_parking(failures.explain_exit(error)))

    def park(self, error: BaseException) -> NoReturn:
        """Park the run, because its code cannot go on; always raises Blocked."""
        self.given = Blocked(self.make_parking(error))
        raise self.given

    def make_parking(self, error: BaseException) -> ParkNeeded:
        """Return the block of a run that is parked for this error, with its fault."""
        owner, deps = self._session.owner, self._session.deps
        place = FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, self._flow)
        fault = failures.make_fault(error, place, Policy(), deps.ladder, deps.clock.now(), state=FaultState.PARKED)
        reason = f"{fault.short_type}: {fault.message}" if fault.message else fault.short_type
        return ParkNeeded(reason, fault, mistake=error)

    def add(self, blocks: Iterable[Block]) -> None:
        """Add the blocks of other branches to the pass's Blocked, if it has one."""
        if self.given is not None:
            known = {id(block) for block in self.given.blocks}
            self.given.blocks = [*self.given.blocks, *(block for block in blocks if id(block) not in known)]

    def check(self) -> None:
        """Raise Blocked if the run is leaving, whatever the flow's code has done with that exception."""
        self.home.check()
        if self.given is not None:
            raise self.given

    def check_call(self) -> None:
        """Refuse a step if the code has swallowed Blocked or ContinueAsNew, by raising it again."""
        self.home.check()
        if self.given is not None:
            self.leave(self.given)
        self.renewal.check_swallowed()

    def guard(self, engine: Callable[[], T]) -> T:
        """Call the engine; any exception of its own makes the run leave."""
        try:
            return engine()
        except BaseException as error:
            self.leave(error)
