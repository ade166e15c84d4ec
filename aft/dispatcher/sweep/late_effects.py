"""Decides about late effects: each is dropped, undone or parked (see ``runs.records.late_effects``).

Any number of processes may do so; rows that one has locked are skipped by the others. An effect whose run has an owner
is left for a later round. What the database refuses to change is tried again, and reported, with back-off. Emits:
EffectLate, RunParked, ServiceFailed.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, exists, update

from aft import names
from aft.compensation import late_frames
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.envelope import Message
from aft.fault import FaultState
from aft.ids import OrderId, new_id
from aft.recovery.backoff import Backoff
from aft.runs import park
from aft.runs.records import inbox, late_effects
from aft.runs.records.late_effects import FoundEffect, LateDecision
from aft.runs.wakes import wake
from aft.store import outbox
from aft.store.db_time import now
from aft.store.refusals import is_about_rows
from aft.store.tables import faults, runs
from aft.telemetry import EffectLate, RunParked, ServiceFailed
from aft.texts import describe_error


class LateEffectSweep:
    """Decides about the late effects of one namespace. One thread at a time."""

    def __init__(self, deps: DispatcherDependencies, batch: int) -> None:
        """``batch`` is the number of effects that one round decides about."""
        self._namespace = deps.namespace
        self._store = deps.store
        self._clock = deps.clock
        self._telemetry = deps.telemetry
        self._grace = deps.grace
        self._batch = batch
        self._put_off = Backoff(deps.clock)

    def sweep(self) -> int:
        """Decide about a batch of late effects: drop, undo or park each; return how many were decided."""
        with self._store.read() as connection:
            found = [one.id for one in late_effects.find_open(connection, self._namespace, self._batch, lock=False)]
        put_off = self._put_off.waiting()
        ids = [effect_id for effect_id in found if effect_id not in put_off]
        if not ids:
            return 0
        try:
            if not put_off:
                return self._decide_together()
        except Exception as error:
            if not is_about_rows(error):
                raise
        # One of them cannot be decided as it should; the others can.
        decided = {effect_id: self._decide_alone(effect_id) for effect_id in ids}
        self._put_off.note(effect_id for effect_id, count in decided.items() if count is None)
        return sum(count or 0 for count in decided.values())

    def _decide_together(self, just: str | None = None, refused: str | None = None) -> int:
        """Decide about all open late effects, or ``just`` one, in one transaction; ``refused``: why it is parked."""
        decided: list[tuple[FoundEffect, LateDecision]] = []
        with self._store.write() as connection:
            for effect in late_effects.find_open(connection, self._namespace, self._batch, just):
                decision = late_effects.decide(effect) if refused is None else LateDecision.PARK
                if decision is not LateDecision.WAIT and self._write(connection, effect, decision, refused):
                    decided.append((effect, decision))
        for effect, decision in decided:
            self._emit(effect, decision, refused)
        return len(decided)

    def _decide_alone(self, effect_id: str) -> int | None:
        """Decide about one late effect; if the database refuses, park its run with the reason.

        Return how many were decided; None if the database refuses that, too, which is reported.
        """
        refused: str | None = None
        for _ in range(2):
            try:
                return self._decide_together(effect_id, refused)
            except Exception as error:
                if not is_about_rows(error):
                    raise
                refused = describe_error(error)
        self._telemetry.emit(ServiceFailed(service="sweep", why=f"late effect {effect_id}: {refused}"))
        return None

    def _write(self, connection: Connection, found: FoundEffect, decision: LateDecision, refused: str | None) -> bool:
        if decision is LateDecision.UNDO and not self._owe(connection, found):
            return False
        if decision is LateDecision.PARK and not self._park(connection, found, refused):
            return False
        if decision is not LateDecision.UNDO:
            late_effects.close(connection, found.id, decision)
        return True

    def _owe(self, connection: Connection, found: FoundEffect) -> bool:
        """Push a frame for the effect, and wake the run to undo it before it goes on, or stays ended."""
        effect, order = found.effect, OrderId(new_id())
        row = connection.execute(
            update(runs)
            .where(*_is_free(found))
            .values(seq=runs.c.seq + 1, updated_at=now(), **wake.wake_up(order, self._grace))
            .returning(runs.c.seq, runs.c.flow, runs.c.version)
        ).one_or_none()
        if row is None:
            return False  # the run has an owner just now; the next round tries again
        late_frames.push_late_frame(connection, found, row.seq, self._clock.now())
        message = Message.about_order(effect.run_id, order, self._clock.now())
        address = names.resume_run(self._namespace, row.flow, row.version)
        outbox.put(connection, self._namespace, [(address, message.encode())])
        return True

    def _park(self, connection: Connection, found: FoundEffect, refused: str | None) -> bool:
        """Park the run unless it has an owner; its waits stay in its row, for when a person resumes it."""
        run_id = found.effect.run_id
        wake.lock(connection, self._namespace, run_id)
        if inbox.find_new_order(connection, run_id) is not None:
            return False  # carried out first: its owner would not know what the run was parked for
        return park.park(connection, run_id, _reason(found, refused), *_is_free(found))

    def _emit(self, found: FoundEffect, decision: LateDecision, refused: str | None) -> None:
        effect = found.effect
        self._telemetry.emit(
            EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, decision=decision.value)
        )
        if decision is LateDecision.PARK:
            self._telemetry.emit(RunParked(run=effect.run_id, reason=_reason(found, refused)))


def _is_free(found: FoundEffect) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that the run has no owner, and may be woken or parked for a late effect now.

    An ended run handles one late effect after the other. Any other may be in a ladder, or wait: it is woken as by a
    signal; only a fault that is not decided yet comes first.
    """
    here = (
        runs.c.id == found.effect.run_id,
        runs.c.worker_id.is_(None),
        runs.c.status == found.status.value,
    )
    if found.status.ended:
        live = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.PARKED)
        return (*here, runs.c.wake_id.is_(None), ~_has_fault(live))
    return (*here, ~_has_fault((FaultState.OPEN,)))


def _has_fault(states: Collection[FaultState]) -> ColumnElement[bool]:
    return exists().where(faults.c.run_id == runs.c.id, faults.c.state.in_([state.value for state in states]))


def _reason(found: FoundEffect, refused: str | None) -> str:
    effect = found.effect
    went_on = "ended" if found.status.ended else "gone on"
    why = "has no compensator" if refused is None else f"cannot be undone: {refused}"
    return (
        f"late effect: activity {effect.activity!r} (step {effect.path}) had its effect after the run had {went_on} "
        f"without it, and {why}; undo it by hand, then retry"
    )
