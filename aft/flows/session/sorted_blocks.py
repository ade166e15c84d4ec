"""Sorts the blocks of a run's branches, and computes the run's status and due times from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from aft.flows.session.blocks import (
    Block,
    InboxChanged,
    OrdersArrived,
    ParkNeeded,
    ReleaseNeeded,
    RetryPending,
    StepFailed,
    SuspensionNeeded,
    WaitPending,
    WakeAt,
    WriteFailed,
)
from aft.runs.states import Status


@dataclass(frozen=True, slots=True)
class SortedBlocks:
    """The blocks of all branches of a run, by type."""

    failed: list[StepFailed]
    in_ladder: list[RetryPending]
    waits: list[WaitPending]
    parked: list[ParkNeeded]
    suspension: SuspensionNeeded | None
    release_needed: ReleaseNeeded | None
    wake_at: WakeAt | None = None

    @property
    def status(self) -> Status | None:
        """The status in which the run is released; None: unchanged."""
        if self.parked:
            return Status.PARKED
        if self.suspension is not None:
            return Status.SUSPENDED
        blocks: list[StepFailed | RetryPending | WaitPending] = [*self.failed, *self.in_ladder, *self.waits]
        given = {block.status for block in blocks}
        return next((status for status in (Status.RECOVERING, Status.WAITING) if status in given), None)

    @property
    def is_stop(self) -> bool:
        """Whether only a person can make it go on."""
        return bool(self.parked) or self.suspension is not None

    @property
    def reason(self) -> str | None:
        """Why it is parked or suspended."""
        return self.parked[0].reason if self.parked else self.suspension.why if self.suspension else None

    @property
    def begins_more(self) -> bool:
        """Whether it has steps to begin as soon as its failures are known not to be final."""
        return self.wake_at is not None and self.wake_at.begins_more

    @property
    def is_single_failure(self) -> bool:
        """Whether its only content to be written is the failure of one step."""
        others = (*self.in_ladder, *self.waits, *self.parked, self.suspension, self.release_needed, self.begins_more)
        return len(self.failed) == 1 and not any(others) and not (self.failed[0].written or self.failed[0].items)

    def due(self, grace: timedelta) -> tuple[datetime | None, datetime | None]:
        """Return (due_at, sweep_at): when the run may continue, and when the timer claims it if no message came."""
        tries = [block.fault for block in self.in_ladder if block.fault.due_at is not None]
        deadline = None if self.wake_at is None else self.wake_at.until
        limits = [limit for limit in (*(block.wait.until for block in self.waits), deadline) if limit is not None]
        due = [*(fault.due_at for fault in tries if fault.due_at), *limits]
        sweep = [*(fault.due_at + (grace if fault.queue else timedelta(0)) for fault in tries if fault.due_at), *limits]
        return min(due, default=None), min(sweep, default=None)


def sort(blocks: Sequence[Block]) -> SortedBlocks:
    """Sort the blocks of a run; raises InboxChanged if it has to be read again, and the error of a failed write."""

    def all_of(kind: type[Any]) -> list[Any]:
        return [block for block in blocks if isinstance(block, kind)]

    def one_of(kind: type[Any]) -> Any:
        return next(iter(all_of(kind)), None)

    if lost := one_of(WriteFailed):
        raise lost.error
    # A run that parks must do so, or its step would be executed again; it is woken for its orders afterwards.
    if one_of(OrdersArrived) and all(block.stays for block in all_of(ParkNeeded)):
        raise InboxChanged
    return SortedBlocks(
        all_of(StepFailed),
        all_of(RetryPending),
        all_of(WaitPending),
        all_of(ParkNeeded),
        one_of(SuspensionNeeded),
        one_of(ReleaseNeeded),
        one_of(WakeAt),
    )
