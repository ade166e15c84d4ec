"""Converts exceptions to faults, and faults back to exceptions.

A fault holds what only the process that caught the exception knows; the dispatcher decides from it without the user's
code. The flow gets an exception of the same class, rebuilt from the fault (``flows.exceptions.rebuild``), or of its
bases if that class is not imported; if it cannot be made in any process, ``ActivityFailed``. All have ``.fault``.
"""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import CodeType, TracebackType

from aft import durations
from aft.errors import (
    MOST_SIGNAL,
    CodecError,
    DefinitionError,
    Recoverable,
    Unrecoverable,
    is_a,
    is_interrupt,
    text_of,
)
from aft.fault import Fault, FaultKind, FaultState, Recoverability
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import capture
from aft.flows.exceptions.failure_groups import in_group
from aft.flows.exceptions.rebuild import fault_of as fault_of
from aft.flows.exceptions.rebuild import rebuild_exception
from aft.ids import FaultId, RunId, StepPath, new_id
from aft.recovery import http_hints, known_exceptions
from aft.recovery.levels import Ladder
from aft.security.redaction import hide_inputs, redact
from aft.texts import find_unstorable

#: Characters of a message, and of a traceback, that are kept; of the latter its end.
MOST_MESSAGE = 10_000
MOST_TRACEBACK = 50_000
#: Formatted frames that are cached.
MOST_FORMATTED = 1000

#: Exceptions that count as bugs if the flow function itself raises them: the run is parked, not undone.
BUGS = (NameError, AttributeError, TypeError, ImportError, AssertionError, SyntaxError)


@dataclass(frozen=True, slots=True)
class FaultSite:
    """The place of a failure: run, step, and the number of earlier failures."""

    run_id: RunId
    epoch: int
    path: StepPath | None
    kind: FaultKind
    name: str
    failures: int = 0


def make_fault(
    error: BaseException,
    place: FaultSite,
    policy: Policy,
    ladder: Ladder,
    at: datetime,
    *,
    state: FaultState = FaultState.OPEN,
    why: str | None = None,
) -> Fault:
    """Make the fault that records an exception. Never raises, whatever the exception's own methods do."""
    kept = capture.store(error)
    lineage, (after, unread) = known_exceptions.mro_names(type(error)), _after(error, at)
    fault = Fault(
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
        message=_clean(text_of(error))[:MOST_MESSAGE],
        args=kept.args,
        attributes=kept.attributes,
        args_exact=kept.exact,
        traceback=_clean(hide_inputs(_trace(error)) + unread)[-MOST_TRACEBACK:],
        own_answer=own_recoverability(error),
        declared_answer=policy.recoverability_of(error),
        http_status=http_hints.http_status(error),
        after=after,
        signal=_signal(error),
        ladder=ladder.stored,
        raised_at=at,
        why=why,
        resource=policy.resource,
    )
    return in_group(fault, error.__traceback__)


def own_recoverability(error: BaseException) -> Recoverability | None:
    """Return the exception's own answer: its class is Recoverable, Unrecoverable, or neither (None)."""
    if is_a(error, Recoverable):
        return Recoverability.RECOVERABLE
    return Recoverability.UNRECOVERABLE if is_a(error, Unrecoverable) else None


def may_retry_at_once(error: BaseException, policy: Policy, at: datetime) -> bool:
    """Whether an immediate retry makes sense, as far as this process knows: rules are not asked.

    An exception that asks for a wait is not retried at once.
    """
    after, _ = _after(error, at)
    if after:
        return False
    answer = own_recoverability(error) or policy.recoverability_of(error)
    if answer is not None:
        return answer is Recoverability.RECOVERABLE
    lineage = known_exceptions.mro_names(type(error))
    return known_exceptions.classify_exception(
        lineage, http_hints.http_status(error), text_of(error), after
    ).recoverable


def rebuild(fault: Fault) -> Exception:
    """Make the exception that a flow sees for a final failure; calls no code of its class and imports nothing."""
    return rebuild_exception(fault, f"{fault.kind.value} {fault.name!r} failed for good: {redact(str(fault))}")


def is_bug(error: BaseException) -> bool:
    """Whether an exception is of a class that only a bug raises, and no failure of a step."""
    return is_a(error, BUGS) and fault_of(error) is None


def must_park(error: BaseException) -> bool:
    """Whether an exception that left a flow parks its run: a bug, a misuse of aft, or a group that holds one."""
    if is_a(error, BaseExceptionGroup):
        return any(must_park(one) for one in error.exceptions)
    mistake = is_a(error, (CodecError, DefinitionError, SystemExit)) and fault_of(error) is None
    return is_bug(error) or mistake


def explain_exit(error: BaseException) -> BaseException:
    """Turn ``sys.exit`` in a flow's code into an AssertionError; return any other exception as it is."""
    if not is_a(error, SystemExit):
        return error
    mistake = AssertionError(f"the flow's own code called sys.exit({error.code!r})")
    mistake.__cause__ = error
    return mistake


def _trace(error: BaseException) -> str:
    """Format the traceback from the first frame that is not aft's own."""
    try:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None and _is_ours(frame):
            frame = frame.tb_next
        with suppress(Exception):  # then Python itself shall try
            if (text := _format_without_causes(error, frame)) is not None:
                return text
        return "".join(traceback.format_exception(type(error), error, frame))
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        return ""


def _format_without_causes(error: BaseException, frame: TracebackType | None) -> str | None:
    """Format the traceback of an exception without causes, as most are; None: Python has to format it.

    Each failing line is formatted once and cached: finding it, and the place in it, costs more than all else here.
    """
    alone = error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
    if not alone or is_a(error, _FORMATTED_BY_PYTHON) or frame is None:
        return None
    lines: Counter[str] = Counter()  # which keeps their order
    while frame is not None:
        lines[_format_frame(frame)] += 1
        frame = frame.tb_next
    if max(lines.values()) > 1:
        return None  # a recursion, which Python shortens
    return "".join(("Traceback (most recent call last):\n", *lines, *traceback.format_exception_only(error)))


def _format_frame(frame: TracebackType) -> str:
    code = frame.tb_frame.f_code
    place = (code.co_filename, code, frame.tb_lasti)
    if (known := _formatted.get(place)) is None:
        if len(_formatted) >= MOST_FORMATTED:
            _formatted.clear()
        known = _formatted[place] = "".join(traceback.format_tb(frame, limit=1))
    return known


#: Exceptions that contain others, or to which later versions of Python add suggestions.
_FORMATTED_BY_PYTHON = (BaseExceptionGroup, NameError, AttributeError, ImportError, SyntaxError)
#: Cached frames of tracebacks, by file, code (equal in two copies of one file) and instruction.
_formatted: dict[tuple[str, CodeType, int], str] = {}


def _is_ours(frame: TracebackType) -> bool:
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    return module.startswith("aft.") and not module.startswith("aft._examples")


def _clean(text: str) -> str:
    # PostgreSQL stores no NUL in text, and no driver stores lone surrogates.
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _signal(error: BaseException) -> str | None:
    """Return the signal that the next try should wait for; None if there is none, or it is no valid name."""
    found = http_hints.attribute_of(error, "on_signal") if is_a(error, Recoverable) else None
    fits = type(found) is str and 0 < len(found) <= MOST_SIGNAL and find_unstorable(found) is None
    return found if fits else None


def _after(error: BaseException, at: datetime) -> tuple[timedelta | None, str]:
    """Return the wait that an exception asks for, and a remark for the traceback if that cannot be read.

    An unreadable one is ignored: the fault itself must not be lost.
    """
    wish = http_hints.attribute_of(error, "after") if is_a(error, Recoverable) else None
    if wish is None:
        return http_hints.retry_after(error, at), ""
    try:
        return durations.parse(wish), ""
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        return None, f"\naft passed over its `after`, which is no duration: {_quote(wish)}\n"


def _quote(value: object) -> str:
    try:
        return repr(value)[:200]
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        return f"a {type(value).__name__}"
