"""Drives an async flow: its tasks run until all await something, then the next outcome is delivered.

One thread, the flow's own. What the tasks do between two outcomes follows from the outcomes alone, so a replay that
delivers them in the same order makes the tasks do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aft.errors import ActivityFailed, is_a, text_of
from aft.flows.course.flow_loop import FlowLoop, foreign_awaitable
from aft.flows.exceptions import failures
from aft.flows.replay.exits import PassExit
from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.session.blocks import Blocked, ContinueAsNew
from aft.flows.steps.request import Raises, Returns, StepRequest
from aft.ids import StepPath


class Driver:
    """Drives one pass over an async flow."""

    def __init__(
        self,
        loop: FlowLoop,
        main: asyncio.Task[Any],
        scheduler: StepScheduler,
        outcome: Callable[[StepRequest], Returns | Raises],
        on_deliver: Callable[[StepPath], None],
        exit: PassExit,
    ) -> None:
        """``on_deliver`` is called with each step whose outcome is about to be delivered."""
        self._loop = loop
        self._main = main
        self._scheduler = scheduler
        self._outcome = outcome
        self._on_deliver = on_deliver
        self._exit = exit

    def drive(self) -> Any:
        """Run the flow to its end and return its result; raises Blocked, or the exception of the flow."""
        self._loop.run_ready()
        while not self._main.done():
            self._exit.check()
            if (step := self._next()) is None:
                self._exit.park(foreign_awaitable("what aft knows nothing of"))
            self._deliver(step)
            self._loop.run_ready()
        self._exit.check()
        if (mistake := self._find_mistake()) is not None:
            self._exit.park(mistake)
        self._end_tasks()
        result = self._result()
        self._raise_unreported()
        return result

    def _find_mistake(self) -> Exception | None:
        """Return the programming error that ended the flow, or None; its branches stay as they are until the fix."""
        try:
            self._result()
        except Exception as error:
            return error if failures.must_park(error) else None
        except BaseException:
            return None  # it was cancelled, or continues as new
        return None

    def _raise_unreported(self) -> None:
        """Raise the exception of a generator that was closed after it had been left: no code could await it."""
        for task in self._loop.tasks:
            if (
                task.in_generator_close
                and task.done()
                and not task.cancelled()
                and (error := task.exception()) is not None
            ):
                raise error

    def _next(self) -> StepRequest | None:
        return self._exit.guard(self._scheduler.next)

    def _deliver(self, step: StepRequest) -> None:
        self._on_deliver(step.path)
        try:
            outcome = self._outcome(step)
        finally:
            step.deliver_cancellation()
        if step.future is None or step.future.done():
            return  # its task was cancelled
        if isinstance(outcome, Raises):
            step.future.set_exception(_awaitable(outcome.error))
        else:
            step.future.set_result(outcome.value)

    def _end_tasks(self) -> None:
        """Cancel the tasks that are left when the flow has ended, and wait for their end.

        If the flow has returned, steps that have effects are completed, with their ladders and children. So are, in any
        case, all steps of a task's cleanup, or of a generator that was left open.
        """
        self._scheduler.interrupts.end_cancelled(self._scheduler.pending.values())
        self._scheduler.is_ending = self._has_returned()
        for task in self._loop.tasks:
            if not task.in_generator_close:
                task.cancel()
        while True:
            self._loop.run_ready()
            self._exit.check()
            self._scheduler.drop(
                step for step in self._scheduler.pending.values() if not step.needed and step.is_dropped
            )
            if not self._scheduler.pending:
                if self._loop.close_generators():
                    continue
                return
            if (step := self._next()) is not None:
                self._deliver(step)

    def _has_returned(self) -> bool:
        """Whether the flow has returned or continues as new; False: it failed or was cancelled."""
        error = None if self._main.cancelled() else self._main.exception()
        return not self._main.cancelled() and (error is None or is_a(error, ContinueAsNew))

    def _result(self) -> Any:
        """Return or raise the flow's outcome; asyncio's own refusals become aft's error messages."""
        try:
            return self._main.result()
        except RuntimeError as error:
            text = text_of(error)
            if failures.fault_of(error) is None and ("got bad yield" in text or "attached to a different loop" in text):
                raise foreign_awaitable(text) from error
            raise

    def close(self, leaving: Blocked | None) -> None:
        """End every task when the pass ends, here, where its code still counts as the flow's."""
        for step in self._scheduler.pending.values():
            step.deliver_cancellation()
            if leaving is not None and step.future is not None and not step.future.done():
                step.future.set_exception(leaving)
        for task in (self._main, *self._loop.tasks):
            if not task.done():
                task.cancel()
        self._loop.run_ready()
        for task in (self._main, *self._loop.tasks):
            if task.done() and not task.cancelled():
                task.exception()  # retrieved: asyncio would log a warning otherwise


def _awaitable(error: BaseException) -> BaseException:
    """Return an exception that an await can raise for a failure: a coroutine cannot raise StopIteration."""
    if not is_a(error, StopIteration):
        return error
    fault = failures.fault_of(error)
    assert fault is not None
    return ActivityFailed(f"{fault.name!r} failed with {type(error).__name__}, which no coroutine can raise", fault)
