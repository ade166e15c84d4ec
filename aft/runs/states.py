"""The states of a run and the edges between them, which every change of state is checked against.

Also the states of a frame (see ``compensation.stack``).
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The state of a run."""

    RUNNING = "running"  #: a worker executes it, or will as soon as one is free
    WAITING = "waiting"  #: for a signal, a timer or a child
    RECOVERING = "recovering"  #: a fault is in the ladder
    COMPENSATING = "compensating"  #: what it did is being undone
    SUSPENDED = "suspended"  #: stopped by hand or by a rule
    PARKED = "parked"  #: waits for a person, with a reason
    COMPLETED = "completed"  #: it has its result
    COMPENSATED = "compensated"  #: it failed, and everything owed was undone
    FAILED = "failed"  #: it was undone, but part of what it did stands, or may
    CANCELLED = "cancelled"  #: it was cancelled, and nothing was undone

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self in ENDS


#: States in which nothing more happens by itself.
ENDS = frozenset({Status.COMPLETED, Status.COMPENSATED, Status.FAILED, Status.CANCELLED})
#: States in which a run goes forward by itself.
GOING = (Status.RUNNING, Status.WAITING, Status.RECOVERING)

#: Every edge. An ended run is parked only for a late effect, and returns to its end from there; one that was
#: compensated becomes failed if a person skips the undo of that effect.
EDGES: dict[Status, frozenset[Status]] = {
    Status.RUNNING: frozenset(
        {
            Status.WAITING,
            Status.RECOVERING,
            Status.COMPENSATING,
            Status.SUSPENDED,
            Status.PARKED,
            Status.COMPLETED,
            Status.CANCELLED,
        }
    ),
    Status.WAITING: frozenset(
        {
            Status.RUNNING,
            Status.RECOVERING,
            Status.COMPENSATING,
            Status.SUSPENDED,
            Status.PARKED,
            Status.CANCELLED,
        }
    ),
    Status.RECOVERING: frozenset(
        {Status.RUNNING, Status.COMPENSATING, Status.SUSPENDED, Status.PARKED, Status.CANCELLED}
    ),
    Status.COMPENSATING: frozenset({Status.COMPENSATED, Status.FAILED, Status.PARKED}),
    Status.SUSPENDED: frozenset(
        {
            Status.RUNNING,
            Status.WAITING,
            Status.RECOVERING,
            Status.COMPENSATING,
            Status.PARKED,
            Status.CANCELLED,
        }
    ),
    Status.PARKED: frozenset({Status.RUNNING, Status.COMPENSATING, Status.RECOVERING, *ENDS}),
    Status.COMPLETED: frozenset({Status.COMPENSATING, Status.PARKED}),
    Status.COMPENSATED: frozenset({Status.PARKED, Status.FAILED}),
    Status.FAILED: frozenset({Status.PARKED}),
    Status.CANCELLED: frozenset({Status.PARKED}),
}


def allowed(current: Status, to: Status) -> bool:
    """Return whether a run may go from one state to another; staying is always allowed."""
    return to is current or to in EDGES[current]


def sources(to: Status) -> list[Status]:
    """Return the states from which a run may change to ``to``: a guarded write that changes the state requires one."""
    return [status for status in Status if allowed(status, to)]


class FrameState(StrEnum):
    """The state of a frame."""

    ARMED = "armed"  #: pushed before its activity was called; owed whatever its outcome
    OWED = "owed"  #: its activity completed
    LATE = "late"  #: pushed for a late effect
    UNDONE = "undone"  #: its compensator ran
    SKIPPED = "skipped"  #: a person skipped it
    DONE = "done"  #: a person undid it by hand
    KEPT = "kept"  #: the run went past its pivot: what it did stands
