"""Closes generators that a flow's code has left open: their ``finally`` blocks may call steps.

Python closes a generator when its last reference is dropped. The frame of a flow that is left by an exception lives on
with that exception, and the exception with the run. So its generators would be closed by the garbage collector: later,
on any thread, in the middle of another run, whose steps their steps would become.

Hence two rules. Generators left open are closed at once, where their steps still count as the flow's; if the run is
leaving, the steps are not executed, as in every other ``finally``. And code that the garbage collector closes, because
it was part of some other cycle, may call no activity at all.

An exception that several runs raise, such as one kept in a module, holds frames of all of them, and another run's code
may be suspended in one: Python prepends each raise to the earlier ones. So only the frames of an exception as they were
when this run met it are cleared; and of those before its last raise, none of a generator or coroutine.

The collector works on the thread that triggered it, and is tracked per thread. Runs on other threads may at the same
time raise, and so extend, an exception that this one has met.
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

#: Code flags of functions that can be suspended.
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RAISE = opcode.opmap["RAISE_VARARGS"]


class _Collector(threading.local):
    is_at_work = False


_collector = _Collector()


def _note_collection(phase: str, info: dict[str, Any]) -> None:
    _collector.is_at_work = phase == "start"


gc.callbacks.append(_note_collection)


def is_collecting() -> bool:
    """Whether this thread is in the garbage collector: it may execute code of any run then."""
    if _collector.is_at_work:
        # An interrupt may have come just when it ended. Inside of it this does nothing; else the note is put right.
        gc.collect(0)
    return _collector.is_at_work


def check_collector() -> None:
    """Raise DefinitionError if this thread is in the garbage collector."""
    if is_collecting():
        raise DefinitionError(
            "aft was called while the garbage collector closed something that a flow, or somebody else, had left open; "
            "it does nothing here: close generators yourself, with contextlib.closing"
        )


@dataclass(frozen=True, slots=True)
class CapturedException:
    """An exception, and the frames that it had passed at that time."""

    error: BaseException
    frames: TracebackType | None

    @classmethod
    def now(cls, error: BaseException) -> CapturedException:
        """Capture an exception as it is now."""
        return cls(error, error.__traceback__)


class OpenGenerators:
    """Closes generators that the code of a block leaves open, when an exception leaves it, or on ``close``.

    ``captured`` returns further exceptions that are kept elsewhere; ``on_leave`` is called first with the one that
    leaves the block. Exceptions that were being handled outside are not touched, nor their frames.
    """

    def __init__(
        self, captured: Callable[[], Iterable[CapturedException]], on_leave: Callable[[BaseException], None]
    ) -> None:
        self._captured = captured
        self._on_leave = on_leave

    def __enter__(self) -> OpenGenerators:
        self._outside = {id(one) for one in iterate_chain(sys.exception())}
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not is_interrupt(error):
            self._on_leave(error)
            self.close(error)

    def close(self, *errors: BaseException) -> None:
        """Clear the frames of these exceptions, and of those that ``captured`` returns."""
        raised = [CapturedException.now(one) for error in errors for one in iterate_chain(error)]
        for met in (*raised, *self._captured()):
            if id(met.error) not in self._outside:
                _clear(met.frames)


def _clear(frames: TracebackType | None) -> None:
    """Clear finished frames, which closes their generators; skips suspended code of earlier raises."""
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
    """Whether a generator is being closed here: code that closes one expects nothing but GeneratorExit."""
    return any(is_a(error, GeneratorExit) for error in iterate_chain(sys.exception()))


def iterate_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, those of its group, and their causes and contexts."""
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
