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
    │   │   └── NotMigrated          the schema is not the one this aft needs
    │   ├── KeyConflict              the same key was used for other arguments
    │   ├── UnknownRun               no run has that id
    │   ├── UnknownFault             no fault, or more than one, has that id
    │   ├── UnknownFlow              no flow is registered under that name
    │   ├── UnknownSchedule          no schedule has that name
    │   ├── OrderRefused             what was asked of a run, or a schedule, does not fit its state
    │   ├── RuleRefused              a rule or an exlet cannot be taken as it is
    │   ├── ConstraintViolated       a rule made a step fail whose constraint does not hold
    │   ├── WaitTimeout              a signal did not come in time
    │   ├── DeadlineExceeded         the run did not end in time
    │   ├── UndoneByHand             a person has a savepoint undone
    │   ├── ReplayDiverged           the flow's code no longer matches the run's journal
    │   ├── ActivityFailed           a final failure whose own class cannot be rebuilt
    │   └── FlowEnded                the run ended without a result
    │       ├── FlowCompensated      everything it had done was undone
    │       ├── FlowFailed           it could not be undone entirely
    │       └── FlowCancelled        it was cancelled, nothing was undone
    ├── Recoverable                  raise it: this will pass, try again later
    │   └── ResourceUnavailable      raise it: something that the activity needs cannot be had now
    └── Unrecoverable                raise it: trying again is pointless

A message says what, which (``!r``) and what to do next. What the engine uses to leave a flow derives from
``BaseException`` and is not here: a user's ``except Exception`` cannot swallow it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aft.fault import Fault


class AftError(Exception):
    """Base class of everything that aft raises."""


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

    ``transient`` says whether the same call may succeed later; ``locked`` that somebody else has just locked a row.
    """

    def __init__(self, message: str, *, transient: bool = False, locked: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.locked = locked


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


class OrderRefused(AftError):
    """Raised when what is asked of a run, or a schedule, does not fit the state it is in; nothing was changed."""


class RuleRefused(AftError):
    """Raised when a rule or an exlet cannot be taken as it is; the rules that were there stay in force."""


class ConstraintViolated(AftError):
    """Raised when an exlet makes a step of a flow fail, because a constraint that rules tell of is violated."""


class WaitTimeout(AftError, TimeoutError):
    """Raised when a signal that a flow waits for did not come in time."""


class DeadlineExceeded(AftError, TimeoutError):
    """Raised at the step that a flow is at when its run's deadline has passed, once."""


class UndoneByHand(AftError):
    """Raised at the step that a flow is at when a person has it undone to a savepoint."""


class ReplayDiverged(AftError):
    """Raised when a flow's code no longer matches the journal of the run that it replays."""


class ActivityFailed(AftError):
    """Raised at the call site when an activity failed for good and its own exception cannot be rebuilt."""

    fault: Fault

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(message)
        self.fault = fault


class FlowEnded(AftError):
    """Base class for the ends of a run that have no result; ``fault`` is the cause, if there was one."""

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


class FlowCompensated(FlowEnded):
    """Raised by ``run.result()`` when the run failed and everything it had done was undone."""


class FlowFailed(FlowEnded):
    """Raised by ``run.result()`` when the run failed and a person let part of its undoing go."""


class FlowCancelled(FlowEnded):
    """Raised by ``run.result()`` when the run was cancelled and nothing was undone."""


class Recoverable(Exception):
    """Raise it in an activity to say: this will pass. ``after`` is how long to wait at the least.

    With ``on_signal`` the next try waits for that signal to the run, however long that takes; with both, for whichever
    comes first.
    """

    def __init__(
        self, *args: object, after: timedelta | float | str | None = None, on_signal: str | None = None
    ) -> None:
        super().__init__(*args)
        self.after = after
        self.on_signal = on_signal


class ResourceUnavailable(Recoverable):
    """Raise it in an activity to say: something that it needs cannot be had now; rules may have an answer to that."""


class Unrecoverable(Exception):
    """Raise it in an activity to say: trying again is pointless; undo what was done."""
