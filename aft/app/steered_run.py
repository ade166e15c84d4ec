"""SteeredRun: what a person may order a run to do. Each order is audited; a worker carries it out."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from aft.app.actors import name_of
from aft.app.components import Components
from aft.app.views import undo_preview
from aft.app.views.undo_preview import Undo
from aft.codec import value_codec
from aft.errors import CodecError, OrderRefused
from aft.fault import Fault
from aft.flows.declare import options as checks
from aft.ids import RunId
from aft.runs import erasure, run_rows
from aft.runs.orders import by_hand, failed_steps, steer
from aft.runs.orders.actor import Actor, Order
from aft.runs.run_rows import RunRow
from aft.runs.wakes import wake
from aft.store.sqlite.empty_log import empty_log
from aft.texts import MOST_NOTE, check_storable, require_text


class SteeredRun:
    """A run that takes orders. Thread-safe."""

    def __init__(self, app: Components, run_id: RunId) -> None:
        self._app = app
        self.id = run_id

    @property
    def row(self) -> RunRow:
        """Its row, as it is now."""
        with self._app.store.read() as connection:
            return run_rows.get_run(connection, self._app.namespace, self.id)

    def retry(
        self,
        *,
        args: Mapping[str, Any] | None = None,
        step: str | None = None,
        note: str | None = None,
        by: str | None = None,
    ) -> None:
        """Make it try again what it is parked for; a run in its ladder tries its failed steps before they are due.

        With ``args``, by name, a failed step begins its ladder anew with these in place of its own. ``step`` names it,
        by its number or its activity, if several have failed. Raises OrderRefused if there is nothing to be tried
        again; CodecError, or DefinitionError, if the activity is known here and takes no such arguments.
        """
        if args is None and step is None:
            self._order(failed_steps.retry, note, by)
            return
        fault = self.failed_step(step)
        encoded = self._encode_arguments(fault, args or {})
        self._order(functools.partial(failed_steps.retry_with, step=str(fault.path), args=encoded), note, by)

    def force_complete(self, result: Any, *, note: str, step: str | None = None, by: str | None = None) -> None:
        """Give the result of a step that has failed; it is not executed any more, and the flow goes on with it.

        The run is parked, or in its ladder; ``step`` as for ``retry``. The step's undo is owed only if it may have had
        its effect, as far as aft knows. Raises OrderRefused if no step has failed; CodecError if the activity is known
        here and cannot return that.
        """
        fault = self.failed_step(step)
        known = self._app.registry.activity(fault.name)
        encoded = (value_codec(Any) if known is None else known.result).encode(result, "result")
        order = functools.partial(failed_steps.complete, step=str(fault.path), result=json.loads(encoded))
        self._order(order, note, by)

    def force_fail(self, *, note: str, step: str | None = None, by: str | None = None) -> None:
        """Let a step that has failed fail for good: its last failure is raised in the flow's code.

        The run is parked, or in its ladder; ``step`` as for ``retry``. Raises OrderRefused if no step has failed.
        """
        fault = self.failed_step(step)
        self._order(functools.partial(failed_steps.fail, step=str(fault.path)), note, by)

    def failed_step(self, step: str | None = None) -> Fault:
        """Return the fault of the step that has failed; ``step`` as for ``retry``. Raises OrderRefused."""
        check_storable("step", step, OrderRefused)
        with self._app.store.read() as connection:
            row = run_rows.get_run(connection, self._app.namespace, self.id)
            return failed_steps.find(connection, row, step)

    def _encode_arguments(self, fault: Fault, args: Mapping[str, Any]) -> dict[str, Any]:
        """Encode arguments by name: as the activity declares them, if it is known here; else by their own types."""
        known = self._app.registry.activity(fault.name)
        if known is not None:
            return known.arguments.encode_some(args)
        return encode_by_name(args)

    def skip_frame(self, *, note: str, by: str | None = None) -> None:
        """Drop the frame that the run is parked for; it will end ``failed``, with the note."""
        self._order(by_hand.skip_frame, note, by)

    def frame_done(self, *, note: str, by: str | None = None) -> None:
        """Record that the frame the run is parked for was undone by hand; unwinding continues below it."""
        self._order(by_hand.frame_done, note, by)

    def release(self, *, note: str | None = None, by: str | None = None) -> None:
        """Take the run away from its owner, for another worker to continue. Raises OrderRefused if it has none."""
        self._order(by_hand.take_from_worker, note, by)

    def suspend(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Stop it at its next step, until ``resume``; signals are kept. Raises OrderRefused if it cannot be stopped."""
        self._order(steer.suspend, reason, by)

    def resume(self, *, note: str | None = None, by: str | None = None) -> None:
        """Continue it after ``suspend``, also if it has not stopped yet; else raises OrderRefused."""
        self._order(steer.resume, note, by)

    def cancel(self, *, compensate: bool = True, note: str | None = None, by: str | None = None) -> None:
        """Stop it for good at its next step, and undo everything; without ``compensate`` all stays as it is."""
        self._order(steer.cancel if checks.check_bool("compensate", compensate) else steer.cancel_as_is, note, by)

    def compensate(
        self, *, dry_run: bool = False, to: str | None = None, note: str | None = None, by: str | None = None
    ) -> list[Undo]:
        """Undo everything it did, though it has completed; a run that has not is cancelled.

        With ``to``, the name of a savepoint that it is in, only what it did since then: ``UndoneByHand`` is raised at
        its current step, and the flow may catch it and go on differently. Returns what is undone, in order, then what
        cannot be undone. With ``dry_run`` nothing is done; where the order would be refused, or the run is parked for a
        compensator, each obstacle says so.

        While a run is executed, only its owner knows which savepoints it is in; if that was lost, the next one. With
        ``to`` the owner then decides about the order at the next step, so an empty list is returned, and a dry run is
        refused. Any worker that has the compensators of its activities can do it, even if no worker has its flow any
        more. With ``to`` the flow is needed, as it goes on from there.
        """
        checks.check_bool("dry_run", dry_run)
        check_storable("to", to, OrderRefused)
        registry = self._app.registry if self._app.registry.known else None
        with self._app.store.read() as connection:
            row = run_rows.get_run(connection, self._app.namespace, self.id)
            scope = "" if to is None else steer.find_savepoint(row, to)
            found = [] if scope is None else undo_preview.plan(connection, row, registry, scope)
        if scope is None and dry_run:
            raise OrderRefused(f"{_format_owner(row)} knows which savepoints it is in")
        if not dry_run:
            order = steer.compensate if to is None else functools.partial(steer.undo_to, savepoint=to)
            self._order(order, note, by)
        return found

    def forget(self, *, note: str | None = None, by: str | None = None) -> list[RunId]:
        """Erase the data of it and of all runs below it; that they ran stays recorded. Return the erased runs' ids.

        Nothing of them can be undone after that. Raises OrderRefused if one has not ended, and for a child.
        """
        erased: list[RunId] = []

        def erase(connection: Connection, row: RunRow, actor: Actor) -> None:
            erased[:] = erasure.erase(connection, row, actor)

        self._order(erase, note, by)
        empty_log(self._app.store)
        return erased

    def _order(self, order: Order, note: str | None, by: str | None) -> None:
        check_storable("note", note, OrderRefused, lines=True, most=MOST_NOTE)
        actor = Actor(name_of(by), note, self._app.clock.now(), self._app.settings.grace)
        with self._app.store.write() as connection:
            order(connection, self._locked(connection), actor)

    def _locked(self, connection: Connection) -> RunRow:
        row = wake.lock(connection, self._app.namespace, self.id)
        return row or run_rows.get_run(connection, self._app.namespace, self.id)


def _format_owner(row: RunRow) -> str:
    if row.worker_id is not None:
        return f"run {row.id} is being executed: only its worker"
    return f"run {row.id} is not executed, and its worker was lost: only the next one"


def encode_by_name(args: Mapping[str, Any]) -> dict[str, Any]:
    """Encode arguments by their own types, as decoded JSON; raises CodecError."""
    for name in args:
        require_text("the name of an argument", name, CodecError)
    encoded: dict[str, Any] = json.loads(value_codec(Any).encode(dict(args), "args"))
    return encoded
