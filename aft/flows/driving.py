"""Driving an async flow: its tasks go on until all await something, then the next outcome is handed out.

One thread, the flow's own. What the tasks do between two outcomes follows from the outcomes alone, so a replay that
hands them out in the same order sees the tasks take the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from aft.errors import ActivityFailed, is_a, text_of
from aft.flows import failures
from aft.flows.asks import Ask, Raises, Returns
from aft.flows.flow_loop import FlowLoop, foreign_awaitable
from aft.flows.leaving import Anew, Leave
from aft.flows.settling import Settler
from aft.ids import StepPath


class Driver:
    """Drives one pass over an async flow."""

    def __init__(
        self,
        loop: FlowLoop,
        main: asyncio.Task[Any],
        settler: Settler,
        outcome: Callable[[Ask], Returns | Raises],
        told: Callable[[StepPath], None],
    ) -> None:
        """``told`` hears of each step whose outcome is about to be handed out."""
        self._loop = loop
        self._main = main
        self._settler = settler
        self._outcome = outcome
        self._told = told

    def drive(self, check_leaving: Callable[[], None], park: Callable[[BaseException], NoReturn]) -> Any:
        """Run the flow to its end and return its result; raises Leave, or what it raised."""
        self._loop.run_ready()
        while not self._main.done():
            check_leaving()
            if (ask := self._settler.next()) is None:
                park(foreign_awaitable("what aft knows nothing of"))
            self._hand_out(ask)
            self._loop.run_ready()
        check_leaving()
        if (mistake := self._find_mistake()) is not None:
            park(mistake)
        self._end_tasks(check_leaving)
        result = self._result()
        self._raise_unheard()
        return result

    def _find_mistake(self) -> Exception | None:
        """What the flow's code did wrong: then its branches are left as they are, and go on after the fix."""
        try:
            self._result()
        except Exception as error:
            return error if failures.must_park(error) else None
        except BaseException:
            return None  # it was cancelled, or begins anew
        return None

    def _raise_unheard(self) -> None:
        """Raise what a generator raised when it was closed, after it had been left: nobody could await that."""
        for task in self._loop.tasks:
            if task.closes and task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _hand_out(self, ask: Ask) -> None:
        self._told(ask.path)
        try:
            outcome = self._outcome(ask)
        finally:
            ask.release()
        if ask.future is None or ask.future.done():
            return  # nobody waits for it any more
        if isinstance(outcome, Raises):
            ask.future.set_exception(_awaitable(outcome.error))
        else:
            ask.future.set_result(outcome.value)

    def _end_tasks(self, check_leaving: Callable[[], None]) -> None:
        """The flow has come to its end: what it began beside is cancelled, and comes to its own.

        If the flow has returned, steps that have effects come to their end, with their ladders and children. So do, in
        any case, all steps by which a task tidies up, or a generator that was left open.
        """
        self._settler.interrupts.abandon(self._settler.pending.values())
        self._settler.is_ending = self._has_returned()
        for task in self._loop.tasks:
            if not task.closes:
                task.cancel()
        while True:
            self._loop.run_ready()
            check_leaving()
            self._settler.drop(ask for ask in self._settler.pending.values() if not ask.needed and ask.is_dropped)
            if not self._settler.pending:
                if self._loop.close_generators():
                    continue
                return
            if (ask := self._settler.next()) is not None:
                self._hand_out(ask)

    def _has_returned(self) -> bool:
        """Whether the flow has not failed; one that begins anew has not."""
        error = None if self._main.cancelled() else self._main.exception()
        return not self._main.cancelled() and (error is None or is_a(error, Anew))

    def _result(self) -> Any:
        """What the flow returned or raised; asyncio's own refusals are told in aft's words."""
        try:
            return self._main.result()
        except RuntimeError as error:
            text = text_of(error)
            if failures.fault_of(error) is None and ("got bad yield" in text or "attached to a different loop" in text):
                raise foreign_awaitable(text) from error
            raise

    def close(self, leaving: Leave | None) -> None:
        """Let every task see that the run leaves, here, where its code still counts as the flow's."""
        for ask in self._settler.pending.values():
            ask.release()
            if leaving is not None and ask.future is not None and not ask.future.done():
                ask.future.set_exception(leaving)
        for task in (self._main, *self._loop.tasks):
            if not task.done():
                task.cancel()
        self._loop.run_ready()
        for task in (self._main, *self._loop.tasks):
            if task.done() and not task.cancelled():
                task.exception()  # looked at: asyncio would complain otherwise


def _awaitable(error: BaseException) -> BaseException:
    """Return what an await may raise for a failure: a coroutine cannot be given a StopIteration."""
    if not is_a(error, StopIteration):
        return error
    fault = failures.fault_of(error)
    assert fault is not None
    return ActivityFailed(f"{fault.name!r} failed with {type(error).__name__}, which no coroutine can raise", fault)
