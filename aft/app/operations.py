"""Operations: one order to many runs, given in growing batches by the dispatchers, until too many fail again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from aft.app.actors import name_of
from aft.app.components import Components
from aft.app.run import Run
from aft.app.run_filter import run_filter
from aft.app.steered_run import encode_by_name
from aft.codec import value_codec
from aft.errors import DefinitionError, OrderRefused, StoreError
from aft.flows.declare import options as checks
from aft.flows.declare.options import Duration
from aft.ids import RunId, new_id
from aft.runs.find.find_runs import RunFilter
from aft.runs.operations import operation_rows, selection
from aft.runs.operations.give_order import MEANT_FOR
from aft.runs.operations.operation_rows import (
    NewOperation,
    OperationRow,
    OperationState,
    OutcomeState,
    Verb,
)
from aft.runs.operations.selection import OperationPreview
from aft.texts import MOST_NOTE, check_storable, choose, format_value

#: The share of runs that may fail again, if the caller does not say.
BRAKE = 0.05
#: Seconds for which the runs of a batch are waited for, if the caller does not say.
PATIENCE = 60.0
#: Seconds between two looks of a caller that waits for an operation.
POLL = 0.2


class How(TypedDict, total=False):
    """How an operation is carried out, and by whom: see ``OperationDesk``."""

    brake: float
    rate: float | None
    patience: Duration
    note: str | None
    by: str | None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What came of an operation's order to one run."""

    run: Run
    state: OutcomeState
    batch: int | None
    note: str | None


class Operation:
    """One order to many runs. It holds an id and reads the database each time. Thread-safe."""

    def __init__(self, app: Components, operation_id: str) -> None:
        self._app = app
        self.id = operation_id

    @property
    def row(self) -> OperationRow:
        """Its row, as it is now; raises UnknownOperation if it was deleted."""
        with self._app.store.read() as connection:
            return operation_rows.find_operation(connection, self._app.namespace, self.id)

    @property
    def state(self) -> OperationState:
        """Its state now; a text: ``"open"``, ``"stopped"``, ``"done"``, …"""
        return self.row.state

    @property
    def counts(self) -> dict[OutcomeState, int]:
        """How many of its runs are in each state."""
        with self._app.store.read() as connection:
            return operation_rows.count(connection, self.id)

    def outcomes(self, state: str | OutcomeState | None = None, *, limit: int = 1000) -> list[RunOutcome]:
        """Return what came of each order, in the order in which the runs get it; only those in this state, if given."""
        checks.check_count("limit", limit, least=0)
        wanted = None if state is None else choose("state", state, OutcomeState, DefinitionError)
        with self._app.store.read() as connection:
            rows = operation_rows.outcomes(connection, self.id, wanted, limit)
        return [
            RunOutcome(Run(self._app, RunId(row.run_id)), OutcomeState(row.state), row.batch, row.note) for row in rows
        ]

    def pause(self, *, by: str | None = None) -> None:
        """Give no more orders until ``resume``; those that were given stand. Raises OrderRefused if it is not open."""
        with self._app.store.write() as connection:
            operation_rows.pause(connection, operation_rows.lock(connection, self._app.namespace, self.id), name_of(by))

    def resume(self, *, by: str | None = None) -> None:
        """Go on, though it was paused, or has stopped by itself: then with one run again. Raises OrderRefused."""
        with self._app.store.write() as connection:
            operation_rows.resume(
                connection, operation_rows.lock(connection, self._app.namespace, self.id), name_of(by)
            )

    def cancel(self, *, by: str | None = None) -> None:
        """End it: runs that have no order yet get none; orders that were given stand. Raises OrderRefused."""
        with self._app.store.write() as connection:
            operation_rows.cancel(
                connection, operation_rows.lock(connection, self._app.namespace, self.id), name_of(by)
            )

    def wait(self, timeout: Duration | None = None) -> OperationState:
        """Wait until it is not open any more, and return its state. Raises TimeoutError, which changes nothing."""
        patience = checks.check_patience("timeout", timeout)
        began = time.monotonic()
        while (state := self.state) is OperationState.OPEN:
            if patience is not None and time.monotonic() - began >= patience:
                raise TimeoutError(f"operation {self.id} is not done within {patience:g} s; it goes on")
            time.sleep(POLL)
        return state

    def __repr__(self) -> str:
        return f"<operation {self.id}>"


class OperationDesk:
    """Makes operations, and finds them. Thread-safe.

    Each verb gives its order to all runs that ``where`` finds when it is called (``app.runs``): to one first, then to
    five, and so on, as soon as those before have taken it. It stops by itself when more than the share ``brake`` of
    them has failed again, and goes on only when a person resumes it. ``rate`` limits the orders a second; ``patience``
    is how long the runs of one batch are waited for. If ``where`` names no state, a verb means all runs that can take
    it. Raises OrderRefused if there is no such run, or one is in another operation that has not ended.
    """

    def __init__(self, app: Components) -> None:
        self._app = app

    def retry(
        self, where: str, *, args: Mapping[str, Any] | None = None, step: str | None = None, **how: Unpack[How]
    ) -> Operation:
        """Retry what these runs are parked for; ``args`` and ``step`` as for ``Run.retry``."""
        payload: dict[str, Any] = {}
        if args is not None or step is not None:
            payload = {**_step(step), "args": encode_by_name(args or {})}
        return self._make(Verb.RETRY, where, payload, **how)

    def force_complete(self, where: str, result: Any, *, step: str | None = None, **how: Unpack[How]) -> Operation:
        """Give the result of the failed step of each run; it is checked when each run takes it."""
        encoded = json.loads(value_codec(Any).encode(result, "result"))
        return self._make(Verb.COMPLETE, where, {**_step(step), "result": encoded}, **how)

    def force_fail(self, where: str, *, step: str | None = None, **how: Unpack[How]) -> Operation:
        """Let the failed step of each run fail for good."""
        return self._make(Verb.FAIL, where, _step(step), **how)

    def suspend(self, where: str, **how: Unpack[How]) -> Operation:
        """Suspend these runs at their next steps."""
        return self._make(Verb.SUSPEND, where, {}, **how)

    def resume(self, where: str, **how: Unpack[How]) -> Operation:
        """Resume these runs, which are suspended."""
        return self._make(Verb.RESUME, where, {}, **how)

    def cancel(self, where: str, *, compensate: bool = True, **how: Unpack[How]) -> Operation:
        """Cancel these runs, and undo what they did; without ``compensate`` all stays as it is."""
        return self._make(Verb.CANCEL, where, {"compensate": checks.check_bool("compensate", compensate)}, **how)

    def compensate(self, where: str, **how: Unpack[How]) -> Operation:
        """Undo everything that these runs did, also those that have completed."""
        return self._make(Verb.COMPENSATE, where, {}, **how)

    def preview(self, verb: str | Verb, where: str) -> OperationPreview:
        """Return what an operation of this verb would be about, without making it."""
        chosen = choose("verb", verb, Verb, DefinitionError)
        wanted = self.find_meant(chosen, where)
        with self._app.store.read() as connection:
            return selection.preview(connection, self._app.namespace, wanted, chosen)

    def get(self, operation_id: str) -> Operation:
        """Return the operation with this id, or with an unambiguous part of it; raises UnknownOperation."""
        self._app.check()
        with self._app.store.read() as connection:
            return Operation(self._app, operation_rows.find_operation(connection, self._app.namespace, operation_id).id)

    def list(self, *, limit: int = 50) -> list[Operation]:
        """Return the newest operations, newest first."""
        checks.check_count("limit", limit, least=0)
        self._app.check()
        with self._app.store.read() as connection:
            found = operation_rows.listing(connection, self._app.namespace, limit)
            return [Operation(self._app, row.id) for row in found]

    def find_meant(self, verb: Verb, where: str) -> RunFilter:
        """Return the filter for the runs that a verb is given to; raises DefinitionError for one that means all."""
        self._app.check()
        if not isinstance(where, str) or not where.strip():
            raise DefinitionError(
                f"where={format_value(where)} would be all runs; say which, like 'status:parked flow:buy', or 'all'"
            )
        found = RunFilter() if where.strip() == "all" else run_filter(where, {}, self._app.clock.now())
        return found if found.statuses else found.with_statuses(MEANT_FOR[verb])

    def _make(
        self,
        verb: Verb,
        where: str,
        payload: Mapping[str, Any],
        *,
        brake: float = BRAKE,
        rate: float | None = None,
        patience: Duration = PATIENCE,
        note: str | None = None,
        by: str | None = None,
    ) -> Operation:
        check_storable("note", note, OrderRefused, lines=True, most=MOST_NOTE)
        if verb in (Verb.COMPLETE, Verb.FAIL) and not (note or "").strip():
            raise OrderRefused(f"to {verb.value} steps needs a note that says why")
        wanted = self.find_meant(verb, where)
        new = NewOperation(
            id=new_id(),
            namespace=self._app.namespace,
            verb=verb,
            payload=payload,
            wanted=where,
            brake=_check_number("brake", brake, most=1.0),
            rate=None if rate is None else _check_number("rate", rate, least=0.001, most=100_000.0),
            patience=checks.check_patience("patience", patience) or PATIENCE,
            made_by=name_of(by),
            note=note,
        )
        self._freeze(new, wanted)
        return Operation(self._app, new.id)

    def _freeze(self, new: NewOperation, wanted: RunFilter) -> None:
        try:
            with self._app.store.write() as connection:
                selection.freeze(connection, new, wanted)
        except StoreError as error:
            if not error.refused:
                raise
            # Another operation took some of these runs while this one was made: its name is in the error from here.
            with self._app.store.read() as connection:
                selection.check_free(connection, new.namespace, wanted)
            raise


def _step(step: str | None) -> dict[str, str]:
    check_storable("step", step, OrderRefused)
    return {} if step is None else {"step": step}


def _check_number(name: str, given: object, *, least: float = 0.0, most: float) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not is_number or not least <= float(given) <= most:  # type: ignore[arg-type]
        raise DefinitionError(f"{name}={format_value(given)} must be a number from {least:g} to {most:g}")
    return float(given)  # type: ignore[arg-type]
