"""One step's attempt: call the function, with its immediate retries, its time limit and its transaction.

Where an earlier call may have had its effect, its probe is asked first; what that finds is the outcome, and nothing is
called. A probe that raises fails the attempt as the function itself would: nothing is executed blindly.

The outcome is a value, or :class:`Raised` with what the user's code raised. Everything else that leaves here is the
engine's own: ``Fenced`` (the run has another owner), ``StoreError`` (the database is away, the outcome unknown) and
``CodecError`` (the value cannot be stored; of a transactional attempt nothing remains then).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from aft import durations
from aft.clock import Clock
from aft.compensation.registry import UNKNOWN
from aft.errors import Recoverable, StoreError, is_a, is_interrupt
from aft.flows import context
from aft.flows.abandonment import AbandonedAttempts
from aft.flows.context import ActivitySession, AttemptContext, Current
from aft.flows.failures import passes
from aft.flows.flow_loop import running_on
from aft.flows.forks import Home
from aft.flows.leaving import CONTROL_FLOW, GivesBack, Leave
from aft.flows.loop import LoopEnded, LoopThread
from aft.flows.policy import Policy
from aft.flows.probe import ProbeCall
from aft.flows.timed_call import Late, NoThread, TimedCall
from aft.flows.vigil import AttemptWatch, Vigil
from aft.ids import StepPath
from aft.rules.asking import RuleChoice
from aft.rules.kinds import On
from aft.runs.owner import Fenced, LeaseOver, Owner, Then
from aft.store.lending import Spoilt

#: How often in a row a transaction may be lost before its activity is held to be the reason; the seconds before it is
#: made for the second time, and by how much longer each further wait is.
MOST_LOST, PAUSE, LONGER = 5, 0.05, 4
#: Positional and named arguments.
Given = tuple[tuple[Any, ...], dict[str, Any]]


class Raised(Exception):
    """Raised when the user's function raised; ``error`` is what."""

    def __init__(self, error: BaseException, on: On | None = None) -> None:
        super().__init__(type(error).__name__)
        self.error = error
        #: The type of exception that it is, where that is not just what was raised.
        self.on = on


class Objected(Exception):
    """Raised when the rules object to an attempt that is under way: it was given up."""

    def __init__(self, decision: RuleChoice) -> None:
        super().__init__(decision.why)
        self.decision = decision


class TransactionLost(Exception):
    """Raised when a transaction was lost, which leaves nothing of it behind; its cause says why."""


@dataclass(slots=True)
class Attempt:
    """A function to be called for a step, and what to do with its value.

    ``record`` encodes the value and returns what writes it in the owner's transaction; ``recorded`` is called when that
    has committed, before anything else is written. ``late`` is told a value that nobody waits for any more, or that may
    not be recorded: the function was given up, the run has another owner by now, or the database is away for too long.
    ``given`` gives the arguments as they were before the function was called with them: it may have changed them.

    ``probe`` is asked whether an earlier call had its effect: before the first one only if that is ``doubtful``, before
    each immediate retry always. ``result_probe`` is asked for the keyword ``result`` of a compensator whose activity
    nobody saw end.
    """

    owner: Owner
    path: StepPath
    what: str
    current: Current
    policy: Policy
    immediate: int
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    record: Callable[[Any], Then]
    late: Late
    given: Callable[[], Given]
    #: Leaves if the run is not to go on here; called where nothing of the step has happened.
    check_may_go_on: Callable[[], None]
    recorded: Callable[[], None] | None = None
    probe: ProbeCall | None = None
    doubtful: bool = False
    result_probe: ProbeCall | None = None
    #: What the rules are asked while it lasts; None: there are none.
    watch: Callable[[], RuleChoice | None] | None = None

    def afresh(self) -> Attempt:
        """Make the one that is tried next."""
        args, kwargs = self.given()
        return replace(self, args=args, kwargs=kwargs)


class Performer:
    """Performs attempts for one run."""

    def __init__(self, loop: LoopThread, clock: Clock, vigil: Vigil, abandoned: AbandonedAttempts) -> None:
        self._loop = loop
        self._clock = clock
        self._vigil = vigil
        self._abandoned = abandoned
        self._pause = threading.Event()
        self._home = Home()

    def perform(self, attempt: Attempt) -> None:
        """Call the function until it returns or its immediate retries are spent; its value is recorded on return."""
        for again in range(attempt.immediate):
            try:
                self._try(attempt, again)
                return
            except Raised as raised:
                # With too many that hang, no more are begun here: what is left to try is left to the ladder.
                if self._abandoned.is_full or not passes(raised.error, attempt.policy, self._clock.now()):
                    raise
            attempt = attempt.afresh()
        self._try(attempt, attempt.immediate)

    def _try(self, attempt: Attempt, again: int) -> None:
        """Try it; a transaction that is lost leaves nothing, and is made once more, as the same attempt.

        That the database went away is no failure of the activity's. If its transaction is lost again and again, or
        takes longer than a lease, what it does there may be the reason: then it has failed.
        """
        began, owner = self._clock.ticks(), attempt.owner
        for times in range(1, MOST_LOST + 1):
            try:
                self._once(attempt, again)
                return
            except TransactionLost as lost:
                _check_lease(owner)
                if times == MOST_LOST or self._clock.ticks() - began >= owner.lease.seconds:
                    raise Raised(_failure(lost, times)) from lost
            self._pause.wait(PAUSE * LONGER ** (times - 1))
            attempt.check_may_go_on()
            attempt = attempt.afresh()

    def _once(self, attempt: Attempt, again: int) -> None:
        _check_lease(attempt.owner)
        current = replace(attempt.current, attempt=attempt.current.attempt + again) if again else attempt.current
        if self._settle(attempt, current, doubtful=attempt.doubtful or again > 0):
            return
        informed = self._informed(attempt, current)
        (self._in_transaction if attempt.policy.transactional else self._outside)(informed, current)

    def _settle(self, attempt: Attempt, current: Current, *, doubtful: bool) -> bool:
        """Record what the probe finds, if there is one and it finds something; then nothing is left to be done."""
        found = self._ask(attempt, attempt.probe, current) if doubtful else UNKNOWN
        if found is UNKNOWN:
            return False
        # Refused, it is not late: what was found is no effect of ours, and the run's owner can find it, too.
        attempt.owner.write(attempt.record(found), attempt.recorded)
        return True

    def _informed(self, attempt: Attempt, current: Current) -> Attempt:
        """Let a compensator know what its activity's probe finds."""
        if attempt.result_probe is None:
            return attempt
        found = self._ask(attempt, attempt.result_probe, current)
        return replace(attempt, kwargs={**attempt.kwargs, "result": found})

    def _ask(self, attempt: Attempt, question: ProbeCall | None, current: Current) -> Any:
        if question is None:
            return UNKNOWN
        asked = replace(
            attempt,
            what=question.what,
            fn=question.fn,
            args=(),
            kwargs=question.kwargs,
            policy=replace(attempt.policy, timeout=question.timeout),
            late=forget,
        )
        found = question.read(self._call(asked, AttemptContext(replace(current, key=question.key))))
        _check_lease(attempt.owner)  # a probe may take its time
        return found

    def _outside(self, attempt: Attempt, current: Current) -> None:
        """Let the function have its effect, then record that."""
        value = self._call(attempt, AttemptContext(current))
        try:
            attempt.owner.write(attempt.record(value), attempt.recorded)
        except (Fenced, StoreError):
            # Nobody may have recorded it: then whoever goes on with the run does not know of it.
            attempt.late(value, refused=True)
            raise

    def _in_transaction(self, attempt: Attempt, current: Current) -> None:
        """Let effect and record commit together: the function works on the connection that the outcome is written on.

        The owner is checked last: a stale one rolls its effect back with everything else. Other branches of the run
        write before it begins or after it has ended: one that waited for this transaction inside its own write would
        keep it from being written for ever.
        """
        owner, recorded = attempt.owner, False
        with owner.lock:
            try:
                with owner.store.write() as connection:
                    value = self._work(attempt, AttemptContext(current, connection), connection)
                    owner.write_in(connection, attempt.record(value))
                    recorded = True
            except StoreError as error:
                if not owner.settle_unknown():
                    raise (
                        TransactionLost() if error.transient else Raised(_refusal(error, recorded=recorded))
                    ) from error
            else:
                owner.seq += 1
            if attempt.recorded is not None:
                attempt.recorded()

    def _work(self, attempt: Attempt, ours: AttemptContext, connection: Connection) -> Any:
        """Call the function in the transaction; whatever comes of it means nothing if the connection was lost."""
        try:
            with attempt.owner.store.at_work(connection) as lent:
                try:
                    value = self._call(attempt, ours)
                finally:
                    lent.take_back()
                lent.loosen()
                if ours.session is not None:
                    _release(ours.session)
        except Spoilt as spoilt:
            raise Raised(spoilt.error) from spoilt.error
        return value

    def _call(self, attempt: Attempt, ours: AttemptContext) -> Any:
        """Call the function; whatever it raises is its failure, but for Ctrl-C in the main thread."""
        timeout, began = attempt.policy.timeout, self._clock.ticks()
        try:
            with context.in_attempt(ours), running_on(None), self._home:
                if timeout is None and attempt.watch is None and not _is_async(attempt.fn):
                    return attempt.fn(*attempt.args, **attempt.kwargs)
                return self._call_in_time(attempt, None if timeout is None else timeout.total_seconds())
        except Objected:
            raise
        except (LoopEnded, NoThread) as error:
            # Not its failure. It may have begun: the next owner takes its outcome for unknown.
            raise Leave(GivesBack(f"{attempt.what} was not executed to its end: {error}", doubt=True)) from None
        except CONTROL_FLOW as error:
            raise Raised(RuntimeError(f"{attempt.what} leaked control flow of aft")) from error
        except BaseException as error:
            if is_interrupt(error):
                raise
            over = is_a(error, TimeoutError) and self._is_over(timeout, began)
            raise Raised(error, On.TIMEOUT if over else None) from error

    def _is_over(self, timeout: timedelta | None, began: float) -> bool:
        """Whether it is the activity's own time limit that was reached."""
        return timeout is not None and self._clock.ticks() - began >= timeout.total_seconds()

    def _call_in_time(self, attempt: Attempt, seconds: float | None) -> Any:
        """Wait so long for a function, on a thread of its own or on the loop, unless rules object to it before.

        A coroutine is cancelled then, and gets a moment to end. What does not return is given up: its thread goes on,
        nobody waits for it, and what it returns after all is told to ``late``.
        """
        name, number = attempt.current.activity or attempt.what, attempt.current.attempt
        watched_call = self._abandoned.watch(attempt.owner.run_id, attempt.path, name, number)
        function = functools.partial(attempt.fn, *attempt.args, **attempt.kwargs)
        call = TimedCall(function, attempt.what, attempt.late, watched_call, self._loop, self._abandoned)

        def object_to(decision: RuleChoice) -> None:
            call.outcomes.put((None, decision))

        watched = nullcontext() if attempt.watch is None else self._vigil.over(AttemptWatch(attempt.watch, object_to))
        try:
            with watched:
                call.begin(is_async=_is_async(attempt.fn))
                outcome = call.wait(seconds)
        except BaseException:
            call.stop("interrupted")  # Ctrl-C
            raise
        if outcome is None:
            limit = durations.spell(attempt.policy.timeout or timedelta(0))
            error: Any = TimeoutError(f"{attempt.what} did not return within {limit}")
            outcome = call.stop(str(error)) or (False, error)
            if type(outcome[1]) is asyncio.CancelledError:
                outcome = (False, error)
        returned, value = outcome
        if returned is None:
            if (ended := call.stop(value.why)) is not None and ended[0]:
                attempt.late(ended[1])
            raise Objected(value)
        if returned:
            return value
        raise value


_is_async = functools.lru_cache(1_000)(inspect.iscoroutinefunction)  # asked before each call, and never changes


def forget(value: Any, *, refused: bool = False) -> None:
    """What there is to keep of a probe that was given up, or of an undo: nothing that would have to be undone."""


def _check_lease(owner: Owner) -> None:
    if not owner.holds():
        raise LeaseOver(f"the lease of worker {owner.worker} is over; its runs are somebody else's")


def _refusal(error: StoreError, *, recorded: bool) -> BaseException:
    """What an activity has failed with whose transaction was refused.

    After the record only the COMMIT is left: what it refuses are constraints that the activity had deferred.
    """
    return error.__cause__ or error if recorded and error.refused else error


def _failure(lost: TransactionLost, times: int) -> Recoverable:
    """What an activity has failed with whose transaction was lost: a trouble of the database that may pass."""
    often = f", {times} times in a row" if times > 1 else ""
    error = Recoverable(f"{lost.__cause__}; its transaction could not be committed{often}")
    error.__cause__ = lost.__cause__
    return error


def _release(session: ActivitySession) -> None:
    """Let what a session did be a part of the transaction around its savepoint; what the database refuses is raised."""
    try:
        session.leave()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise Raised(error) from error
