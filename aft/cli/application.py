"""Makes the application from the command line's options, for as long as a command takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from aft.app import Aft
from aft.cli.errors import Failure, print_to_stderr
from aft.cli.modules import LoadedModules, stray_app
from aft.cli.options import ConnectionOptions
from aft.errors import ConfigError


class NoDatabase(Failure):
    """Raised when a command only reads, and its SQLite file does not exist."""


@contextmanager
def opened(given: ConnectionOptions, loaded: LoadedModules | None = None) -> Iterator[Aft]:
    """Yield the application that the options, or the modules, name; close it at the end."""
    app = make(given, loaded)
    try:
        yield app
    finally:
        app.close()


@contextmanager
def open_for_reading(given: ConnectionOptions, loaded: LoadedModules | None = None) -> Iterator[Aft]:
    """Yield an application for reading only: a SQLite file that does not exist is not created."""
    with opened(given, loaded) as app:
        if is_missing(app):
            raise NoDatabase(f"there is no database {app.store.url!r} yet; the first run creates it")
        yield app


def make(given: ConnectionOptions, loaded: LoadedModules | None = None) -> Aft:
    """Return the application that the options, or the modules, name."""
    if loaded is not None and loaded.app is not None:
        if given.named:
            option = next(iter(given.named.values()))
            raise click.UsageError(f"{loaded.app_name} brings its own settings; {option} cannot change them")
        return loaded.app
    try:
        app = Aft(given.database, given.broker, given.namespace)
    except ConfigError as error:
        raise ConfigError(_as_typed(str(error), given)) from None
    if loaded is not None and (stray := stray_app(loaded, app.settings)):
        print_to_stderr(f"note: {stray} uses another database, broker or namespace; to use those, name it: {stray}")
    return app


def is_missing(app: Aft) -> bool:
    """Return whether the database is a SQLite file that does not exist; connecting would create it.

    Raises Failure if it cannot even be created.
    """
    if app.store.file is None or Path(app.store.file).exists():
        return False
    directory = Path(app.store.file).absolute().parent
    if not directory.is_dir():
        raise Failure(f"the database {app.store.url!r} cannot be made: there is no directory {str(directory)!r}")
    return True


def _as_typed(text: str, given: ConnectionOptions) -> str:
    """Replace the names of variables in a text by those of the options that were given instead."""
    for field, option in given.named.items():
        text = text.replace(f"AFT_{field.upper()}", option)
    return text
