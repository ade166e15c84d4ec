"""How a run leaves the flow's code, and why it cannot go on.

Leaving is not an error, so it derives from ``BaseException``: a user's ``except Exception`` does not swallow it. While
a run is leaving, every aft call raises it again; a plain ``finally`` in flow code runs each time the run leaves.

A step that cannot go on now is *blocked*, by one of the things below. Nothing is let go because of one: other branches
of the run may be at work. When none is any more, the runner lets go of the run, in one transaction for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from aft.errors import CodecError, ReplayDiverged
from aft.fault import Fault, FaultState
from aft.runs.inbox import Letter
from aft.runs.journal import Entry
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind


@dataclass(frozen=True, slots=True)
class Failed:
    """It raised, and nobody has decided about that yet; ``replaces`` are the faults whose place the new one takes.

    ``written``: the fault has its row already. ``status`` is what it makes of the run, None: no change.
    """

    fault: Fault
    status: Status | None
    replaces: tuple[str, ...] = ()
    written: bool = False
    #: Signals that its last try had waited for.
    letters: tuple[Letter, ...] = ()


@dataclass(frozen=True, slots=True)
class InLadder:
    """It failed, and its next try is not due yet."""

    fault: Fault
    status: Status | None


@dataclass(frozen=True, slots=True)
class Awaits:
    """It waits for a signal, a moment or a child."""

    wait: Wait
    status: Status | None = Status.WAITING


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A step whose outcome the journal forgets; ``same_key``: it is executed again under its key."""

    entry: Entry
    same_key: bool


@dataclass(frozen=True, slots=True)
class Parks:
    """A person has to look at it; ``reopens``: its step was recorded as failed, and shall be tried again after all.

    ``forgets`` are steps that a retry goes back before: the journal forgets them, and what they owe is undone.
    ``mistake`` is what the flow's code has raised by mistake: what it did while that travelled is to be forgotten.
    ``stays``: it was parked before, and what was asked since does not let it go on; ``answers`` are the orders that are
    read with that, each with why it was not carried out.
    """

    reason: str
    fault: Fault
    replaces: tuple[str, ...] = ()
    reopens: bool = False
    forgets: tuple[Forgotten, ...] = ()
    mistake: BaseException | None = None
    stays: bool = False
    answers: tuple[tuple[Letter, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Removes:
    """An exlet has taken it away, and with it the run: it ends as it is."""

    why: str


@dataclass(frozen=True, slots=True)
class GivesBack:
    """It could go on, but not here; ``doubt``: it has begun, and nobody knows what came of it."""

    why: str
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class Suspends:
    """A person asked it to stop, in ``letters``."""

    why: str
    letters: tuple[Letter, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Something could not be written, or a defect of aft: the run is no longer ours, or will soon not be."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class HasMail:
    """A person asks for something: the run begins anew with that."""


@dataclass(frozen=True, slots=True)
class NotBegun:
    """It is not begun any more: the run is undone once it is seen what came of the steps that are in doubt."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Blocks nothing itself: the run must be back by then, at its deadline, because a blocked step is told of it.

    ``begins_more``: or earlier, because it has steps to begin as soon as a failure is known not to be final.
    """

    until: datetime
    begins_more: bool = False


Block = Failed | InLadder | Awaits | Parks | Removes | GivesBack | Suspends | HasMail | NotBegun | WriteFailed | Bounded


def hears_mail(block: Block) -> bool:
    """Tell whether a block waits for something that comes into the inbox."""
    if isinstance(block, Awaits):
        return block.wait.kind is not WaitKind.SLEEP
    return isinstance(block, InLadder) and block.fault.signal is not None


def may_end(block: Block) -> bool:
    """Tell whether a block ends by itself: at a moment, or by something that comes into the inbox."""
    return isinstance(block, (Awaits, InLadder))


def ends_at(block: Block) -> datetime | None:
    """Return the moment at which a block ends by itself; None: no moment ends it."""
    if isinstance(block, Awaits):
        return block.wait.until
    if isinstance(block, InLadder) and block.fault.state is FaultState.WAITING:
        return block.fault.due_at
    return None


def is_over(block: Block, now: datetime) -> bool:
    """Tell whether the moment has come at which a block ends by itself."""
    end = ends_at(block)
    return end is not None and end <= now


def stay_parked(fault: Fault) -> Parks:
    """What keeps a step, or a run, that was parked for a fault before."""
    if fault.decided_at is None or fault.verdict is None:
        return Parks(fault.verdict or str(fault), fault, stays=True)
    return Parks(fault.spell_parked(fault.verdict), fault, stays=True)


def is_of_step(fault: Fault) -> bool:
    """Tell whether a fault stands against a step of the flow, its beginning or its end, and not a compensator."""
    return fault.path is not None and not fault.path.endswith("/undo")


class NewMail(Exception):
    """Raised when the run has to be read again: something has come for it, or was done that changes what was read."""


class Over(Exception):
    """Raised when the run has come to its end by what a person asked: there is nothing more to be done."""


class Anew(BaseException):
    """Raised through flow code when the run begins anew, with other arguments and an empty journal."""

    def __init__(self, args: str) -> None:
        super().__init__(args)
        self.encoded = args


class BranchRemoved(BaseException):
    """Raised in a task at the step that an exlet has taken away: the task ends there, with ``aft.REMOVED``."""


class Leave(BaseException):
    """Raised through flow code when the run leaves this process; ``blocks`` say why."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__(blocks)
        self.blocks: Sequence[Block] = blocks


#: What travels through flow code and is not its own: code that swallows it executes no further step.
CONTROL_FLOW = (Leave, Anew, BranchRemoved)


@contextmanager
def leave_if_kept(parking: Callable[[BaseException], Parks]) -> Iterator[None]:
    """Leave whatever keeps the engine from its work: it must not reach the flow's code as if a step had failed."""
    try:
        yield
    except Leave:
        raise
    except NewMail:
        raise Leave(HasMail()) from None
    except (ReplayDiverged, CodecError) as error:
        raise Leave(parking(error)) from error
    except BaseException as error:  # Ctrl-C, or a defect of aft, beside what cannot be read or written
        raise Leave(WriteFailed(error)) from error
