"""The checks of ``aft doctor``: each examines one thing, reports its state and what to do, and never raises.

The database or the broker may be away: what can still be checked is checked. Checks change nothing; a SQLite file that
does not exist is not created.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from aft import durations
from aft.app import Aft
from aft.app.process import Role
from aft.app.views import health
from aft.app.views.health import Backlog, Health
from aft.brokers.base import Topology
from aft.cli.application import is_missing
from aft.cli.commands.broker import is_wrong, needed_waits, wanted_topology
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import short_id, shorten
from aft.errors import AftError
from aft.runs.records.notices import receiver
from aft.runs.schedules import schedule_rows
from aft.runs.schedules.schedule_rows import ScheduleRow
from aft.store import schema
from aft.store.sqlite.file_identity import resolve
from aft.store.sqlite.private_files import find_untrusted_files, is_open_to_others

#: A normal wait in the outbox: the relay polls it.
NORMAL_BACKLOG = timedelta(seconds=5)
#: Characters of a parked run's reason.
MOST_REASON = 100


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"  #: worth knowing; nothing is lost or stuck
    PROBLEM = "problem"  #: a person has to act


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, its state, and what to do about it."""

    name: str
    state: CheckState
    says: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force, and where it comes from."""

    name: str
    value: str
    source: str


def ok(name: str, says: str) -> Check:
    return Check(name, CheckState.OK, says)


def warning(name: str, says: str, advice: str = "") -> Check:
    return Check(name, CheckState.WARNING, says, advice)


def problem(name: str, says: str, advice: str) -> Check:
    return Check(name, CheckState.PROBLEM, says, advice)


def settings_of(app: Aft, given: ConnectionOptions, app_name: str) -> list[Setting]:
    """Return the settings in force; URLs without their passwords, secrets as stars."""
    shown = {"database_url": app.store.url}
    if app.settings.broker_url != "embedded":
        shown["broker_url"] = app.broker.url
    if app.settings.notify_parked_url is not None:
        shown["notify_parked_url"] = receiver(app.settings.notify_parked_url)  # the path may hold a token
    return [
        Setting(field, shown.get(field) or _format(getattr(app.settings, field)), _source(field, given, app_name))
        for field in type(app.settings).model_fields
    ]


def _format(value: object) -> str:
    if isinstance(value, timedelta):
        return durations.format(value)
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _source(field: str, given: ConnectionOptions, app_name: str) -> str:
    if app_name:
        return app_name
    variable = f"AFT_{field.upper()}"
    return given.named.get(field) or (variable if os.environ.get(variable) else "default")


class Examination:
    """Examines one application. The checks come one by one, as each takes its time."""

    def __init__(self, app: Aft) -> None:
        self._app = app
        self.health: Health | None = None

    def checks(self) -> Iterator[Check]:
        """Run every check, and yield each result."""
        yield from self._declarations()
        yield from self._transport()
        database = list(self._database())
        yield from database
        ready = all(check.state is CheckState.OK for check in database)
        yield from self._broker(ready)
        if ready:
            yield from self._namespace()

    # Code, database, broker -------------------------------------------------------------------------------------

    def _declarations(self) -> Iterator[Check]:
        known = self._app.registry.known
        if not known:
            return
        try:
            self._app.registry.check()
        except AftError as error:
            yield problem("flows", str(error), "correct the declaration")
            return
        yield ok("flows", ", ".join(f"{name}@{version}" for name, version in known))

    def _transport(self) -> Iterator[Check]:
        """Warn of unencrypted connections; the settings allow them, or the application would not have started."""
        advice = "use TLS that verifies the server, and unset AFT_ALLOW_INSECURE_TRANSPORT (docs/security.md)"
        for name, found in (("database", self._app.store.exposure), ("broker", self._app.broker.exposure)):
            if found is not None and not (name == "broker" and self._app.settings.broker_url == "embedded"):
                yield warning("transport", f"others could read the traffic to the {name}: {found}", advice)

    def _database(self) -> Iterator[Check]:
        app = self._app
        try:
            if is_missing(app):
                yield warning("database", f"{app.store.url}: no database yet; the first run creates it")
                return
            with app.store.read() as connection:
                version = health.server_version(connection)
            found = schema.current(app.store)
        except AftError as error:
            first = "start it" if app.store.file is None else "check its file and directory"
            yield problem("database", str(error), f"{first}, or correct AFT_DATABASE_URL or --database")
            return
        yield ok("database", f"{app.store.url} ({version})")
        if app.store.file is not None:
            yield from _check_files(app.store.file)
        yield self._schema(found)

    def _schema(self, found: str | None) -> Check:
        if found == schema.HEAD:
            return ok("schema", f"{found}, as needed")
        if found is None and self._app.store.dialect == "sqlite":
            return warning("schema", "no aft tables yet; the first run creates them")
        has = "no aft tables" if found is None else f"at {found}"
        newer = found is not None and found > schema.HEAD
        advice = "use the newer aft that migrated it" if newer else "run `aft db upgrade`"
        return problem("schema", f"{has}; this aft needs {schema.HEAD}", advice)

    def _broker(self, ready: bool) -> Iterator[Check]:
        app = self._app
        if app.settings.broker_url == "embedded":
            if not ready:
                yield warning("broker", "embedded, in that database; its queues cannot be checked yet")
                return
            yield ok("broker", "embedded, in the database")
        try:
            topology = wanted_topology(app) if ready else Topology(app.namespace, needed_waits(app))
            found = app.broker.status(topology)
            version = app.broker.version()
        except (AftError, ValueError) as error:  # the latter: a wait that no queue can keep
            yield problem("broker", str(error), "start it, or correct AFT_BROKER_URL or --broker")
            return
        if app.settings.broker_url != "embedded":
            yield ok("broker", f"{app.broker.url} ({version})")
        wrong = [one for one in found if is_wrong(one)]
        if not wrong:
            yield ok("queues", f"{len(found)} declared, none differs")
        elif not any(one.exists for one in found):
            yield warning(
                "queues", "none declared yet", "a dispatcher declares them when it starts, or: aft broker declare"
            )
        else:
            for one in wrong:
                yield problem("queues", f"{one.name}: {one.problem}", "")

    # The namespace ----------------------------------------------------------------------------------------------

    def _namespace(self) -> Iterator[Check]:
        app = self._app
        try:
            with app.store.read() as connection:
                found = health.read_health(connection, app.namespace, app.settings.grace)
                scheduled = schedule_rows.listing(connection, app.namespace)
        except AftError as error:
            yield problem("runs", str(error), "see the database's own log")
            return
        self.health = found
        yield _workers(found, app.settings.lease)
        yield from _flows(found)
        yield from _parked(found)
        yield from _stuck(found)
        yield from _hanging(found)
        yield from _schedules(found, scheduled)
        yield _quarantine(found)


def _check_files(database: str) -> Iterator[Check]:
    if is_open_to_others(database):
        says = f"users other than its owner may read or write {database!r}, which holds arguments and results"
        yield warning("files", says, f"chmod go-rwx {shlex.quote(database)}*")
    for says in find_untrusted_files(resolve(database)):
        yield warning("files", says, "remove it: aft creates its own")


def _workers(found: Health, lease: timedelta) -> Check:
    work = sum(found.unfinished.values()) - found.waiting
    missing = [role.value for role in Role if role.value not in found.roles]
    if not missing:
        return ok("workers", f"{len(found.workers)} alive, with every role{_by_heartbeat(found, lease)}")
    start = "start one: `aft dispatcher MODULE`"
    if len(missing) == len(Role):
        says = f"no dispatcher is alive{_died(found, lease)}"
        if work:
            return problem("workers", f"{says}, and {count(work, 'unfinished run')} cannot go on", start)
        return warning("workers", says, start)
    says = f"no live process has the role {' or '.join(missing)}{_died(found, lease)}"
    advice = f"start one: `aft dispatcher {'MODULE ' if 'work' in missing else ''}--only {','.join(missing)}`"
    return problem("workers", says, advice)


def _by_heartbeat(found: Health, lease: timedelta) -> str:
    """Return which workers have no liveness lock; such a worker may be dead until its lease expires."""
    unseen = [worker for worker in found.workers if worker.roles and not worker.watched]
    if not unseen:
        return ""
    oldest = min(worker.heartbeat(lease) for worker in unseen)
    who = "it has" if len(unseen) == len(found.workers) == 1 else f"{len(unseen)} of them have"
    return f"; {who} no liveness lock, last heartbeat {format_age(found.at, oldest)} ago"


def _died(found: Health, lease: timedelta) -> str:
    """Return which process has died most recently."""
    died = [worker for worker in found.dead if worker.roles]
    if not died:
        return ""
    last = max(died, key=lambda worker: worker.expires_at)
    return f": {last.host} pid {last.pid} has died, last heartbeat {format_age(found.at, last.heartbeat(lease))} ago"


def format_age(at: datetime, since: datetime) -> str:
    """Format how long ago something was, in whole seconds."""
    return durations.format(timedelta(seconds=max(0, round((at - since).total_seconds()))))


def _flows(found: Health) -> Iterator[Check]:
    if "work" not in found.roles:
        return  # reported already
    for flow, runs in found.unserved.items():
        yield problem(
            "flows",
            f"{count(runs, 'unfinished run')} of {flow}, and no live worker has that flow: no worker can continue "
            f"{'it' if runs == 1 else 'them'}",
            "start a dispatcher with the module, and the version, that declares it",
        )


def _parked(found: Health) -> Iterator[Check]:
    if not found.parked_count:
        yield ok("parked", "no run waits for a person")
    for row in found.parked:
        short = short_id(row.id)
        yield problem(
            "parked",
            f"run {short} of {row.flow}@{row.version}: {shorten(row.reason or '', MOST_REASON)}",
            f"see `aft runs show {short}`; after the fix `aft runs retry {short}`",
        )
    if found.parked_count > len(found.parked):
        more = found.parked_count - len(found.parked)
        yield problem("parked", f"{more} more", "see `aft runs list --status parked`")


def _stuck(found: Health) -> Iterator[Check]:
    """Check for items that wait although they should not."""
    yield _waiting(found, found.undecided, "faults", "fault", "undecided", Role.INTAKE)
    if found.unpublished.since is None or found.at - found.unpublished.since < NORMAL_BACKLOG:
        yield ok("outbox", "no message has waited for long")
    else:
        yield _waiting(found, found.unpublished, "outbox", "message", "unpublished", Role.RELAY)
    yield _waiting(found, found.stalled, "stalled", "run", "stalled", Role.WORK, found.stalled_runs)
    yield _overdue(found)
    if found.orphans:
        says = f"{count(found.orphans, 'run')} owned by a dead worker"
        yield problem("orphans", says, _who(Role.SWEEP, found, "it rescues them"))
    if found.late_effects:
        says = f"{count(found.late_effects, 'effect')} arrived after their step was recorded or their run taken over"
        yield warning("late", says, _who(Role.SWEEP, found, "it decides about them"))
    if found.stuck_exlets.count:
        yield _waiting(found, found.stuck_exlets, "exlets", "exlet", "stuck", Role.INTAKE)
    if found.unheard.count or found.given_up:
        says = f"{count(found.unheard.count, 'notice')} not acknowledged yet, {found.given_up} given up"
        yield warning("notices", says, "check the receivers; a dispatcher's log names them, and the reasons")


def _overdue(found: Health) -> Check:
    if found.overdue.since is None:
        return ok("overdue", "no run takes longer than it was expected to")
    takes = "takes" if found.overdue.count == 1 else "take"
    says = (
        f"{count(found.overdue.count, 'run')} {takes} longer than expected{_named(found.overdue, found.overdue_runs)}"
    )
    return warning("overdue", says, "see `aft runs list --overdue`")


def _hanging(found: Health) -> Iterator[Check]:
    """Check for attempts that were given up and whose function has not returned."""
    for worker in found.workers:
        where, hanging = f"worker {worker.host} pid {worker.pid}", worker.hanging
        if hanging.is_full:
            yield problem(
                "hanging",
                f"{where} claims no run: {count(hanging.count, 'abandoned attempt')} of its own have not returned, "
                f"{hanging.most} may (AFT_MOST_ABANDONED)",
                "restart it; give the calls inside those activities a time limit of their own",
            )
        for call in hanging.oldest:
            age = format_age(found.at, call.since)
            yield warning(
                "hanging",
                f"run {short_id(call.run)}, step {call.path}: an attempt of {call.activity!r} was given up {age} ago "
                f"and has not returned; {where}",
                "give the call inside the activity a time limit of its own; restarting the worker ends it",
            )
        if (more := hanging.count - len(hanging.oldest)) > 0:
            yield warning("hanging", f"{more} more of {where}")


def _waiting(
    found: Health, backlog: Backlog, name: str, thing: str, how: str, role: Role, ids: Sequence[str] = ()
) -> Check:
    if backlog.since is None:
        return ok(name, f"no {thing} is {how}")
    oldest = f", the oldest for {format_age(found.at, backlog.since)}"
    says = f"{count(backlog.count, thing)} {how}{oldest}{_named(backlog, ids)}"
    return problem(name, says, _who(role, found, "see its log for errors"))


def _named(backlog: Backlog, ids: Sequence[str]) -> str:
    """Return the ids of the first of the counted runs."""
    if not ids:
        return ""
    more = f" and {backlog.count - len(ids)} more" if backlog.count > len(ids) else ""
    return f": {', '.join(short_id(one) for one in ids)}{more}"


def _who(role: Role, found: Health, otherwise: str) -> str:
    if role in found.roles:
        return f"a dispatcher with the role {role} is alive; {otherwise}"
    return f"start a dispatcher with the role {role}"


def _schedules(found: Health, scheduled: list[ScheduleRow]) -> Iterator[Check]:
    broken = [row for row in scheduled if row.broken is not None]
    live = [row for row in scheduled if row.broken is None and not row.paused]
    for row in broken:
        advice = f"declare it again, or correct its row and `aft schedules resume {row.name}`"
        yield problem("schedules", f"{row.name!r} is broken: {row.broken}", advice)
    if live and Role.SWEEP not in found.roles:
        yield problem("schedules", f"no live process fires {count(len(live), 'schedule')}", _who(Role.SWEEP, found, ""))
    elif live and not broken:
        yield ok("schedules", f"{count(len(live), 'schedule')} fired when due")


def _quarantine(found: Health) -> Check:
    if not found.quarantined:
        return ok("quarantine", "no message was refused")
    says = f"{count(found.quarantined, 'message')} refused by admission"
    return warning("quarantine", says, "see `aft faults list --quarantined`")


def count(number: int, thing: str) -> str:
    """Format a number of things."""
    return f"1 {thing}" if number == 1 else f"{number} {thing}s"
