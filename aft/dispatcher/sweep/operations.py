"""Carries out operations: one order to many runs, in batches (``runs.operations.carry_out``).

Any number of dispatchers may do this; one at a time decides about each operation. An operation that cannot be carried
out stops no other. Emits: OperationStopped, OperationEnded, ServiceFailed.
"""

from __future__ import annotations

from aft.dispatcher.dependencies import DispatcherDependencies
from aft.errors import OrderRefused
from aft.ids import RunId
from aft.recovery.backoff import Backoff
from aft.runs.operations import carry_out
from aft.runs.operations.operation_rows import OperationRow
from aft.store.refusals import is_about_rows, is_locked
from aft.telemetry import ServiceFailed
from aft.texts import describe_error

#: Operations that one round looks at.
BATCH = 50
#: Seconds between two looks for operations that are made meanwhile.
PAUSE = 1.0


class OperationExecutor:
    """Carries out the operations of one namespace. One thread at a time."""

    def __init__(self, deps: DispatcherDependencies) -> None:
        self._deps = deps
        self._store = deps.store
        #: Operations that cannot be carried out: tried again later each time.
        self._broken = Backoff(deps.clock)

    def step(self) -> float:
        """Carry out what is due now; return the seconds until the next look."""
        if not self._store.query([(carry_out.ANY_DUE, self._deps.namespace)])[0]:
            return PAUSE
        with self._store.read() as connection:
            due = carry_out.find_due(connection, self._deps.namespace, BATCH)
        put_off, broken = self._broken.waiting(), list[str]()
        for operation_id in due:
            if operation_id in put_off:
                continue
            try:
                self._advance(operation_id)
            except Exception as error:
                if not is_about_rows(error):
                    raise
                broken.append(operation_id)
                self._deps.telemetry.emit(ServiceFailed(service="operations", why=f"{operation_id}: {error}"))
        self._broken.note(broken)
        return carry_out.LOOK

    def _advance(self, operation_id: str) -> None:
        with self._store.write() as connection:
            planned = carry_out.plan_round(connection, operation_id)
        if planned is None:
            return
        for event in planned.events:
            self._deps.telemetry.emit(event)
        if planned.run_ids:
            given = sum(self._order(planned.row, run_id) for run_id in planned.run_ids)
            with self._store.write() as connection:
                carry_out.end_round(connection, planned.row, given)

    def _order(self, row: OperationRow, run_id: RunId) -> bool:
        """Give one run its order; a run that somebody has locked gets it in a later round."""
        try:
            with self._store.write() as connection:
                return carry_out.give_order(connection, row, run_id, self._deps.clock.now(), self._deps.grace)
        except OrderRefused as refused:
            why = str(refused)
        except Exception as error:
            if is_locked(error):
                return False
            if not is_about_rows(error):
                raise
            why = f"it cannot be ordered: {describe_error(error)}"
        with self._store.write() as connection:
            carry_out.refuse(connection, row, run_id, why)
        return False
