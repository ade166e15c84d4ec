"""``aft runs retry``, ``force-complete``, ``force-fail``: orders about steps that have failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from aft.app import Aft, Operation, OperationDesk, Run
from aft.cli.arguments import read_value
from aft.cli.commands.runs.many import ManyRuns, order_many, run_or_many
from aft.cli.commands.runs.steer import give_order
from aft.cli.errors import Failure
from aft.cli.groups import NumericArguments
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.codec import ValueCodec, value_codec
from aft.flows.declare.activity import Activity
from aft.runs.operations.operation_rows import Verb

_step = click.option("--step", metavar="STEP", help="Which step, by its number or activity, if several have failed.")
_modules = click.option(
    "-m", "--module", "modules", multiple=True, metavar="MODULE", help="Check values as the activity declares them."
)


@click.command()
@run_or_many
@click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="Another argument for the failed step.")
@_step
@_modules
@click.option("--note", metavar="TEXT", help="Why; kept in the run's story.")
@click.pass_obj
def retry(
    given: ConnectionOptions,
    run: str | None,
    many: ManyRuns | None,
    args: tuple[str, ...],
    step: str | None,
    modules: tuple[str, ...],
    note: str | None,
) -> None:
    """Retry what a run is parked for, or what is in its ladder, now.

    With --arg, the failed step begins its ladder anew with other arguments; those that are not given stay. Each is a
    JSON value, or a plain text if it is not JSON.

    \b
      aft runs retry 1a2b3c
      aft runs retry 1a2b3c --arg iban=DE89370400440532013000 --note "ticket 7: a typing error"
      aft runs retry --where "group:5f0c9a31d2b7 since:6h" --note "the bank is back"
    """
    words = _read_words(args)
    if many is not None:
        untyped = {name: read_value(value_codec(Any), word) for name, word in words.items()}

        def make(desk: OperationDesk) -> Operation:
            return desk.retry(many.where, args=untyped or None, step=step, note=note, **many.how)

        order_many(given, load(modules), Verb.RETRY, many, make)
        return

    def order(app: Aft, found: Run) -> None:
        activity = _failed_activity(app, found, step) if words else None
        values = {name: read_value(_codec_of(activity, name), word) for name, word in words.items()}
        found.retry(args=values or None, step=step, note=note)

    give_order(given, load(modules), str(run), order, "tries again")


@click.command("force-complete", cls=NumericArguments)
@click.argument("run")
@click.argument("result", required=False)
@_step
@_modules
@click.option("--note", required=True, metavar="TEXT", help="Why; kept in the run's story.")
@click.pass_obj
def force_complete(
    given: ConnectionOptions, run: str, result: str | None, step: str | None, modules: tuple[str, ...], note: str
) -> None:
    """Give the RESULT of a step that has failed; it is not executed any more.

    RESULT is a JSON value, or a plain text if it is not JSON; null if there is none. The flow goes on with it.

    \b
      aft runs force-complete 1a2b3c '{"receipt": "R-77"}' --note "paid by hand"
    """

    def order(app: Aft, found: Run) -> None:
        activity = _failed_activity(app, found, step)
        codec = value_codec(Any) if activity is None else activity.result
        found.force_complete(None if result is None else read_value(codec, result), step=step, note=note)

    give_order(given, load(modules), run, order, "goes on with that result")


@click.command("force-fail")
@run_or_many
@_step
@click.option("--note", required=True, metavar="TEXT", help="Why; kept in the run's story.")
@click.pass_obj
def force_fail(given: ConnectionOptions, run: str | None, many: ManyRuns | None, step: str | None, note: str) -> None:
    """Let a step that has failed fail for good.

    Its last failure is raised in the flow, which catches it, or is undone.
    """
    if many is not None:
        how = many.how
        order_many(given, None, Verb.FAIL, many, lambda desk: desk.force_fail(many.where, step=step, note=note, **how))
        return
    give_order(
        given, None, str(run), lambda app, found: found.force_fail(step=step, note=note), "goes on with that failure"
    )


def _failed_activity(app: Aft, run: Run, step: str | None) -> Activity[Any, Any] | None:
    """Return the activity of the failed step, if a module that was named declares it."""
    return app.registry.activity(run.failed_step(step).name)


def _codec_of(activity: Activity[Any, Any] | None, name: str) -> ValueCodec:
    known = None if activity is None else activity.arguments.codec(name)
    return value_codec(Any) if known is None else known


def _read_words(words: Sequence[str]) -> dict[str, str]:
    """Split ``name=value`` words; raises Failure."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Failure(f"--arg {word!r} names no value; write --arg NAME=VALUE")
        if name in found:
            raise Failure(f"argument {name!r} is given twice")
        found[name] = value
    return found
