"""Schedule: a handle on a flow that is run at certain times. It holds a name and reads the database each time."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from aft.app.actors import name_of
from aft.app.components import Components
from aft.app.run import Run
from aft.errors import DefinitionError
from aft.flows.declare import context
from aft.flows.declare import options as checks
from aft.flows.declare.calls import Call
from aft.flows.declare.checks import check_name
from aft.flows.declare.flow import Flow
from aft.flows.declare.options import Duration
from aft.ids import RunId
from aft.run_options import RunOptions
from aft.runs.schedules import calendar, fire, schedule_rows
from aft.runs.schedules.calendar import CatchUp, Timing
from aft.runs.schedules.schedule_rows import STORED_OPTIONS, NewSchedule, ScheduleRow
from aft.telemetry import RunStarted
from aft.texts import choose, format_value


class Schedule:
    """A flow that is run at certain times. Thread-safe."""

    def __init__(self, app: Components, name: str) -> None:
        self._app = app
        self.name = name

    @property
    def row(self) -> ScheduleRow:
        """Its row, as it is now; raises UnknownSchedule if it was removed."""
        with self._app.store.read() as connection:
            return schedule_rows.get_schedule(connection, self._app.namespace, self.name)

    @property
    def last_run(self) -> Run | None:
        """The latest run that it made, if there is one."""
        run_id = self.row.last_run_id
        return None if run_id is None else Run(self._app, RunId(run_id))

    def pause(self, *, by: str | None = None) -> None:
        """Stop firing it until ``resume``; raises OrderRefused if it is paused."""
        with self._app.store.write() as connection:
            schedule_rows.pause(connection, self._app.namespace, self.name, name_of(by))

    def resume(self, *, by: str | None = None) -> None:
        """Fire it again, from its next occurrence on; raises OrderRefused if it is not paused."""
        with self._app.store.write() as connection:
            schedule_rows.resume(connection, self._app.namespace, self.name, name_of(by))

    def remove(self, *, by: str | None = None) -> None:
        """Delete it; its runs stay, and go on."""
        with self._app.store.write() as connection:
            schedule_rows.remove(connection, self._app.namespace, self.name, name_of(by))

    def run_now(self, *, by: str | None = None) -> Run:
        """Make a run now, besides its occurrences; raises OrderRefused if that would overlap, and must not."""
        app = self._app
        with app.store.write() as connection:
            row = schedule_rows.lock(connection, app.namespace, self.name)
            made = fire.run_now(connection, row, name_of(by), app.clock.now(), app.settings.grace)
        app.telemetry.emit(RunStarted(run=made.id, flow=made.flow))
        return Run(app, made.id)

    def __repr__(self) -> str:
        return f"<schedule {self.name!r}>"


def new_schedule(
    namespace: str,
    name: str,
    call: Call[Any],
    *,
    cron: str | None,
    every: Duration | None,
    zone: str,
    catch_up: str,
    overlap: bool,
    pinned: bool,
) -> NewSchedule:
    """Validate the declaration of a schedule; raises DefinitionError or CodecError."""
    flow = _called_flow(check_name("a schedule", name), call)
    of = f"schedule {name!r}"
    timing = Timing(cron, checks.check_duration(of, "every", every), zone)
    try:
        calendar.check_timing(timing)
    except DefinitionError as error:
        raise DefinitionError(f"{of}: {error}") from None
    return NewSchedule(
        namespace=namespace,
        name=name,
        flow=flow.name,
        version=flow.version if checks.check_bool(f"{of}: pinned", pinned) else None,
        declared_version=flow.version,
        args=flow.arguments.encode(flow.arguments.bind(call.args, call.kwargs)),
        timing=timing,
        catch_up=choose(f"{of}: catch_up", catch_up, CatchUp, DefinitionError),
        overlap=checks.check_bool(f"{of}: overlap", overlap),
        options=_run_options(of, flow.run_options),
    )


def _called_flow(name: str, call: Call[Any]) -> Flow[Any, Any]:
    if context.flow_context() is not None:
        raise DefinitionError(
            f"schedule {name!r} was declared in a flow's own code, which a replay would do again; do it in an activity"
        )
    if isinstance(call, Flow):
        raise DefinitionError(
            f"schedule {name!r} is of a call, with the arguments of its runs; write {call.fn.__name__}.call(…)"
        )
    if not isinstance(call, Call) or not isinstance(call.target, Flow):
        raise DefinitionError(
            f"schedule {name!r} is of {format_value(call, 100)}, which is not a flow's call; write flow.call(…)"
        )
    return call.target


def _run_options(of: str, options: RunOptions) -> RunOptions:
    """Return the options of a schedule's runs; raises DefinitionError for those that its runs cannot have."""
    given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    if others := [name for name in given if name not in STORED_OPTIONS]:
        named = " and ".join(f"{name}=" for name in others)
        raise DefinitionError(f"{of}: its runs have keys and times of their own; leave out {named}")
    return options
