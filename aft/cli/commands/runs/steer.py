"""``aft runs`` VERB ``RUN``: orders of a person to a run. Thin: each verb is a method of ``aft.app.run.Run``."""

from __future__ import annotations

from collections.abc import Callable

import click

from aft.app import Aft, Operation, OperationDesk, Run
from aft.cli.application import open_for_reading
from aft.cli.commands.runs.many import ManyRuns, order_many, run_or_many
from aft.cli.modules import LoadedModules
from aft.cli.options import ConnectionOptions
from aft.cli.show.advice import warn_if_nobody_works
from aft.cli.show.output import print_message, short_id
from aft.runs.operations.operation_rows import Verb
from aft.runs.states import Status


def _verb(name: str | None = None, *, needs_note: bool = False) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function the command of an order: it gets the options of ``aft``, a run and a note."""
    note = click.option("--note", required=needs_note, metavar="TEXT", help="Why; kept in the run's story.")

    def declare(order: Callable[..., None]) -> click.Command:
        return click.command(name)(click.argument("run")(note(click.pass_obj(order))))

    return declare


_note = click.option("--note", metavar="TEXT", help="Why; kept in the run's story.")


@click.command()
@run_or_many
@_note
@click.pass_obj
def suspend(given: ConnectionOptions, run: str | None, many: ManyRuns | None, note: str | None) -> None:
    """Stop runs at their next steps, until they are resumed.

    The current step is completed first; signals are kept.
    """
    if many is not None:
        order_many(given, None, Verb.SUSPEND, many, lambda desk: desk.suspend(many.where, note=note, **many.how))
        return
    with open_for_reading(given) as app:
        found = app.run(str(run))
        found.suspend(note)
        short = short_id(found.id)
        how = "is suspended" if found.status is Status.SUSPENDED else "stops at its next step"
        print_message(f"Run {found.id} {how}. `aft runs resume {short}` continues it.")


@click.command()
@run_or_many
@_note
@click.pass_obj
def resume(given: ConnectionOptions, run: str | None, many: ManyRuns | None, note: str | None) -> None:
    """Resume suspended runs."""
    if many is not None:
        order_many(given, None, Verb.RESUME, many, lambda desk: desk.resume(many.where, note=note, **many.how))
        return
    _order(given, str(run), lambda found: found.resume(note=note), "goes on")


@click.command()
@run_or_many
@click.option("--no-compensate", "keep", is_flag=True, help="Undo nothing: what it did stays as it is.")
@_note
@click.pass_obj
def cancel(given: ConnectionOptions, run: str | None, many: ManyRuns | None, keep: bool, note: str | None) -> None:
    """Stop runs for good, and undo what they did.

    The current step is completed first. Children are cancelled, too. A run ends `compensated`, or, where nothing is
    undone, `cancelled`.
    """
    if many is not None:

        def make(desk: OperationDesk) -> Operation:
            return desk.cancel(many.where, compensate=not keep, note=note, **many.how)

        order_many(given, None, Verb.CANCEL, many, make)
        return
    what = "ends, and nothing is undone," if keep else "is undone"
    _order(given, str(run), lambda found: found.cancel(compensate=not keep, note=note), what)


@_verb("skip-frame", needs_note=True)
def skip_frame(given: ConnectionOptions, run: str, note: str) -> None:
    """Skip the frame that a run is parked for.

    The unwinding goes on below it, and the run ends `failed`: it was not undone entirely.
    """
    _order(given, run, lambda found: found.skip_frame(note=note), "goes on without that frame")


@_verb("frame-done", needs_note=True)
def frame_done(given: ConnectionOptions, run: str, note: str) -> None:
    """Record that the frame a run is parked for was undone by hand.

    The unwinding goes on below it.
    """
    _order(given, run, lambda found: found.frame_done(note=note), "goes on below that frame")


@_verb(needs_note=True)
def release(given: ConnectionOptions, run: str, note: str) -> None:
    """Take a run away from the worker that has it.

    Another worker continues it. Its current step may be executed twice, under the same key, as after a worker's death.
    """
    _order(given, run, lambda found: found.release(note=note), "goes on elsewhere,")


def _order(given: ConnectionOptions, run: str, order: Callable[[Run], None], what: str) -> None:
    give_order(given, None, run, lambda app, found: order(found), what)


def give_order(
    given: ConnectionOptions, loaded: LoadedModules | None, run: str, order: Callable[[Aft, Run], None], what: str
) -> None:
    """Give a run an order, and print what comes of it; modules that were ``loaded`` know its activities."""
    with open_for_reading(given, loaded) as app:
        found = app.run(run)
        order(app, found)
        print_message(f"Run {found.id} {what} as soon as a worker takes it.")
        warn_if_nobody_works(app, found.row)
