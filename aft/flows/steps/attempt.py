"""Tries a step: calls its function with its immediate retries, time limit and transaction, and records the value.

If an earlier call may have had its effect, the probe is called first; a result that it finds is the outcome, and the
function is not called. A probe that raises fails the attempt as the function itself would: nothing is executed blindly.

The outcome is recorded, or :class:`Raised` with the exception of the user's code. Everything else that is raised here
is the engine's own: ``Fenced`` (the run has another owner), ``StoreError`` (the database is unreachable, the outcome
unknown), ``CodecError`` (the value cannot be stored; a transactional attempt was rolled back then), ``RuleObjected``
(the rules ended the attempt) and ``Blocked``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection
from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)

from aft import durations
from aft.compensation.registry import UNKNOWN
from aft.errors import Recoverable, StoreError, is_a, is_interrupt
from aft.flows.course.flow_loop import running_on
from aft.flows.declare import context
from aft.flows.declare.context import ActivitySession, AttemptContext, Current
from aft.flows.declare.probe import ProbeCall
from aft.flows.exceptions.failures import may_retry_at_once
from aft.flows.runtime.event_loop import LoopEnded
from aft.flows.runtime.rule_watch import AttemptWatch
from aft.flows.runtime.timed_call import NoThread, OnLate, TimedCall
from aft.flows.session.blocks import CONTROL_FLOW, Blocked, ReleaseNeeded
from aft.flows.steps.step import Raised, RuleObjected, Step
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import RuleChoice
from aft.runs.ownership.owner import Fenced, LeaseOver, Owner
from aft.store.checkout import WorkLost

#: How often in a row a transaction may be lost before its activity counts as failed; the seconds before the second
#: try, and the factor of each further wait.
MOST_LOST, PAUSE, LONGER = 5, 0.05, 4


class TransactionLost(Exception):
    """Raised when a transaction was lost, which leaves nothing behind; its cause says why."""


@dataclass(slots=True)
class FunctionCall:
    """A function of the user's and its arguments: a step's own, or a probe. ``late`` gets what it returns too late."""

    what: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    timeout: timedelta | None
    late: OnLate


def perform(step: Step) -> None:
    """Try until the function returns or its immediate retries are spent; returns when the value is recorded."""
    for again, attempt in enumerate(_attempts(step)):
        with attempt:
            if again:
                step.begin_again()
            if step.policy.transactional:
                _try_in_transaction(step, again)
            elif not _record_probed(step, current := _begin(step, again), again):
                value = _call(step, _function(step, current), AttemptContext(current))
                _record(step, value)


def _record(step: Step, value: Any) -> None:
    def keep_late() -> None:
        # It may be unrecorded: then the run's next owner does not know of it.
        step.keep_late(value, refused=True)

    try:
        recording = step.record(value)
        if step.may_hold(recording):
            step.hold(recording, keep_late)
        else:
            step.owner.write(recording, step.recorded)
    except (Fenced, StoreError):
        keep_late()
        raise


#: One attempt, without immediate retries.
_ONCE: tuple[AbstractContextManager[Any]] = (nullcontext(),)


def _attempts(step: Step) -> Iterable[AbstractContextManager[Any]]:
    """Yield a block for each attempt; the failure of the last one is raised."""
    if not step.immediate:
        return _ONCE
    deps = step.session.deps

    def may_retry(error: BaseException) -> bool:
        # With too many abandoned attempts, no more are begun here: further tries are left to the ladder.
        return (
            isinstance(error, Raised)
            and not deps.abandoned.is_full
            and may_retry_at_once(error.error, step.policy, deps.clock.now())
        )

    return Retrying(stop=stop_after_attempt(step.immediate + 1), retry=retry_if_exception(may_retry), reraise=True)


def _begin(step: Step, again: int) -> Current:
    _check_lease(step.owner)
    return step.current(again)


def _record_probed(step: Step, current: Current, again: int) -> bool:
    """Record the result that the probe finds; return whether it found one, so that nothing is left to do."""
    found = _run_probe(step, step.probe, current) if step.may_have_had_effect or again else UNKNOWN
    if found is UNKNOWN:
        return False
    # If this write is refused, it is no late effect: the run's new owner can probe for it, too.
    step.owner.write(step.record(found), step.recorded)
    return True


def _run_probe(step: Step, probe: ProbeCall | None, current: Current) -> Any:
    """Return what a probe finds, or UNKNOWN."""
    if probe is None:
        return UNKNOWN
    function = FunctionCall(probe.what, probe.fn, (), probe.kwargs, probe.timeout, ignore_late_value)
    found = probe.read(_call(step, function, AttemptContext(replace(current, key=probe.key))))
    _check_lease(step.owner)  # a probe may take its time
    return found


def _function(step: Step, current: Current) -> FunctionCall:
    """Return the step's function with its arguments; a compensator gets the result that its activity's probe finds."""
    kwargs = step.kwargs
    if step.result_probe is not None:
        kwargs = {**kwargs, "result": _run_probe(step, step.result_probe, current)}
    return FunctionCall(step.what, step.fn, step.args, kwargs, step.policy.timeout, step.keep_late)


# In a transaction ---------------------------------------------------------------------------------------------------


def _try_in_transaction(step: Step, again: int) -> None:
    """Try once; a lost transaction leaves nothing and is repeated, as the same attempt.

    A database outage is no failure of the activity. If its transaction is lost MOST_LOST times in a row, or takes
    longer than a lease, the activity itself may be the reason: then it has failed.
    """
    tries = Retrying(
        retry=retry_if_exception_type(TransactionLost),
        stop=stop_after_attempt(MOST_LOST) | stop_after_delay(step.owner.lease.seconds),
        wait=wait_exponential(multiplier=PAUSE, exp_base=LONGER),
    )
    try:
        for attempt in tries:
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    step.session.release_or_read_inbox()
                    step.begin_again()
                current = _begin(step, again)
                if not _record_probed(step, current, again):
                    _commit_with_effect(step, current)
    except RetryError as error:
        _check_lease(step.owner)
        last = error.last_attempt
        raise Raised(_failure(last.exception(), last.attempt_number)) from last.exception()


def _commit_with_effect(step: Step, current: Current) -> None:
    """Commit effect and outcome together: the function works on the connection that the outcome is written on.

    Ownership is checked last: a stale owner rolls its effect back with everything else. Other branches of the run
    write before this transaction begins or after it ends: a branch that waited for it inside its own write would
    block it for ever.
    """
    owner, recorded, function = step.owner, False, _function(step, current)
    owner.write_held()
    with owner.lock:
        try:
            with owner.store.write() as connection:
                value = _work(step, function, AttemptContext(current, connection), connection)
                owner.write_in(connection, step.record(value))
                recorded = True
        except StoreError as error:
            if not owner.resolve_unknown_commit():
                raise (TransactionLost() if error.transient else Raised(_refusal(error, recorded=recorded))) from error
        else:
            owner.seq += 1
        step.recorded()


def _work(step: Step, function: FunctionCall, ours: AttemptContext, connection: Connection) -> Any:
    """Call the function in the transaction; if the connection was lost, its outcome is void."""
    try:
        with step.owner.store.lend(connection) as lent:
            try:
                value = _call(step, function, ours)
            finally:
                lent.reclaim()
            lent.reset_settings()
            if ours.session is not None:
                _release(ours.session)
    except WorkLost as lost:
        raise Raised(lost.error) from lost.error
    return value


# Calling ------------------------------------------------------------------------------------------------------------


def _call(step: Step, function: FunctionCall, ours: AttemptContext) -> Any:
    """Call a function; anything it raises is its failure, except Ctrl-C in the main thread."""
    clock = step.session.deps.clock
    timeout, began = function.timeout, clock.ticks()
    try:
        with context.in_attempt(ours), running_on(None), step.session.home:
            if timeout is None and step.watch is None and not _is_async(function.fn):
                return function.fn(*function.args, **function.kwargs)
            return _call_in_time(step, function, ours.current)
    except RuleObjected:
        raise
    except (LoopEnded, NoThread) as error:
        # Not its failure. It may have begun: the next owner treats its outcome as unknown.
        raise Blocked(
            ReleaseNeeded(f"{function.what} was not executed to its end: {error}", outcome_unknown=True)
        ) from None
    except CONTROL_FLOW as error:
        raise Raised(RuntimeError(f"{function.what} leaked control flow of aft")) from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        # Whether the function's own time limit was reached.
        over = timeout is not None and is_a(error, TimeoutError) and clock.ticks() - began >= timeout.total_seconds()
        raise Raised(error, RuleType.TIMEOUT if over else None) from error


def _call_in_time(step: Step, function: FunctionCall, current: Current) -> Any:
    """Wait up to its time limit for a function, on its own thread or on the loop, unless rules object before.

    On a time-out a coroutine is cancelled, and gets a short time to end. A function that does not return is given
    up: its thread goes on, and a value that it returns later is passed to ``late``.
    """
    deps, timeout = step.session.deps, function.timeout
    name = current.activity or function.what
    watched_call = deps.abandoned.watch(step.owner.run_id, step.path, name, current.attempt)
    bound = functools.partial(function.fn, *function.args, **function.kwargs)
    call = TimedCall(bound, function.what, function.late, watched_call, deps.loop, deps.abandoned)

    def object_to(decision: RuleChoice) -> None:
        call.outcomes.put((None, decision))

    watched = nullcontext() if step.watch is None else deps.rule_watch.over(AttemptWatch(step.watch, object_to))
    try:
        with watched:
            call.begin(is_async=_is_async(function.fn))
            outcome = call.wait(None if timeout is None else timeout.total_seconds())
    except BaseException:
        call.stop("interrupted")  # Ctrl-C
        raise
    if outcome is None:
        error: Any = TimeoutError(f"{function.what} did not return within {durations.format(timeout or timedelta(0))}")
        outcome = call.stop(str(error)) or (False, error)
        if type(outcome[1]) is asyncio.CancelledError:
            outcome = (False, error)
    returned, value = outcome
    if returned is None:
        if (ended := call.stop(value.why)) is not None and ended[0]:
            function.late(ended[1])
        raise RuleObjected(value)
    if returned:
        return value
    raise value


_is_async = functools.lru_cache(1_000)(inspect.iscoroutinefunction)  # asked before each call, and never changes


def ignore_late_value(value: Any, *, refused: bool = False) -> None:
    """Ignore the late value of a probe or a compensator: it leaves nothing to undo."""


def _check_lease(owner: Owner) -> None:
    if not owner.is_leased():
        raise LeaseOver(f"the lease of worker {owner.worker} is over; its runs are somebody else's")


def _refusal(error: StoreError, *, recorded: bool) -> BaseException:
    """Return the failure of an activity whose transaction the database refused.

    After the record only the COMMIT is left: it refuses constraints that the activity had deferred.
    """
    return error.__cause__ or error if recorded and error.refused else error


def _failure(lost: BaseException | None, times: int) -> Recoverable:
    """Return the recoverable failure of an activity whose transaction was lost."""
    often, cause = f", {times} times in a row" if times > 1 else "", None if lost is None else lost.__cause__
    error = Recoverable(f"{cause}; its transaction could not be committed{often}")
    error.__cause__ = cause
    return error


def _release(session: ActivitySession) -> None:
    """Release a session's savepoint into the transaction around it; raises what the database refuses."""
    try:
        session.leave()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise Raised(error) from error
