"""Traces an exception to its origin: the steps whose failures it follows from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from aft.flows.exceptions.rebuild import fault_of
from aft.ids import StepPath


class ExceptionRole(Enum):
    """The relation of an exception to a step, a savepoint or a task."""

    RAISED = auto()  #: the step failed with it
    LEFT = auto()  #: the savepoint was left with it
    HANDLED = auto()  #: the code requested the step while it handled the exception
    ENDED = auto()  #: the task with that branch ended with it, or the flow


@dataclass(frozen=True, slots=True)
class ExceptionSite:
    """An exception that the code has met at the step, the savepoint or the end of the branch at ``path``."""

    error: BaseException
    path: StepPath
    #: Its place in the order of all requests and exceptions of the pass.
    moment: int
    how: ExceptionRole


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an exception: the places where the code met it, and every exception on the way."""

    sites: list[ExceptionSite]
    errors: list[BaseException]


def trace_origin(sites: Sequence[ExceptionSite], error: BaseException) -> Origin:
    """Return the origin of an exception: follows its causes until one is the failure of a step.

    ``sites`` are all exceptions that the code has met.
    """
    found_sites: list[ExceptionSite] = []
    errors: list[BaseException] = []
    left = [error]
    while left:
        one = left.pop()
        if any(one is other for other in errors):
            continue
        errors.append(one)
        found = [each for each in sites if is_same(each.error, one)]
        found_sites += found
        if issubclass(type(one), BaseExceptionGroup):  # its __class__ may be anything
            left += cast(BaseExceptionGroup[BaseException], one).exceptions
        before = one.__context__ if one.__cause__ is None else one.__cause__  # its __bool__ may raise
        if before is not None and all(each.how is not ExceptionRole.RAISED for each in found):
            left.append(before)
    return Origin(found_sites, errors)


class SameExceptions:
    """A set of exceptions, by identity or by their fault."""

    def __init__(self, errors: Iterable[BaseException]) -> None:
        self._errors = list(errors)  # kept alive: their ids are theirs as long
        self._ids = set(map(id, self._errors))
        self._faults = {fault.id for error in self._errors if (fault := fault_of(error)) is not None}

    def has(self, error: BaseException) -> bool:
        """Whether an exception is one of them."""
        return id(error) in self._ids or ((fault := fault_of(error)) is not None and fault.id in self._faults)


def is_same(error: BaseException, other: BaseException) -> bool:
    """Whether two exceptions are identical, or have the same fault."""
    if error is other:
        return True
    fault, another = fault_of(error), fault_of(other)
    return fault is not None and another is not None and fault.id == another.id
