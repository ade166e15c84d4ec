"""``aft runs`` VERB ``RUN``: orders of a person to a run. Thin: each verb is a method of ``aft.app.run.Run``."""

from __future__ import annotations

from collections.abc import Callable

import click

from aft.app import Run
from aft.cli.application import open_for_reading
from aft.cli.options import ConnectionOptions
from aft.cli.show.advice import warn_if_nobody_works
from aft.cli.show.output import print_message, short_id
from aft.runs.states import Status


def _verb(name: str | None = None, *, needs_note: bool = False) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function the command of an order: it gets the options of ``aft``, a run and a note."""
    note = click.option("--note", required=needs_note, metavar="TEXT", help="Why; kept in the run's story.")

    def declare(order: Callable[..., None]) -> click.Command:
        return click.command(name)(click.argument("run")(note(click.pass_obj(order))))

    return declare


@_verb()
def suspend(given: ConnectionOptions, run: str, note: str | None) -> None:
    """Stop a run at its next step, until it is resumed.

    Its current step is completed first; signals are kept.
    """
    with open_for_reading(given) as app:
        found = app.run(run)
        found.suspend(note)
        short = short_id(found.id)
        how = "is suspended" if found.status is Status.SUSPENDED else "stops at its next step"
        print_message(f"Run {found.id} {how}. `aft runs resume {short}` continues it.")


@_verb()
def resume(given: ConnectionOptions, run: str, note: str | None) -> None:
    """Resume a suspended run."""
    _order(given, run, lambda found: found.resume(note=note), "goes on")


@_verb()
@click.option("--no-compensate", "keep", is_flag=True, help="Undo nothing: what it did stays as it is.")
def cancel(given: ConnectionOptions, run: str, keep: bool, note: str | None) -> None:
    """Stop a run for good, and undo what it did.

    Its current step is completed first. Its children are cancelled, too. It ends `compensated`, or, where nothing is
    undone, `cancelled`.
    """
    what = "ends, and nothing is undone," if keep else "is undone"
    _order(given, run, lambda found: found.cancel(compensate=not keep, note=note), what)


@_verb()
def retry(given: ConnectionOptions, run: str, note: str | None) -> None:
    """Retry what a parked run is parked for."""
    _order(given, run, lambda found: found.retry(note=note), "tries again")


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
    with open_for_reading(given) as app:
        found = app.run(run)
        order(found)
        print_message(f"Run {found.id} {what} as soon as a worker takes it.")
        warn_if_nobody_works(app, found.row)
