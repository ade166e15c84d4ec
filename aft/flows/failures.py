"""From an exception to a fault, and from a fault back to an exception.

A fault holds what only the process that caught the exception knows; the dispatcher decides from it without the user's
code. On replay the exception's class is looked up among modules that are already imported, never imported by a stored
name; where it cannot be rebuilt, the flow gets ``ActivityFailed``. Both carry ``.fault``.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import CodeType, TracebackType
from typing import TypeGuard

from aft import durations
from aft.codec import decode_untyped, encode_loosely
from aft.errors import ActivityFailed, CodecError, DefinitionError, Recoverable, Unrecoverable
from aft.fault import Answer, Fault, FaultKind, FaultState
from aft.flows.policy import Policy
from aft.ids import FaultId, RunId, StepPath, new_id
from aft.recovery import answers, knowledge
from aft.recovery.levels import Ladder

#: Characters of a message, and of a traceback, that are kept; of the latter its end.
MOST_MESSAGE = 10_000
MOST_TRACEBACK = 50_000
#: Frames whose words are kept.
MOST_SPELLED = 1000

#: Exceptions that, raised by the flow function itself, are taken for bugs: the run is parked, not undone.
BUGS = (NameError, AttributeError, TypeError, ImportError, AssertionError, SyntaxError)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something failed: run, step, and how often before."""

    run_id: RunId
    epoch: int
    path: StepPath | None
    kind: FaultKind
    name: str
    failures: int = 0


def describe(
    error: BaseException,
    place: Place,
    policy: Policy,
    ladder: Ladder,
    at: datetime,
    *,
    state: FaultState = FaultState.OPEN,
    verdict: str | None = None,
) -> Fault:
    """Make the fault that records an exception. Never raises, whatever the exception's own methods do."""
    args, exact = _encoded_args(error)
    lineage = knowledge.mro_names(type(error))
    return Fault(
        id=FaultId(new_id()),
        run_id=place.run_id,
        path=place.path,
        kind=place.kind,
        name=place.name,
        state=state,
        epoch=place.epoch,
        attempt=place.failures + 1,
        type=lineage[0][:400],
        lineage=tuple(lineage),
        message=_clean(_text(error))[:MOST_MESSAGE],
        args=args,
        exact=exact,
        traceback=_clean(_trace(error))[-MOST_TRACEBACK:],
        said=said(error),
        declared=policy.answer(error),
        status=answers.http_status(error),
        after=_after(error, at),
        signal=error.on_signal if isinstance(error, Recoverable) else None,
        ladder=ladder.spelled,
        raised_at=at,
        verdict=verdict,
        resource=policy.resource,
    )


def said(error: BaseException) -> Answer | None:
    """What the exception says of itself."""
    if isinstance(error, Recoverable):
        return Answer.RECOVERABLE
    return Answer.UNRECOVERABLE if isinstance(error, Unrecoverable) else None


def passes(error: BaseException, policy: Policy, at: datetime) -> bool:
    """Tell whether an immediate retry makes sense, as far as this process can know: rules are not asked for it.

    One that asks to be left alone for a while is not tried at once.
    """
    after = _after(error, at)
    if after:
        return False
    answer = said(error) or policy.answer(error)
    if answer is not None:
        return answer is Answer.RECOVERABLE
    lineage = knowledge.mro_names(type(error))
    return knowledge.judge(lineage, answers.http_status(error), _text(error), after).recoverable


def rebuild(fault: Fault) -> Exception:
    """Make the exception that a flow sees for a final failure; calls no ``__init__`` and imports nothing."""
    cls = _find_class(fault.type)
    if cls is not None and fault.exact:
        try:
            error = cls.__new__(cls)
            error.args = tuple(decode_untyped(fault.args))
            error.fault = fault  # type: ignore[attr-defined]
            return error
        except (TypeError, ValueError, AttributeError, CodecError):
            pass  # not a class that can be made this way
    return ActivityFailed(f"activity {fault.name!r} failed for good: {fault}", fault)


def fault_of(error: BaseException) -> Fault | None:
    """The fault that an exception was rebuilt from, if it was; of a group, the first that has one."""
    if isinstance(error, BaseExceptionGroup):
        return next((fault for one in error.exceptions if (fault := fault_of(one)) is not None), None)
    fault = getattr(error, "fault", None)
    return fault if isinstance(fault, Fault) else None


def is_bug(error: BaseException) -> bool:
    """Tell whether an exception that left a flow is a bug in the flow's own code, to be parked and fixed."""
    return isinstance(error, BUGS) and fault_of(error) is None


def must_park(error: BaseException) -> bool:
    """Tell whether what left a flow's code is a mistake in that code: after the fix, retry replays."""
    if isinstance(error, BaseExceptionGroup):
        return any(must_park(one) for one in error.exceptions)
    refused = isinstance(error, CodecError | DefinitionError) and fault_of(error) is None
    return is_bug(error) or refused


def _find_class(name: str) -> type[Exception] | None:
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:split]))
        for part in parts[split:]:
            found = _members(found).get(part)
        if _is_class(found) and issubclass(found, Exception):
            return found
    return None


def _members(found: object) -> Mapping[str, object]:
    # Not getattr, nor vars: a module or class may run code when it is asked for a name, even import.
    look = type.__getattribute__ if _is_class(found) else object.__getattribute__
    try:
        members = look(found, "__dict__")
    except AttributeError:
        return {}
    return members if isinstance(members, Mapping) else {}


def _is_class(found: object) -> TypeGuard[type]:
    # Not isinstance: that may ask the object itself for its class.
    return issubclass(type(found), type)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"({type(error).__name__} cannot be shown: its __str__ raised {type(broken).__name__})"


def _trace(error: BaseException) -> str:
    """Spell the traceback from the first frame that is not aft's own."""
    try:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None and _is_ours(frame):
            frame = frame.tb_next
        with suppress(Exception):  # then Python itself shall try
            if (told := _spell_plainly(error, frame)) is not None:
                return told
        return "".join(traceback.format_exception(type(error), error, frame))
    except Exception:
        return ""


def _spell_plainly(error: BaseException, frame: TracebackType | None) -> str | None:
    """Spell the traceback of an exception that stands alone, as most do; None: it has to be done at length.

    A line of code that fails is spelled once: finding it, and the place in it, costs more than all else here.
    """
    alone = error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
    if not alone or isinstance(error, _TOLD_AT_LENGTH) or frame is None:
        return None
    lines: Counter[str] = Counter()  # which keeps their order
    while frame is not None:
        lines[_spell_frame(frame)] += 1
        frame = frame.tb_next
    if max(lines.values()) > 1:
        return None  # a recursion, which is told in fewer words
    return "".join(("Traceback (most recent call last):\n", *lines, *traceback.format_exception_only(error)))


def _spell_frame(frame: TracebackType) -> str:
    code = frame.tb_frame.f_code
    place = (code.co_filename, code, frame.tb_lasti)
    if (known := _spelled.get(place)) is None:
        if len(_spelled) >= MOST_SPELLED:
            _spelled.clear()
        known = _spelled[place] = "".join(traceback.format_tb(frame, limit=1))
    return known


#: Exceptions that are more than one, or of which later versions of Python tell what may have been meant.
_TOLD_AT_LENGTH = (BaseExceptionGroup, NameError, AttributeError, ImportError, SyntaxError)
#: Places in the code that have failed before, as tracebacks tell them: by file, code (equal in two copies of one file)
#: and instruction.
_spelled: dict[tuple[str, CodeType, int], str] = {}


def _is_ours(frame: TracebackType) -> bool:
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    return module.startswith("aft.") and not module.startswith("aft._examples")


def _clean(text: str) -> str:
    # PostgreSQL stores no NUL in text, and no driver stores lone surrogates.
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _encoded_args(error: BaseException) -> tuple[str, bool]:
    try:
        return encode_loosely(list(error.args))
    except Exception:
        return "[]", False


def _after(error: BaseException, at: datetime) -> timedelta | None:
    if not isinstance(error, Recoverable) or error.after is None:
        return answers.retry_after(error, at)
    try:
        return durations.parse(error.after)
    except Exception:
        return None  # a wish that cannot be read is none; the fault itself must not be lost
