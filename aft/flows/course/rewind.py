"""Finds the steps that a retry executes again, after a failure past the pivot or a bug in the flow's code. Pure.

Past the pivot, the step that failed is executed again, and the flow may take another way from there. So everything that
the flow did after it got the failure is taken back: those steps are deleted from the journal, and what they owe is
undone before the run goes on. If the flow's own code failed, the retry goes back before the savepoints that were undone
for that, and before what the code did while it handled that. Steps of tasks that knew nothing of the failure did not
depend on it, and keep their outcomes (``Course.find_knowing``); those of them that failed, too, are executed again, and
so are those that ended only because their tasks were cancelled for it.

A bug in the flow's code lets no step fail. All that the code did while the bug's exception propagated, in ``finally``
or ``except`` blocks and in tasks that were cancelled for it, is taken back; what other tasks did meanwhile stays.

Steps before the pivot are never taken back, nor is the pivot: a failure that the code got before it went past the
pivot, and raised after that, stays.

A step that is executed again because it failed keeps its idempotency key, unless it lies in a savepoint that is
entered again. Paths of other deleted steps may mean other steps the next time, and get new keys.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import cast

from aft.flows.course.course import Course
from aft.flows.course.origins import ExceptionRole, ExceptionSite
from aft.flows.exceptions.failures import must_park
from aft.flows.session.blocks import DroppedStep
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome

#: Entries that the code does not request by step number: they stay.
_BESIDE = (EntryKind.PATCH, EntryKind.RULE)


def find_steps_to_redo(entries: Sequence[Entry], course: Course, error: BaseException) -> list[DroppedStep]:
    """Return the steps that a retry executes again, oldest first; ``error`` is the exception of the flow's code."""
    steps = {entry.path: entry for entry in entries if entry.kind not in _BESIDE}
    pivot = max((entry.seq for entry in steps.values() if entry.kind is EntryKind.PIVOT), default=0)
    origin = course.trace(error)
    met = course.find_met(origin.errors)

    def may_redo(failure: ExceptionSite) -> bool:
        known = failure.how is ExceptionRole.ENDED or failure.path in steps
        return known and not _is_held(steps, course, failure, met, pivot)

    sites = [each for each in origin.sites if may_redo(each)]
    if not sites:
        return []
    sites += [each for each in course.trace_handled() if may_redo(each)]
    first = min(sites, key=lambda each: each.moment)
    sites += [each for each in course.trace_tasks() if each.moment > first.moment and may_redo(each)]
    again = _find_again(steps, course, first, sites, pivot)
    failures = [
        first,
        *(each for each in course.sites if each.how is ExceptionRole.RAISED and each.path in again - {first.path}),
    ]
    knows = course.find_knowing(failures, met)
    again |= _find_ended_with_tasks(steps, course, knows, pivot)
    failed = {failure.path for failure in failures if failure.how is ExceptionRole.RAISED}
    dropped = {
        path
        for path, entry in steps.items()
        if entry.seq > pivot and path not in again and _follows(course, entry, first, failed, knows)
    }
    dropped |= {each.path for each in sites if each.how is ExceptionRole.LEFT}
    under = _find_under(steps, dropped, pivot)
    # A child that has ended is not begun again, another one takes its place; and a savepoint may take another way.
    same = {path for path in again - under if steps[path].kind is not EntryKind.CHILD}
    return [DroppedStep(entry, path in same) for path, entry in steps.items() if path in again | dropped | under]


def find_steps_to_redo_after_bug(
    load: Callable[[], Sequence[Entry]], course: Course, mistake: BaseException
) -> list[DroppedStep]:
    """Return the steps that a retry executes again once a bug in the flow's code is fixed, oldest first.

    These are the ones that the code reached while the exception propagated: the fixed code may not reach them. ``load``
    reads the journal; it is called only if there may be any.
    """
    mistakes = [found for error in (mistake, *course.find_unreported()) for found in _find_mistakes(error)]
    met = course.find_met(mistakes)
    if not met:
        return []
    steps = {entry.path: entry for entry in load() if entry.kind not in _BESIDE}
    pivot = max((entry.seq for entry in steps.values() if entry.kind is EntryKind.PIVOT), default=0)
    dropped = {path for path, entry in steps.items() if entry.seq > pivot and course.comes_after(path, met)}
    dropped |= _find_under(steps, dropped, pivot)
    again = {
        path for path in _find_ended_with_tasks(steps, course, met, pivot) if steps[path].kind is not EntryKind.CHILD
    }
    return [
        DroppedStep(entry, path in again - dropped)
        for path, entry in steps.items()
        if path in dropped | _find_ended_with_tasks(steps, course, met, pivot)
    ]


def _find_ended_with_tasks(
    steps: Mapping[StepPath, Entry], course: Course, met: dict[str, int], pivot: int
) -> set[StepPath]:
    """Return the steps that ended only because their tasks were cancelled for an exception of another task."""
    failed = [path for path, entry in steps.items() if entry.outcome is Outcome.FAILED and entry.seq > pivot]
    return {path for path in failed if steps[path].interrupt is not None and course.was_dropped_for(path, met)}


def _find_mistakes(error: BaseException) -> list[BaseException]:
    """Return the exceptions for which a run parks: those of a group, and their causes.

    A bug in a ``finally`` block often follows from the exception that propagates there: it uses an unset value.
    """
    if issubclass(type(error), BaseExceptionGroup):  # its __class__ may be anything
        group = cast(BaseExceptionGroup[BaseException], error)
        return [found for one in group.exceptions for found in _find_mistakes(one)]
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and must_park(cause) and all(cause is not other for other in found):
        found.append(cause)
        cause = cause.__context__ if cause.__cause__ is None else cause.__cause__
    return found


def _find_under(steps: Mapping[StepPath, Entry], dropped: Container[StepPath], pivot: int) -> set[StepPath]:
    """Return the steps that were undone with savepoints which are entered again."""
    undone = [entry for path, entry in steps.items() if path in dropped and entry.kind is EntryKind.SAVEPOINT]
    return {path for path, entry in steps.items() for savepoint in undone if _is_undone_by(entry, savepoint, pivot)}


def _is_held(
    steps: Mapping[StepPath, Entry], course: Course, failure: ExceptionSite, met: dict[str, int], pivot: int
) -> bool:
    """Whether the code did something before the pivot because of a failure: then the failure stays."""
    knows = course.find_knowing([failure], met)
    failed = {failure.path} if failure.how is ExceptionRole.RAISED else set()
    return any(
        entry.seq <= pivot and not course.was_requested_by(path, failure.moment) and course.follows(path, failed, knows)
        for path, entry in steps.items()
        if entry.kind is not EntryKind.SAVEPOINT
    )


def _find_again(
    steps: Mapping[StepPath, Entry], course: Course, first: ExceptionSite, sites: Sequence[ExceptionSite], pivot: int
) -> set[StepPath]:
    """Return the failed steps that are executed again, with those that failed beside the first one."""
    raised_at = {each.path: each.moment for each in course.sites if each.how is ExceptionRole.RAISED}
    again = {each.path for each in sites if each.how is ExceptionRole.RAISED}
    calls = {steps[path].scope for path in again if steps[path].beside is not None}
    since = steps[first.path].seq if first.how is ExceptionRole.RAISED else pivot
    for path, entry in steps.items():
        if entry.outcome is Outcome.FAILED and entry.seq > since and course.was_requested_by(path, first.moment):
            is_beside = entry.scope in calls and raised_at.get(path, math.inf) > first.moment
            if is_beside or path not in raised_at:
                again.add(path)
    return again


def _follows(
    course: Course, entry: Entry, first: ExceptionSite, failed: Container[StepPath], knows: dict[str, int]
) -> bool:
    """Whether the code reached a step, or left a savepoint, after it got a failure, maybe because of it."""
    if entry.kind is not EntryKind.SAVEPOINT:
        return not course.was_requested_by(entry.path, first.moment) and course.follows(entry.path, failed, knows)
    left = next((each for each in course.sites if each.how is ExceptionRole.LEFT and each.path == entry.path), None)
    if left is None or left.moment < first.moment:
        return False
    return issubclass(type(left.error), asyncio.CancelledError) or course.follows(entry.path, failed, knows)


def _is_undone_by(entry: Entry, savepoint: Entry, pivot: int) -> bool:
    """Whether a step was undone with a savepoint; steps before a pivot in it were not."""
    return entry.path.startswith(f"{savepoint.path}.") and (entry.seq > pivot or savepoint.seq <= pivot)
