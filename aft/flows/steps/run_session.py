"""One run that its owner executes: what its steps share, and the writes of their outcomes and failures.

The branches of one run execute at the same time, each on its own thread. The owner orders their writes;
``flows.session.step_states`` holds what they share. A branch that fails beside others records its fault at once, so
that the failure counts even if the process dies while the others are at work. Nothing here releases the run: a step
that cannot go on raises ``Blocked``, and the runner releases the run when all its branches are at rest.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from aft.errors import ReplayDiverged
from aft.fault import Fault, FaultState
from aft.flows.course.course import Course
from aft.flows.exceptions import failures
from aft.flows.runtime.forks import ForkGuard
from aft.flows.session import release
from aft.flows.session.blocks import Blocked, ReleaseNeeded
from aft.flows.session.dependencies import Dependencies
from aft.flows.session.inbox import RunInbox
from aft.flows.session.step_states import StepStates
from aft.flows.steps.constraints import Constraints
from aft.flows.steps.request import OnRecorded
from aft.ids import StepPath
from aft.runs.ownership.owner import MOST_SHARED_DEATHS, Owner
from aft.runs.ownership.owner_writes import OwnerWrite, Recording, Then
from aft.runs.records import faults, journal
from aft.runs.records.journal import RESTARTED, Entry, EntryKind, Outcome
from aft.runs.states import Status
from aft.store.batch.row_format import Fields


class RunSession:
    """One owned run, for one pass over its code. Thread-safe."""

    def __init__(self, deps: Dependencies, owner: Owner, wake: str | None = None) -> None:
        self.deps = deps
        self.owner = owner
        #: The length of the inbox when this pass began.
        self.inbox_length = owner.inbox_seq
        self.run_inbox = RunInbox(owner, deps.clock)
        self.step_states = StepStates(owner, self.run_inbox, wake)
        self.constraints = Constraints(deps, owner)
        #: The process that the run is executed in: one that the user's code forks ends by itself.
        self.home = ForkGuard()
        #: The way that the flow's code has taken in this pass.
        self.course = Course()
        #: Paths of the tasks of an async flow.
        self.branches: set[str] = set()
        #: How many calls each parallel step has, by its path.
        self.widths: dict[str, int] = {}
        #: How many of them are executed at a time, where the code says so.
        self.limits: dict[str, int] = {}
        #: The savepoints that this pass has undone, by their paths, and the failure that each was undone for.
        self.undone: dict[str, Fault | None] = {}
        #: The failure that the run is being undone for, once that is known.
        self.cause: Fault | None = None
        #: Whether the flow's code executes steps one at a time, or several of them are tasks.
        self.is_async = False

    def key(self, path: str, generation: int | None = None) -> str:
        """Return a step's idempotency key: the same for every attempt of the step, and for no other step."""
        return f"{self.owner.run_id}/{self.generation(path) if generation is None else generation}/{path}"

    def generation(self, path: str) -> int:
        """Return the generation of a step's keys: the run's, plus an offset if the step was undone and starts again."""
        return self.owner.run.key_generation + self.step_states.undone.get(path, 0) * RESTARTED

    def concurrency_of(self, path: StepPath) -> int:
        """Return the concurrency limit of the call that this step belongs to; 0: none."""
        return self.limits.get(path.rpartition(".")[0], 0)

    def find_fault(self, fault_id: str) -> Fault | None:
        """Return the fault with this id, or None."""
        (rows,) = self.owner.query([(faults.NAMED, json.dumps([fault_id]))])
        return next((faults.read_failure(dict(zip(faults.NAMES, values, strict=True))) for values in rows), None)

    def find_cause(self) -> Fault | None:
        """Return the failure that the run is undone for, or None; one that cannot be read keeps nothing from that."""
        (rows,) = self.owner.query([(faults.NAMED, json.dumps([self.owner.run.fault_id or ""]))])
        return next((faults.read_safely(dict(zip(faults.NAMES, values, strict=True))) for values in rows), None)

    def find_failure(self, entry: Entry) -> Exception:
        """Rebuild the exception of a recorded failure, as the flow's code sees it.

        Raises ReplayDiverged if its fault was deleted from the database.
        """
        fault = self.find_fault(entry.fault_id or "")
        if fault is None:
            raise ReplayDiverged(
                f"step {entry.path} failed with fault {entry.fault_id}, which somebody has deleted from the database; "
                "bring it back from a backup and retry, or cancel the run"
            )
        return failures.rebuild(fault)

    def release_or_read_inbox(self) -> None:
        """Raise Blocked at a step's boundary if the run must be released here; else read new inbox items.

        It is released if this process drains, makes room for a solitary run, or has too many abandoned attempts; or if
        a solitary run has made progress and may share a process again. A solitary run makes no room itself: two of them
        would evict each other for ever.
        """
        why = None
        if self.deps.draining.is_set():
            why = "this process is stopping"
        elif self.deps.making_room.is_set() and not self.owner.solitary:
            why = "this process is needed for a run that must be executed alone"
        elif self.deps.abandoned.is_full:
            why = "this process begins nothing: too many attempts that it gave up have not returned"
        elif self.owner.run.deaths >= MOST_SHARED_DEATHS and not self.owner.solitary:
            why = "it got on, and need not be executed alone any more"
        if why is not None:
            raise Blocked(ReleaseNeeded(why))
        self.owner.write_held()
        self.run_inbox.read_new()

    @property
    def may_hold(self) -> bool:
        """Whether an outcome may be held back: no other step is at work, and the run has lost no worker lately."""
        return self.step_states.branches.at_work == 1 and not self.is_async and self.owner.run.deaths == 0

    # Recording ----------------------------------------------------------------------------------------------------

    def record(
        self,
        entry: Entry,
        then: Then | None = None,
        on_recorded: OnRecorded | None = None,
        **changes: Any,
    ) -> Entry:
        """Journal an outcome, with ``then`` in the same transaction; return the entry with its ``seq``."""
        recorded: list[Entry] = []

        def finish() -> None:
            recorded.append(self.numbered(entry))
            if on_recorded is not None:
                on_recorded(recorded[0])

        self.owner.write(self.recording(entry, more=then), finish, **changes)
        self.owner.remove_wait(entry.path)
        return recorded[0]

    def numbered(self, entry: Entry) -> Entry:
        """Give the entry that was written last its ``seq``; call it only while no other entry can be written."""
        entry.seq = self.owner.last_number
        return entry

    def record_undone(self, path: StepPath, scope: str, name: str) -> None:
        """Journal that a savepoint's frames were unwound."""
        at, generation = self.deps.clock.now(), self.owner.run.key_generation
        self.record(Entry(path, scope, EntryKind.SAVEPOINT, name, Outcome.UNDONE, at, key_generation=generation))

    def recording(self, entry: Entry, frame: Fields | None = None, more: Then | None = None) -> Recording:
        """Return the write that journals an outcome, closes its step's faults, and pushes ``frame`` if one is given."""
        state = FaultState.RESOLVED if entry.outcome is Outcome.OK else FaultState.FINAL
        fields = journal.fields(entry, self.owner.epoch, self.widths.get(entry.scope))
        write = OwnerWrite(entry=fields, frame=frame, closed_faults=self.step_states.closed_faults(entry.path, state))
        return Recording(write, self.step_states.with_signal_read(entry.path, more))

    # Failing ------------------------------------------------------------------------------------------------------

    def fail(self, path: StepPath, fault: Fault, status: Status | None) -> NoReturn:
        """Raise Blocked with a fault; beside other branches its row is written first, so that it survives a crash."""
        failed, alone = self.step_states.failed(path, fault, status)
        if not alone:
            self.owner.write(lambda connection, seq: release.write_fault(self.deps, self.owner, connection, failed))
            release.emit_raised(self.deps, fault)
            failed = self.step_states.note_written(failed)
        raise Blocked(failed)
