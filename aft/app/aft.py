"""Aft, the application object: one database, one broker, one namespace; starts runs, reads them, runs a dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Iterable, Iterator
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from aft import after_fork
from aft.app.actors import current_user
from aft.app.components import Components
from aft.app.new_run import make_new_run
from aft.app.operations import OperationDesk
from aft.app.process import DispatcherProcess, Role
from aft.app.rules.rules import RuleDesk
from aft.app.run import Run
from aft.app.run_filter import Wanted, run_filter
from aft.app.schedule import Schedule, new_schedule
from aft.clock import Clock, SystemClock
from aft.config import Settings
from aft.errors import ConfigError, DefinitionError, UnknownSchedule
from aft.fault import Fault, FaultState
from aft.flows.declare import options as checks
from aft.flows.declare import registry
from aft.flows.declare.calls import Call
from aft.flows.declare.flow import Flow
from aft.flows.declare.options import Duration
from aft.flows.declare.registry import Registry, flow_names
from aft.flows.replay.runner import Runner
from aft.flows.session.dependencies import Dependencies
from aft.runs import run_rows, submit
from aft.runs.find import find_runs, read_groups
from aft.runs.find.find_runs import RunFilter
from aft.runs.find.read_groups import FailureGroup
from aft.runs.ownership.executing_runs import Expect
from aft.runs.records import faults
from aft.runs.run_rows import RunRow
from aft.runs.schedules import schedule_rows as schedules
from aft.security.redaction import hide_names
from aft.telemetry import RunStarted
from aft.texts import choose, require_text

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds that closing waits for attempts that were given up: a late effect in this time is recorded.
GIVEN_UP = 5.0


class Aft(Components):
    """Starts runs and gives access to them. Thread-safe. Making one connects to nothing; ``close()`` it at the end."""

    def __init__(
        self,
        database: str | None = None,
        broker: str | None = None,
        namespace: str | None = None,
        *,
        settings: Settings | None = None,
        registry: Registry = registry.declared,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(database, Settings):
            raise ConfigError("the first argument is a database's URL; give settings by name: Aft(settings=settings)")
        settings = settings or Settings.load(database_url=database, broker_url=broker, namespace=namespace)
        hide_names(settings.listed_names)
        super().__init__(settings, registry, clock or SystemClock())
        self._lock = threading.Lock()
        self._deps: Dependencies | None = None
        #: Rules and exlets: read and teach them.
        self.rules = RuleDesk(self)
        #: Operations: orders to many runs.
        self.operations = OperationDesk(self)
        after_fork.register(self)

    @classmethod
    def from_env(cls) -> Aft:
        """Make one from ``AFT_DATABASE_URL``, ``AFT_BROKER_URL``, ``AFT_NAMESPACE`` and the other settings."""
        return cls(settings=Settings.load())

    # Starting runs ----------------------------------------------------------------------------------------------

    @overload
    def start(self, flow: Flow[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    def start(self, flow: Flow[P, R], *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    def start(self, flow: Flow[..., Any], *args: Any, **kwargs: Any) -> Run[Any]:
        """Make a run and execute it here, in this thread, until it ends, waits or is handed over.

        With a key that already names a run, that run is returned, and nothing is executed.
        """
        new = make_new_run(self.namespace, flow, args, kwargs)
        if new.options.after is not None or new.options.at is not None:
            raise DefinitionError(
                f"app.start executes flow {flow.name!r} here and now; one that begins later goes to a dispatcher: "
                "app.submit"
            )
        self.registry.flow(new.flow, new.version)
        deps = self._own_dependencies()
        found: list[RunRow] = []

        def begin(expect: Expect) -> list[RunRow]:
            expect([new.id])
            row, made = submit.begin_alone(self.store, new, deps.lease.worker)
            found.append(row)
            return [row] if made else []

        for row in deps.executing.claim(begin):
            self.telemetry.emit(RunStarted(run=row.id, flow=row.flow))
            try:
                Runner(deps).run(row, fresh=True)
            finally:
                deps.executing.unregister(row.id)
            self.store.check_file()  # a run in a file that is gone is not durable
        return Run(self, found[0].id)

    @overload
    def submit(self, flow: Flow[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    def submit(self, flow: Flow[P, R], *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    def submit(self, flow: Flow[..., Any], *args: Any, **kwargs: Any) -> Run[Any]:
        """Make a run that a dispatcher executes. It is durable when this returns; needs no broker."""
        new = make_new_run(self.namespace, flow, args, kwargs)
        self.check()
        row, made = submit.enqueue_alone(self.store, new, self.clock.now(), self.settings.grace)
        if made:
            self.telemetry.emit(RunStarted(run=row.id, flow=row.flow))
        return Run(self, row.id)

    # Schedules --------------------------------------------------------------------------------------------------

    @overload
    def schedule(self, name: str, /) -> Schedule: ...
    @overload
    def schedule(
        self,
        name: str,
        call: Call[Any],
        /,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str = "UTC",
        catch_up: str = "skip",
        overlap: bool = False,
        pinned: bool = False,
    ) -> Schedule: ...
    def schedule(
        self,
        name: str,
        call: Call[Any] | None = None,
        /,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str = "UTC",
        catch_up: str = "skip",
        overlap: bool = False,
        pinned: bool = False,
    ) -> Schedule:
        """Run a flow at certain times: by a ``cron`` line, or ``every`` interval. One dispatcher does it, once each.

        Declaring it again with the same arguments changes nothing; with others, replaces it: modules may declare their
        schedules whenever they start. ``zone`` is the time zone of a cron line. ``catch_up`` decides about occurrences
        that no dispatcher was there for: ``"skip"`` none, ``"one"`` the latest, ``"all"`` each is made up for. Without
        ``overlap`` an occurrence is skipped while the previous run has not ended. Its runs are of the newest version of
        the flow that a live worker has; ``pinned``: of this one.

        With a name alone, returns the schedule of that name, or raises UnknownSchedule.
        """
        if call is None:
            return self._find_schedule(name)
        new = new_schedule(
            self.namespace,
            name,
            call,
            cron=cron,
            every=every,
            zone=zone,
            catch_up=catch_up,
            overlap=overlap,
            pinned=pinned,
        )
        self.check()
        with self.store.write() as connection:
            schedules.declare(connection, new, current_user())
        return Schedule(self, name)

    def _find_schedule(self, name: str) -> Schedule:
        require_text("name", name, UnknownSchedule)
        self.check()
        with self.store.read() as connection:
            return Schedule(self, schedules.get_schedule(connection, self.namespace, name).name)

    def schedules(self) -> list[Schedule]:
        """Return every schedule, by name."""
        self.check()
        with self.store.read() as connection:
            return [Schedule(self, row.name) for row in schedules.listing(connection, self.namespace)]

    # Looking ----------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run:
        """Return the run with this id, or with an unambiguous part of it; raises UnknownRun."""
        self.check()
        with self.store.read() as connection:
            return Run(self, run_rows.find_run(connection, self.namespace, run_id).id)

    def runs(self, where: str | None = None, *, limit: int = 50, **wanted: Unpack[Wanted]) -> list[Run]:
        """Return the newest runs for which all that is given is true, newest first.

        ``where`` is a text like ``"status:parked tag:region=eu text:'no answer'"``, with the words of the command line
        (docs/operating.md). ``overdue``: only those that should have ended by now; ``priority``: this one and above.
        """
        checks.check_count("limit", limit, least=0)
        found = self._filter(where, wanted)
        with self.store.read() as connection:
            return [Run(self, row.id) for row in find_runs.find(connection, self.namespace, found, limit=limit)]

    def iter_runs(self, where: str | None = None, **wanted: Unpack[Wanted]) -> Iterator[Run]:
        """Return all runs that ``runs`` would find without a limit; they are read page after page, as it goes on."""
        found = self._filter(where, wanted)
        return (Run(self, row.id) for row in find_runs.find_all(self.store, self.namespace, found))

    def count_runs(self, where: str | None = None, **wanted: Unpack[Wanted]) -> int:
        """Return how many runs ``runs`` would find without a limit; 100,000 at most."""
        found = self._filter(where, wanted)
        with self.store.read() as connection:
            return find_runs.count(connection, self.namespace, found)

    def _filter(self, where: str | None, wanted: Wanted) -> RunFilter:
        self.check()
        return run_filter(where, wanted, self.clock.now())

    def faults(self, *, state: str | FaultState | None = None, limit: int = 50) -> list[Fault]:
        """Return the newest faults, newest first."""
        checks.check_count("limit", limit, least=0)
        self.check()
        wanted = None if state is None else choose("state", state, FaultState, DefinitionError)
        with self.store.read() as connection:
            return faults.listing(connection, self.namespace, state=wanted, limit=limit)

    def failure_groups(self, *, since: Duration = "7d", limit: int = 20) -> list[FailureGroup]:
        """Return the failure groups with the most faults of late, largest first."""
        checks.check_count("limit", limit, least=0)
        window = checks.check_duration("failure_groups", "since", since)
        self.check()
        now = self.clock.now()
        with self.store.read() as connection:
            return read_groups.read_groups(connection, self.namespace, now - (window or timedelta()), now, limit)

    # Processes --------------------------------------------------------------------------------------------------

    def dispatcher(
        self, *, concurrency: int | None = None, only: Iterable[str | Role] | None = None
    ) -> DispatcherProcess:
        """Make what ``aft dispatcher`` runs; a context manager that starts it and drains it at the end."""
        named = list(Role) if only is None else [choose("only", role, Role, DefinitionError) for role in only]
        at_a_time = self.settings.concurrency if concurrency is None else concurrency
        return DispatcherProcess(self, frozenset(named), checks.check_count("concurrency", at_a_time, 1, 1000))

    def close(self) -> None:
        """End the lease, threads and connections. Idempotent."""
        with self._lock:
            deps, self._deps = self._deps, None
        if deps is not None:
            deps.abandoned.wait(GIVEN_UP)
        try:
            if deps is not None:
                deps.lease.end()
        finally:
            super().close()

    def forget_in_child(self) -> None:
        """After a fork: replace the lock, whose holder may not exist here; connections and lease are the parent's."""
        self._lock = threading.Lock()
        self._deps = None
        super().forget_in_child()

    def __enter__(self) -> Aft:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _own_dependencies(self) -> Dependencies:
        """Return the dependencies for runs that this process starts itself: a worker, made when first needed."""
        with self._lock:
            if self._deps is None:
                self.check()
                deps = self.make_deps(self.make_lease())
                self.begin_lease(deps, flows=flow_names(self.registry))
                self._deps = deps
            return self._deps
