"""The way that one pass over a flow's code has taken: what it asked for, and which exceptions it has heard of.

A replay takes the whole way again, so a single pass knows all of it. For the flow's own thread.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from aft.flows.closing import Met, go_through
from aft.flows.flow_loop import FlowLoop, FlowTask, MainTask, StepFuture
from aft.flows.rebuild import fault_of
from aft.ids import StepPath


class How(Enum):
    """What an exception had to do with a step or a savepoint."""

    RAISED = auto()  #: the step failed with it
    LEFT = auto()  #: the savepoint was left with it
    HANDLED = auto()  #: the code asked for the step while it handled the exception
    ENDED = auto()  #: the task with that branch ended with it, or the flow


@dataclass(frozen=True, slots=True)
class Heard:
    """An exception that the code has met at the step, the savepoint or the end of the branch at ``path``."""

    error: BaseException
    path: StepPath
    #: How much the code had asked for and met before.
    moment: int
    how: How


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an exception came from: what the code has heard of it, and every exception on the way."""

    heard: list[Heard]
    errors: list[BaseException]


class Course:
    """The course of one pass."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        #: The loop of an async flow.
        self._loop: FlowLoop | None = None
        self._moment = 0
        #: The step whose outcome was handed to the tasks last; they go on until each awaits something.
        self._handed_out: StepPath | None = None
        #: For each step, the one whose outcome led a task to ask for it.
        self._led_by: dict[StepPath, StepPath | None] = {}
        #: Every exception that it has met, and those behind them, each time as it was then.
        self._met: list[Met] = []
        #: When each step was asked for, and whether by a task that had been cancelled.
        self._asked: dict[StepPath, tuple[int, bool]] = {}
        #: Steps whose outcomes were handed to tasks.
        self._outcomes: set[StepPath] = set()
        #: Steps whose tasks were cancelled meanwhile.
        self._dropped: set[StepPath] = set()
        #: Which task has looked at what came of another, and when: ``(moment, task, other)``.
        self._looks: list[tuple[int, str, str]] = []
        #: When each task was cancelled first, and by which; None: by a task group in which another one had failed.
        self._cancelled: dict[str, tuple[int, str | None]] = {}

    # Keeping up ---------------------------------------------------------------------------------------------------

    def watch(self, loop: FlowLoop) -> None:
        """Follow the tasks of an async flow."""
        self._loop = loop
        loop.failed = lambda branch, error: self._meet(error, StepPath(branch), How.ENDED)
        loop.cancels = self._note_cancel
        loop.looks = self._note_look

    def ask(self, path: StepPath) -> tuple[str, bool]:
        """Note that the code asks for a step, or begins a task.

        Returns the branch of the task that does, "" for the flow itself, and whether the task closes a generator.
        """
        task = self._current_task()
        if (handled := sys.exception()) is not None:
            self._meet(handled, path, How.HANDLED)
        self._moment += 1
        self._asked[path] = self._moment, task is not None and task.cancelling() > 0
        self._led_by[path] = self._handed_out
        return (task.branch, task.closes) if isinstance(task, FlowTask) else ("", False)

    def _current_task(self) -> MainTask | None:
        """The task whose code runs now; None: asyncio's own does, or the flow is not async."""
        task = None if self._loop is None else asyncio.current_task(self._loop)
        return task if isinstance(task, MainTask) else None

    def hand_out(self, path: StepPath) -> None:
        """Note that a task is handed the outcome of a step, which leads to all that tasks do until the next one."""
        self._handed_out = path
        self._outcomes.add(path)

    def _note_cancel(self, branch: str) -> None:
        """Note that a task is cancelled: by another one, or by a task group in which one has failed."""
        task = self._current_task()
        by = None if task is None else task.branch
        if by is not None and (handled := sys.exception()) is not None:
            self._meet(handled, StepPath(f"{by}.cancels" if by else "cancels"), How.HANDLED)
        self._moment += 1
        self._cancelled.setdefault(branch, (self._moment, by))

    def drop(self, path: StepPath) -> None:
        """Note that a step has come to its end for nobody: the task that awaited it was cancelled."""
        self._dropped.add(path)

    def _note_look(self, branch: str) -> None:
        """Note that a task looks at what came of another one.

        Where asyncio's code does, for ``gather`` or a task group, it is for a task that waits for something of asyncio.
        """
        if (task := self._current_task()) is not None:
            lookers = [task.branch]
        else:
            above = [one for one in (self._loop and self._loop.main, *self._tasks_of(StepPath(branch))) if one]
            lookers = [one.branch for one in above if not isinstance(getattr(one, "_fut_waiter", None), StepFuture)]
        self._moment += 1
        self._looks += [(self._moment, looker, branch) for looker in lookers]

    def hear(self, error: BaseException, path: StepPath) -> None:
        """Note that the code hears of the failure of a step."""
        self._meet(error, path, How.RAISED)

    def leave(self, error: BaseException, path: StepPath) -> None:
        """Note that the code leaves a savepoint with an exception."""
        self._meet(error, path, How.LEFT)

    def _meet(self, error: BaseException, path: StepPath, how: How) -> None:
        self._moment += 1
        self.heard.append(Heard(error, path, self._moment, how))
        self._met += map(Met.now, go_through(error))

    def forget(self) -> None:
        """Let go of all exceptions that the code has met, and with them of what their frames hold."""
        self._met.clear()
        self.heard.clear()

    # Asking -------------------------------------------------------------------------------------------------------

    def tell_met(self) -> list[Met]:
        """Tell all exceptions that the code has met, with the frames that they had gone through then."""
        return self._met

    def trace(self, error: BaseException) -> Origin:
        """Tell where an exception came from: along its causes until one is the failure of a step."""
        heard: list[Heard] = []
        errors: list[BaseException] = []
        left = [error]
        while left:
            one = left.pop()
            if any(one is other for other in errors):
                continue
            errors.append(one)
            found = [each for each in self.heard if _is_same(each.error, one)]
            heard += found
            if issubclass(type(one), BaseExceptionGroup):  # its __class__ may be anything
                left += cast(BaseExceptionGroup[BaseException], one).exceptions
            before = one.__context__ if one.__cause__ is None else one.__cause__  # its __bool__ may raise
            if before is not None and all(each.how is not How.RAISED for each in found):
                left.append(before)
        return Origin(heard, errors)

    def trace_tasks(self) -> Iterator[Heard]:
        """Yield where the exceptions came from with which tasks have ended."""
        for error in self._find_ended():
            yield from self.trace(error).heard

    def trace_handled(self) -> Iterator[Heard]:
        """Yield where the exceptions came from that tasks were handling at their last step."""
        for error in self._find_handled():
            yield from self.trace(error).heard

    def find_met(self, mistakes: Sequence[BaseException]) -> dict[str, int]:
        """Tell when each task, by its branch, first asked for something while it handled one of these exceptions.

        A task that ended with one has met it, too; the flow itself has no branch.
        """
        met: dict[str, int] = {}
        same = _Same(mistakes)
        for each in self.heard:
            if each.how in (How.HANDLED, How.ENDED) and any(map(same.has, go_through(each.error))):
                task = each.path if each.how is How.ENDED else self._tasks(each.path)[-1]
                met.setdefault(task, each.moment)
        return met

    def comes_after(self, path: StepPath, met: dict[str, int]) -> bool:
        """Tell whether the code came to a step, or left a savepoint, because of what a task had met.

        So it is if its own task had met it, or was cancelled for it; or if that is why its task was begun.
        """
        tasks = self._tasks(path)
        return any(
            moment >= met.get(task, math.inf) or (cancelled and self._was_cancelled_for(task, met))
            for task, act in zip(tasks, (*tasks[1:], path), strict=True)
            for moment, cancelled in [self._find_act(StepPath(act))]
        )

    def _was_cancelled_for(self, task: str, met: dict[str, int], seen: tuple[str, ...] = ()) -> bool:
        """Tell whether a task was cancelled because of what a task had met."""
        moment, by = self._cancelled.get(task, (-1, None))
        if by is None:
            return moment > min(met.values())
        if moment >= met.get(by, math.inf):
            return True
        return by not in seen and self._was_cancelled_for(by, met, (*seen, task))

    def _find_act(self, path: StepPath) -> tuple[int, bool]:
        """When the code asked for a step, began a task or left a savepoint, and whether as one that was cancelled."""
        left = [each for each in self.heard if each.how is How.LEFT and each.path == path]
        if left:
            return left[-1].moment, issubclass(type(left[-1].error), asyncio.CancelledError)
        return self._asked.get(path, (-1, False))

    def was_dropped_for(self, path: StepPath, met: dict[str, int]) -> bool:
        """Tell whether a step came to its end for nobody because of what a task had met."""
        return path in self._dropped and self._was_cancelled_for(self._tasks(path)[-1], met)

    def was_asked(self, path: StepPath) -> bool:
        """Tell whether the code has asked for a step."""
        return path in self._asked

    def was_asked_by(self, path: StepPath, moment: int) -> bool:
        """Tell whether the code had asked for a step when it heard of something."""
        return path in self._asked and self._asked[path][0] < moment

    def follows(self, path: StepPath, failed: Container[StepPath], knows: dict[str, int]) -> bool:
        """Tell whether a step, or a savepoint, may be there because steps have failed.

        ``knows``: since when each task knows of that.
        So it is if its task knew of the failure by then, or was cancelled; or came to the step because the failed one
        let it, as with a semaphore; or tidies up at the flow's end.
        """
        if any(task.is_last for task in self._tasks_of(path)) or self._was_led_by(path, failed):
            return True
        return self.comes_after(path, knows)

    def find_unheard(self) -> list[BaseException]:
        """Find what tasks have ended with, or were handling at their last step: the flow may have heard of one only."""
        return [*self._find_ended(), *self._find_handled()]

    def _find_ended(self) -> list[BaseException]:
        return [each.error for each in self.heard if each.how is How.ENDED]

    def _find_handled(self) -> list[BaseException]:
        """What tasks were handling when they asked for their last step, of which they have heard nothing.

        A task that has heard of it may have overcome what it was handling.
        """
        last = {self._tasks(path)[-1]: path for path in self._asked}
        heard = self._outcomes - self._dropped
        under_way = {path for task, path in last.items() if task and path not in heard}
        return [each.error for each in self.heard if each.how is How.HANDLED and each.path in under_way]

    def find_knowing(self, failures: Sequence[Heard], met: dict[str, int]) -> dict[str, int]:
        """Tell since when each task, by its branch, knows of one of these failures; ``met``: who met the exception.

        So does the task in which it was raised, one that met the exception or was cancelled by a task group since, and
        one that looked at what came of a task that knew.
        """
        knows = dict(met)
        for failure in failures:
            own = failure.path if failure.how is How.ENDED else self._tasks(failure.path)[-1]
            knows[own] = min(failure.moment, knows.get(own, failure.moment))
        first = min(failure.moment for failure in failures)
        for task, (moment, by) in self._cancelled.items():
            if by is None and moment > first:
                knows[task] = min(moment, knows.get(task, moment))
        before: dict[str, int] = {}
        while before != knows:
            before = dict(knows)
            for moment, task, other in self._looks:
                since = max(moment, knows.get(other, math.inf))
                if since < knows.get(task, math.inf):
                    knows[task] = int(since)
        return knows

    def _was_led_by(self, path: StepPath | None, failed: Container[StepPath]) -> bool:
        """Tell whether the failure of a step has led to another one, or to one whose outcome has."""
        while path is not None:
            path = self._led_by.get(path)
            if path in failed:
                return True
        return False

    def _tasks(self, path: StepPath) -> list[str]:
        """The tasks that a step is in, by their branches: first the flow itself."""
        return ["", *sorted(self._branches(path), key=len)]

    def _branches(self, path: StepPath) -> list[str]:
        return [task.branch for task in self._tasks_of(path)]

    def _tasks_of(self, path: StepPath) -> list[FlowTask]:
        tasks = () if self._loop is None else self._loop.tasks
        return [task for task in tasks if path.startswith(f"{task.branch}.")]


class _Same:
    """Exceptions that are one of these, or tell of the same fault as one."""

    def __init__(self, errors: Iterable[BaseException]) -> None:
        self._errors = list(errors)  # kept alive: their ids are theirs as long
        self._ids = set(map(id, self._errors))
        self._faults = {fault.id for error in self._errors if (fault := fault_of(error)) is not None}

    def has(self, error: BaseException) -> bool:
        return id(error) in self._ids or ((fault := fault_of(error)) is not None and fault.id in self._faults)


def _is_same(error: BaseException, other: BaseException) -> bool:
    """Whether two exceptions are one, or tell of the same fault."""
    if error is other:
        return True
    fault, another = fault_of(error), fault_of(other)
    return fault is not None and another is not None and fault.id == another.id
