"""Every error class that aft raises, and the two that users raise.

::

    Exception
    ├── AftError                     everything that aft raises; catch this to catch all
    │   ├── DefinitionError          a flow, activity or compensator is declared wrongly
    │   ├── ConfigError              a setting is wrong
    │   ├── CodecError               a value cannot be stored, or stored text cannot be read
    │   ├── BrokerError              the broker refused, or cannot be reached
    │   │   └── Unroutable           a message had no queue to go to
    │   ├── StoreError               the database refused, or cannot be reached
    │   │   ├── DatabaseMoved        the SQLite file was deleted, moved or replaced while it was open
    │   │   └── NotMigrated          the schema is not the one this aft needs
    │   ├── KeyConflict              the same key was used for other arguments
    │   ├── UnknownRun               no run has that id
    │   ├── UnknownFault             no fault, or more than one, has that id
    │   ├── UnknownFlow              no flow is registered under that name
    │   ├── UnknownSchedule          no schedule has that name
    │   ├── UnknownOperation         no operation has that id
    │   ├── OrderRefused             what was asked of a run, a schedule or an operation does not fit its state
    │   ├── RuleRefused              a rule or an exlet cannot be taken as it is
    │   ├── ConstraintViolated       a rule made a step fail whose constraint does not hold
    │   ├── WaitTimeout              a signal did not come in time
    │   ├── DeadlineExceeded         the run did not end in time
    │   ├── UndoneByHand             a person has a savepoint undone
    │   ├── ReplayDiverged           the flow's code no longer matches the run's journal
    │   ├── LimitExceeded            a run would begin more children than it may
    │   ├── ActivityFailed           a final failure whose own class cannot be rebuilt
    │   ├── NotKept                  a flow uses what was not kept of an activity's exception
    │   └── FlowEnded                the run ended without a result
    │       ├── FlowCompensated      everything it had done was undone
    │       ├── FlowFailed           it could not be undone entirely
    │       └── FlowCancelled        it was cancelled, nothing was undone
    ├── Recoverable                  raise it: this will pass, try again later
    │   └── ResourceUnavailable      raise it: something that the activity needs cannot be had now
    └── Unrecoverable                raise it: trying again is pointless

A message says what, which (``!r``, or ``texts.format_value``) and what to do next. What the engine uses to leave a flow
derives from ``BaseException`` and is not here: a user's ``except Exception`` cannot swallow it.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from aft.security.redaction import hide_inputs
from aft.texts import check_storable, format_value, shorten

if TYPE_CHECKING:
    from aft.fault import Fault

Kind = TypeVar("Kind", bound=BaseException)

#: Characters of the name of a signal that a fault waits for.
MOST_SIGNAL = 200
#: Characters of a message.
MOST_MESSAGE = 4_000


class AftError(Exception):
    """Base class of everything that aft raises. Messages are cut at MOST_MESSAGE characters."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shorten(arg, MOST_MESSAGE) if isinstance(arg, str) else arg for arg in args))


class DefinitionError(AftError):
    """Raised when a flow, an activity or a compensator is declared or used in a way that cannot work."""


class ConfigError(AftError):
    """Raised when a setting is missing, malformed or unknown."""


class CodecError(AftError):
    """Raised when a value cannot be stored, or stored text does not fit the type it is read as.

    ``path`` leads to the offending value, ``order.lines[2].price`` for example.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class BrokerError(AftError):
    """Raised when the broker cannot be reached, refuses, or does not confirm in time."""


class Unroutable(BrokerError):
    """Raised when a message was published to a queue that does not exist."""


class StoreError(AftError):
    """Raised when the database cannot be reached or refuses.

    ``transient``: the same call may succeed later; ``locked``: another process has just locked a row; ``refused``: the
    database works, and does not accept what was to be written: other rows may still be written.
    """

    def __init__(self, message: str, *, transient: bool = False, locked: bool = False, refused: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.locked = locked
        self.refused = refused


class DatabaseMoved(StoreError):
    """Raised when the SQLite file that this process has open was deleted, moved or replaced: nothing is durable there.

    The process cannot go on; it has to be started again when the file is back.
    """


class NotMigrated(StoreError):
    """Raised when the database's schema is not the one this version of aft needs."""


class KeyConflict(AftError):
    """Raised when a key that already names a run is used again with other arguments."""


class UnknownRun(AftError):
    """Raised when no run has the given id."""


class UnknownFault(AftError):
    """Raised when no fault has the given id, or several begin or end with it."""


class UnknownFlow(AftError):
    """Raised when no flow is registered under the given name."""


class UnknownSchedule(AftError):
    """Raised when no schedule has the given name."""


class UnknownOperation(AftError):
    """Raised when no operation has the given id, or several begin or end with it."""


class OrderRefused(AftError):
    """Raised when what is asked of a run, or a schedule, does not fit the state it is in; nothing was changed."""


class RuleRefused(AftError):
    """Raised when a rule or an exlet is invalid; the rules that were there stay in force."""


class ConstraintViolated(AftError):
    """Raised when an exlet makes a step of a flow fail, because a constraint of the rules is violated."""


class WaitTimeout(AftError, TimeoutError):
    """Raised when a signal that a flow waits for did not come in time."""


class DeadlineExceeded(AftError, TimeoutError):
    """Raised at a flow's current step when its run's deadline has passed, once."""


class UndoneByHand(AftError):
    """Raised at a flow's current step when a person has it undone to a savepoint."""


class ReplayDiverged(AftError):
    """Raised when a flow's code no longer matches the journal of the run that it replays."""


class LimitExceeded(AftError):
    """Raised when a run would start more children than the settings allow; the run is parked."""


class ActivityFailed(AftError):
    """Raised at the call site when an activity failed for good and no process can rebuild its own exception."""

    fault: Fault

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(message)
        self.fault = fault


class NotKept(AftError, AttributeError):
    """Raised when a flow uses a value that an activity's exception carried and that could not be stored with it."""


class FlowEnded(AftError):
    """Base class for the ends of a run that have no result; ``fault`` is the cause, if there was one."""

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


class FlowCompensated(FlowEnded):
    """Raised by ``run.result()`` when the run failed and everything it had done was undone."""


class FlowFailed(FlowEnded):
    """Raised by ``run.result()`` when the run failed and a person dropped part of its undo."""


class FlowCancelled(FlowEnded):
    """Raised by ``run.result()`` when the run was cancelled and nothing was undone."""


class Recoverable(Exception):
    """Raise it in an activity for a failure that will pass. ``after`` is how long to wait at least.

    With ``on_signal`` the next try waits for that signal to the run, however long that takes; with both, for whichever
    comes first.
    """

    #: Also where a class of the user's own does not call the ``__init__`` below.
    after: timedelta | float | str | None = None
    on_signal: str | None = None

    def __init__(
        self, *args: object, after: timedelta | float | str | None = None, on_signal: str | None = None
    ) -> None:
        super().__init__(*args)
        if on_signal is not None:
            if not isinstance(on_signal, str) or not on_signal.strip() or len(on_signal) > MOST_SIGNAL:
                raise DefinitionError(
                    f"on_signal is a text of 1 to {MOST_SIGNAL} characters, not {format_value(on_signal)}"
                )
            check_storable("on_signal", on_signal, DefinitionError)
        self.after = after
        self.on_signal = on_signal


class ResourceUnavailable(Recoverable):
    """Raise it in an activity when something that it needs is unavailable now; rules may have an answer to that."""


class Unrecoverable(Exception):
    """Raise it in an activity when trying again is pointless; what was done is undone."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is Ctrl-C, which ends the process; whatever else user code raises is its failure."""
    return is_a(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def is_a(error: BaseException, kind: type[Kind] | tuple[type[Kind], ...]) -> TypeGuard[Kind]:
    """Return whether a foreign exception is of a class; unlike isinstance, this calls nothing on the exception."""
    return issubclass(type(error), kind)


def text_of(error: BaseException) -> str:
    """Return the text of a foreign exception, or a note that its ``__str__`` fails; hides what pydantic shows."""
    try:
        return hide_inputs(str.__str__(str(error)))
    except BaseException as broken:
        if is_interrupt(broken):
            raise
        return f"({type(error).__name__} cannot be shown: its __str__ raised {type(broken).__name__})"
