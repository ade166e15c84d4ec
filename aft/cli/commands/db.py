"""``aft db``: migrates the schema, and shows and checks its version."""

from __future__ import annotations

import click
from alembic.script import ScriptDirectory

from aft.app import Aft
from aft.cli.application import is_missing, opened
from aft.cli.commands.audit import show_audit
from aft.cli.errors import Failure
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import confirm
from aft.store import schema

BASE = "base"


@click.group(cls=Noun)
def db() -> None:
    """Migrate the database's schema; list the actions of people.

    A new SQLite file is migrated automatically, PostgreSQL only by `aft db upgrade`.
    """


@db.command()
@click.pass_obj
def upgrade(given: ConnectionOptions) -> None:
    """Upgrade the schema to the version that this aft needs."""
    with opened(given) as app:
        before = _version(app)
        if before not in (BASE, *_revisions()):
            raise Failure(_newer(app, before))
        schema.upgrade(app.store)
        after = _version(app)
        changed = f"{before} → {after}" if before != after else f"is at {after} already"
        click.echo(f"{app.store.url}: {changed}")


@db.command()
@click.pass_obj
def current(given: ConnectionOptions) -> None:
    """Print the schema's version."""
    with opened(given) as app:
        found = _version(app)
    what = {BASE: "none yet", schema.HEAD: f"{found} (what this aft needs)"}
    click.echo(what.get(found, f"{found}; this aft needs {schema.HEAD}"))


@db.command()
@click.pass_obj
def check(given: ConnectionOptions) -> None:
    """Succeed if the schema is the one this aft needs; changes nothing."""
    with opened(given) as app:
        found = _version(app)
        if found != schema.HEAD and found not in (BASE, *_revisions()):
            raise Failure(_newer(app, found))
        if found != schema.HEAD:
            has = "has no aft tables" if found == BASE else f"is at schema {found}"
            raise Failure(f"the database {app.store.url!r} {has}; this aft needs {schema.HEAD}: run `aft db upgrade`")
        click.echo(f"{app.store.url}: {found}, as needed")


@db.command()
@click.option("--to", required=True, metavar="VERSION", help="An older version, or `base` for no tables at all.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def downgrade(given: ConnectionOptions, to: str, yes: bool) -> None:
    """Downgrade the schema to an older version. The data of newer tables is lost."""
    with opened(given) as app:
        before = _version(app)
        _refuse_upward(before, to)
        if before == to:
            click.echo(f"{app.store.url}: is at {to} already")
            return
        lost = "every run, fault and message in it is lost" if to == BASE else "the data of newer tables is lost"
        confirm(f"{app.store.url}: {before} → {to}; {lost}", yes)
        schema.downgrade(app.store, to)
        click.echo(f"{app.store.url}: {before} → {_version(app)}")


db.add_command(show_audit)


def _version(app: Aft) -> str:
    # To connect to a SQLite file that is not there would make it.
    return BASE if is_missing(app) else schema.current(app.store) or BASE


def _revisions() -> list[str]:
    """Return the versions that this aft knows, oldest first."""
    script = ScriptDirectory.from_config(schema.alembic_config())
    return [revision.revision for revision in script.walk_revisions()][::-1]


def _refuse_upward(before: str, to: str) -> None:
    order = [BASE, *_revisions()]
    if to not in order:
        raise click.BadParameter(f"{to!r} is not a version; there are {', '.join(order)}", param_hint="--to")
    if before not in order or order.index(to) > order.index(before):
        raise Failure(f"the schema is at {before}; {to} is not below it")


def _newer(app: Aft, found: str) -> str:
    return (
        f"the database {app.store.url!r} is at schema {found}, which this aft does not know; "
        "use the newer aft that migrated it"
    )
