"""Closing the generators that a flow's code has left open: their ``finally`` blocks may call steps.

Python closes a generator when nobody refers to it any more. The frame of a flow that is left by an exception lives on
with that exception, and the exception with the run. So its generators would be closed by the garbage collector: later,
on any thread, in the middle of another run, whose steps their steps would become.

Hence two rules. What the code has left open is closed at once, where its steps still count as the flow's; if the run is
leaving, they are not executed, as in every other ``finally``. And whatever the garbage collector closes, because it was
part of some other cycle, calls no activity at all.

An exception that several runs raise, one that a module keeps for example, holds frames of all of them, and code of
another run may stand in one: Python puts each raise before the ones of earlier. So what is looked at are the frames of
an exception as they were when this run met it; and of those before its last raise, none of a generator or coroutine.

Who may run at the same time: the collector works on the thread that made it necessary, which says so for itself only.
Runs on other threads may raise, and so extend, an exception that this one has met.
"""

from __future__ import annotations

import gc
import inspect
import opcode
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from aft.errors import DefinitionError, is_a, is_interrupt

#: Code that may be left in the middle, and gone on with.
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RAISE = opcode.opmap["RAISE_VARARGS"]


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


@dataclass(frozen=True, slots=True)
class Met:
    """An exception, and the frames that it had gone through by then."""

    error: BaseException
    frames: TracebackType | None

    @classmethod
    def now(cls, error: BaseException) -> Met:
        """Note an exception as it is now."""
        return cls(error, error.__traceback__)


class LeftOpen:
    """What the code of a block leaves open: closed when an exception leaves it, or when ``close`` is called.

    ``heard`` tells the exceptions that somebody else keeps, besides the one that leaves it; ``told`` is told of that
    one before. What was being handled outside is not touched, nor what its frames hold.
    """

    def __init__(self, heard: Callable[[], Iterable[Met]], told: Callable[[BaseException], None]) -> None:
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
        raised = [Met.now(one) for error in errors for one in go_through(error)]
        for met in (*raised, *self._heard()):
            if id(met.error) not in self._outside:
                _clear(met.frames)


def _clear(frames: TracebackType | None) -> None:
    """Let frames that are over go what they hold; a generator or coroutine that stands in one would be closed."""
    is_earlier = False
    while frames is not None:
        frame = frames.tb_frame
        if not (is_earlier and frame.f_code.co_flags & _SUSPENDS):
            with suppress(RuntimeError):  # it is executed just now
                frame.clear()
        # Whatever comes after a raise was there before it: of an earlier raise of the same exception.
        is_earlier = is_earlier or frame.f_code.co_code[frames.tb_lasti] == _RAISE
        frames = frames.tb_next


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
