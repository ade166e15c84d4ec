"""Closing the generators that a flow's code has left open: their ``finally`` blocks may call steps.

Python closes a generator when nobody refers to it any more. The frame of a flow that is left by an exception lives on
with that exception, and the exception with the run. So its generators would be closed by the garbage collector: later,
on any thread, in the middle of another run, whose steps their steps would become.

Hence two rules. What the code has left open is closed at once, where its steps still count as the flow's; if the run is
leaving, they are not executed, as in every other ``finally``. And whatever the garbage collector closes, because it was
part of some other cycle, calls no activity at all.

An exception that several runs raise, one that a module keeps for example, holds frames of all of them: code of another
run may stand in one. Such an exception is left alone.

Who may run at the same time: the collector works on the thread that made it necessary, which says so for itself only.
Runs on other threads, with exceptions in common: each says which it has met, before it closes anything.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from aft.errors import DefinitionError, is_a, is_interrupt


class _Collector(threading.local):
    is_at_work = False


_collector = _Collector()


def _note_collection(phase: str, info: dict[str, Any]) -> None:
    _collector.is_at_work = phase == "start"


gc.callbacks.append(_note_collection)


def is_collecting() -> bool:
    """Tell whether this thread is in the garbage collector: nobody knows whose code it executes."""
    return _collector.is_at_work


def check_collector() -> None:
    """Raise DefinitionError if this thread is in the garbage collector."""
    if is_collecting():
        raise DefinitionError(
            "aft was called while the garbage collector closed something that a flow, or somebody else, had left open; "
            "it does nothing here: close generators yourself, with contextlib.closing"
        )


class MetByMany:
    """The exceptions that runs have met which are executed now, and whether more than one has. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: Counter[int] = Counter()
        #: What several have met at a time, kept for good: no other exception gets its id. There are few, if any.
        self._common: dict[int, BaseException] = {}

    def meet(self, error: BaseException) -> None:
        """Say that a run has met an exception, once; to be followed by ``forget``, until when somebody refers to it."""
        with self._lock:
            self._count[id(error)] += 1
            if self._count[id(error)] > 1:
                self._common[id(error)] = error

    def forget(self, errors: Iterable[BaseException]) -> None:
        """Say that a run that has met these goes on no longer."""
        with self._lock:
            self._count.subtract(map(id, errors))
            self._count = +self._count

    def __contains__(self, error: BaseException) -> bool:
        """Whether several runs have met it at the same time."""
        return id(error) in self._common


met_by_many = MetByMany()


class LeftOpen:
    """What the code of a block leaves open: closed when an exception leaves it, or when ``close`` is called.

    ``heard`` tells the exceptions that somebody else keeps, besides the one that leaves it; ``told`` is told of that
    one before. What was being handled outside is not touched, nor what its frames hold.
    """

    def __init__(self, heard: Callable[[], Iterable[BaseException]], told: Callable[[BaseException], None]) -> None:
        self._heard = heard
        self._told = told

    def __enter__(self) -> LeftOpen:
        self._outside = {id(one) for one in go_through(sys.exception())}
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not is_interrupt(error):
            self._told(error)
            self.close(error)

    def close(self, *errors: BaseException) -> None:
        """Close what the frames hold that were left with these exceptions, or with one that was heard of."""
        for error in (*errors, *self._heard()):
            for one in go_through(error):
                if id(one) not in self._outside and one not in met_by_many:
                    traceback.clear_frames(one.__traceback__)


def is_closing() -> bool:
    """Tell whether a generator is being closed here: whoever does that hears of nothing but GeneratorExit."""
    return any(is_a(error, GeneratorExit) for error in go_through(sys.exception()))


def go_through(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, those of its group, and what led to each or was being handled when it was raised."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__context__, one.__cause__]
        if issubclass(type(one), BaseExceptionGroup):  # its __class__ may be anything
            left += cast(BaseExceptionGroup[BaseException], one).exceptions
