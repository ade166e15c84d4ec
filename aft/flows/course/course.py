"""Records the course of one pass over a flow's code: the steps that it requested, and the exceptions that it met.

A replay repeats the whole course, so a single pass knows all of it. For the flow's own thread.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Container, Iterator, Sequence

from aft.flows.course.flow_loop import FlowLoop, FlowTask, MainTask, StepFuture
from aft.flows.course.origins import ExceptionRole, ExceptionSite, Origin, SameExceptions, trace_origin
from aft.flows.runtime.generators import CapturedException, iterate_chain
from aft.ids import StepPath


class Course:
    """The course of one pass."""

    def __init__(self) -> None:
        self.sites: list[ExceptionSite] = []
        #: The loop of an async flow.
        self._loop: FlowLoop | None = None
        self._moment = 0
        #: The step whose outcome was handed to the tasks last; they go on until each awaits something.
        self._handed_out: StepPath | None = None
        #: For each step, the one whose outcome led a task to request it.
        self._led_by: dict[StepPath, StepPath | None] = {}
        #: Every exception that it has met, and those behind them, each time as it was then.
        self._captured: list[CapturedException] = []
        #: When each step was requested.
        self._requested: dict[StepPath, int] = {}
        #: Steps whose outcomes were handed to tasks.
        self._outcomes: set[StepPath] = set()
        #: Steps whose tasks were cancelled meanwhile, and when that was seen.
        self._dropped: dict[StepPath, int] = {}
        #: Which task has read the outcome of another, and when: ``(moment, task, other)``.
        self._looks: list[tuple[int, str, str]] = []
        #: The task whose outcome asyncio has read last.
        self._looked_at = ""
        #: Which task was cancelled because of which other one, and when: ``(moment, task, other)``.
        self._cancelled: list[tuple[int, str, str]] = []

    # Keeping up ---------------------------------------------------------------------------------------------------

    def watch(self, loop: FlowLoop) -> None:
        """Follow the tasks of an async flow."""
        self._loop = loop
        loop.failed = lambda branch, error: self._note_exception(error, StepPath(branch), ExceptionRole.ENDED)
        loop.cancels = self._note_cancel
        loop.looks = self._note_look

    def note_request(self, path: StepPath) -> tuple[str, bool]:
        """Note that the code requests a step, or begins a task.

        Returns the branch of the current task, "" for the flow itself, and whether the task closes a generator.
        """
        task = self._current_task()
        if (handled := sys.exception()) is not None:
            self._note_exception(handled, path, ExceptionRole.HANDLED)
        self._moment += 1
        self._requested[path] = self._moment
        self._led_by[path] = self._handed_out
        return (task.branch, task.in_generator_close) if isinstance(task, FlowTask) else ("", False)

    def _current_task(self) -> MainTask | None:
        """Return the task whose code runs now; None: asyncio's own code runs, or the flow is not async."""
        task = None if self._loop is None else asyncio.current_task(self._loop)
        return task if isinstance(task, MainTask) else None

    def hand_out(self, path: StepPath) -> None:
        """Note that a task gets the outcome of a step, which leads to all that tasks do until the next one."""
        self._handed_out = path
        self._outcomes.add(path)

    def _note_cancel(self, branch: str) -> None:
        """Note that a task is cancelled: by another one, or by a task group in which another one has failed.

        A task group cancels its tasks, and the task that it is in, when it has read the outcome of one that failed.
        """
        task = self._current_task()
        by = self._looked_at if task is None else task.branch
        if task is not None and (handled := sys.exception()) is not None:
            self._note_exception(handled, StepPath(f"{by}.cancels" if by else "cancels"), ExceptionRole.HANDLED)
        self._moment += 1
        self._cancelled.append((self._moment, branch, by))

    def drop(self, path: StepPath) -> None:
        """Note that a step has ended after the task that awaited it was cancelled."""
        self._moment += 1
        self._dropped[path] = self._moment

    def _note_look(self, branch: str) -> None:
        """Note that a task reads the outcome of another one.

        If asyncio's own code does, for ``gather`` or a task group, it is for the tasks around it that await asyncio
        objects.
        """
        if (task := self._current_task()) is not None:
            lookers = [task.branch]
        else:
            self._looked_at = branch
            above = [one for one in (self._loop and self._loop.main, *self._tasks_of(StepPath(branch))) if one]
            lookers = [one.branch for one in above if not isinstance(getattr(one, "_fut_waiter", None), StepFuture)]
        self._moment += 1
        self._looks += [(self._moment, looker, branch) for looker in lookers]

    def note_failure(self, error: BaseException, path: StepPath) -> None:
        """Note that the code gets the failure of a step."""
        self._note_exception(error, path, ExceptionRole.RAISED)

    def leave(self, error: BaseException, path: StepPath) -> None:
        """Note that the code leaves a savepoint with an exception."""
        self._note_exception(error, path, ExceptionRole.LEFT)

    def _note_exception(self, error: BaseException, path: StepPath, how: ExceptionRole) -> None:
        self._moment += 1
        self.sites.append(ExceptionSite(error, path, self._moment, how))
        self._captured += map(CapturedException.now, iterate_chain(error))

    def clear(self) -> None:
        """Drop all exceptions that the code has met, and the objects that their frames keep alive."""
        self._captured.clear()
        self.sites.clear()

    # Asking -------------------------------------------------------------------------------------------------------

    def captured_exceptions(self) -> list[CapturedException]:
        """Return all exceptions that the code has met, each with its frames at that time."""
        return self._captured

    def trace(self, error: BaseException) -> Origin:
        """Return the origin of an exception: follows its causes until one is the failure of a step."""
        return trace_origin(self.sites, error)

    def trace_tasks(self) -> Iterator[ExceptionSite]:
        """Yield the origins of the exceptions with which tasks have ended."""
        for error in self._find_ended():
            yield from self.trace(error).sites

    def trace_handled(self) -> Iterator[ExceptionSite]:
        """Yield the origins of the exceptions that tasks were handling at their last step."""
        for error in self._find_handled():
            yield from self.trace(error).sites

    def find_met(self, mistakes: Sequence[BaseException]) -> dict[str, int]:
        """Return when each task, by its branch, first requested a step while it handled one of these exceptions.

        A task that ended with one has met it, too, and so has one that was cancelled because of a task that had met it.
        The flow itself has the branch "".
        """
        met: dict[str, int] = {}
        same = SameExceptions(mistakes)
        known = (ExceptionRole.HANDLED, ExceptionRole.ENDED)
        for each in self.sites:
            if each.how in known and any(map(same.has, iterate_chain(each.error))):
                task = each.path if each.how is ExceptionRole.ENDED else self._tasks(each.path)[-1]
                met.setdefault(task, each.moment)
        return _spread(met, self._cancelled)

    def comes_after(self, path: StepPath, met: dict[str, int]) -> bool:
        """Whether the code reached a step, or left a savepoint, because of an exception that a task had met.

        So it is if its own task had met it, or if that is why its task was begun.
        """
        tasks = self._tasks(path)
        return any(
            self._find_act(StepPath(act)) >= met.get(task, math.inf)
            for task, act in zip(tasks, (*tasks[1:], path), strict=True)
        )

    def _find_act(self, path: StepPath) -> int:
        """Return when the code requested a step, began a task or left a savepoint."""
        left = [each for each in self.sites if each.how is ExceptionRole.LEFT and each.path == path]
        return left[-1].moment if left else self._requested.get(path, -1)

    def was_dropped_for(self, path: StepPath, met: dict[str, int]) -> bool:
        """Whether a step's outcome was unused because its task was cancelled for an exception that a task had met."""
        if path in self._outcomes and path not in self._dropped:
            return False
        own, requested, dropped = (
            self._tasks(path)[-1],
            self._requested.get(path, -1),
            self._dropped.get(path, math.inf),
        )
        return any(
            task == own and requested < moment < dropped and moment >= met.get(by, math.inf)
            for moment, task, by in self._cancelled
        )

    def was_requested(self, path: StepPath) -> bool:
        """Whether the code has requested a step."""
        return path in self._requested

    def was_requested_by(self, path: StepPath, moment: int) -> bool:
        """Whether the code had requested a step before this moment."""
        return path in self._requested and self._requested[path] < moment

    def follows(self, path: StepPath, failed: Container[StepPath], knows: dict[str, int]) -> bool:
        """Whether a step, or a savepoint, may be a consequence of failed steps.

        ``knows``: since when each task knows of the failures. It is one if its task knew of the failure by then, or was
        cancelled; or reached the step because the failed one let it, as with a semaphore; or cleans up at the flow's
        end.
        """
        if any(task.is_last for task in self._tasks_of(path)) or self._was_led_by(path, failed):
            return True
        return self.comes_after(path, knows)

    def find_unreported(self) -> list[BaseException]:
        """Return exceptions that tasks ended with, or were handling at their last step; the flow may know only one."""
        return [*self._find_ended(), *self._find_handled()]

    def _find_ended(self) -> list[BaseException]:
        return [each.error for each in self.sites if each.how is ExceptionRole.ENDED]

    def _find_handled(self) -> list[BaseException]:
        """Return exceptions that tasks were handling when they requested their last step, if it gave no outcome yet.

        A task that has got the outcome may have recovered from what it was handling. One that was cancelled tidies up:
        that is no failure of its own (``_spread`` finds those that were cancelled because of one).
        """
        last = {self._tasks(path)[-1]: path for path in self._requested}
        handed_out = self._outcomes - self._dropped.keys()
        under_way = {path for task, path in last.items() if task and path not in handed_out}
        handled = [each for each in self.sites if each.how is ExceptionRole.HANDLED and each.path in under_way]
        return [each.error for each in handled if not issubclass(type(each.error), asyncio.CancelledError)]

    def find_knowing(self, failures: Sequence[ExceptionSite], met: dict[str, int]) -> dict[str, int]:
        """Return since when each task, by its branch, knows of one of these failures; ``met``: tasks that met it.

        A task knows if the failure was raised in it, if it met the exception, if it was cancelled because of a task
        that knew, or if it read the outcome of such a task.
        """
        knows = dict(met)
        for failure in failures:
            own = failure.path if failure.how is ExceptionRole.ENDED else self._tasks(failure.path)[-1]
            knows[own] = min(failure.moment, knows.get(own, failure.moment))
        while True:
            found = _spread(knows, self._cancelled)
            for moment, task, other in self._looks:
                since = max(moment, found.get(other, math.inf))
                if since < found.get(task, math.inf):
                    found[task] = int(since)
            if found == knows:
                return knows
            knows = found

    def _was_led_by(self, path: StepPath | None, failed: Container[StepPath]) -> bool:
        """Whether a failed step has led to this one, directly or through other outcomes."""
        while path is not None:
            path = self._led_by.get(path)
            if path in failed:
                return True
        return False

    def _tasks(self, path: StepPath) -> list[str]:
        """Return the branches of the tasks that a step is in, the flow itself ("") first."""
        return ["", *sorted(self._branches(path), key=len)]

    def _branches(self, path: StepPath) -> list[str]:
        return [task.branch for task in self._tasks_of(path)]

    def _tasks_of(self, path: StepPath) -> list[FlowTask]:
        tasks = () if self._loop is None else self._loop.tasks
        return [task for task in tasks if path.startswith(f"{task.branch}.")]


def _spread(since: dict[str, int], cancelled: Sequence[tuple[int, str, str]]) -> dict[str, int]:
    """Add tasks that were cancelled because of one that knew by then; ``since`` is when each came to know.

    Cancellations are processed in their order, so one that follows from another comes after it.
    """
    knows = dict(since)
    for moment, task, by in cancelled:
        if moment >= knows.get(by, math.inf):
            knows[task] = min(moment, knows.get(task, moment))
    return knows
