"""One order to many runs from the command line: previews it, makes an operation of it, and follows that."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from aft.app import Operation, OperationDesk
from aft.app.operations import BRAKE, PATIENCE, POLL
from aft.cli.application import open_for_reading
from aft.cli.errors import Failure
from aft.cli.modules import LoadedModules
from aft.cli.options import ConnectionOptions
from aft.cli.show.advice import warn_if_nobody_carries_out
from aft.cli.show.output import confirm, print_message, short_id
from aft.runs.operations.operation_rows import OperationState, OutcomeState, Verb
from aft.runs.operations.selection import OperationPreview

#: What an operation of each verb does with its runs.
_PASSIVE = {
    Verb.RETRY: "retried",
    Verb.COMPLETE: "given that result for their failed step",
    Verb.FAIL: "told that their failed step has failed for good",
    Verb.SUSPEND: "suspended",
    Verb.RESUME: "resumed",
    Verb.CANCEL: "cancelled",
    Verb.COMPENSATE: "undone",
}
_OPTIONS = (
    click.option("--where", metavar="WORDS", help="Instead of RUN: all runs of which all words are true (`list`)."),
    click.option("--all", "everything", is_flag=True, help="Instead of RUN: all runs that can take it."),
    click.option("--brake", metavar="SHARE", default=f"{BRAKE:.0%}", show_default=True, help="Stop beyond it."),
    click.option("--rate", metavar="N", help="With many: so many a second at most."),
    click.option(
        "--patience",
        metavar="DURATION",
        default=f"{PATIENCE:g}s",
        show_default=True,
        help="How long the runs of a batch are waited for.",
    ),
    click.option("--preview", is_flag=True, help="With many: only show which runs these are."),
    click.option("--yes", is_flag=True, help="With many: do not ask."),
    click.option("--detach", is_flag=True, help="With many: do not wait for the end."),
)


@dataclass(frozen=True, slots=True)
class ManyRuns:
    """The runs that an order is for, and how it is given to them."""

    where: str
    brake: float
    rate: float | None
    patience: str
    preview: bool
    yes: bool
    detach: bool

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of the desk's verbs that say how."""
        return {"brake": self.brake, "rate": self.rate, "patience": self.patience}


def run_or_many(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command have many runs instead of RUN; it gets ``run``, or else ``many``."""

    @functools.wraps(command)
    def collected(*args: Any, run: str | None, **given: Any) -> Any:
        where, everything = given.pop("where"), given.pop("everything")
        named = [given.pop(name) for name in ("brake", "rate", "patience", "preview", "yes", "detach")]
        brake, rate, *rest = named
        if sum((run is not None, where is not None, everything)) != 1:
            raise click.UsageError("say which runs: RUN, --where WORDS or --all; one of these")
        many = None
        if run is None:
            many = ManyRuns("all" if everything else where, read_share(brake), _read_rate(rate), *rest)
        return command(*args, run=run, many=many, **given)

    made: Callable[..., Any] = collected
    for option in reversed(_OPTIONS):
        made = option(made)
    return click.argument("run", required=False)(made)


def read_share(word: str) -> float:
    """Parse a share: ``5%`` or ``0.05``."""
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise click.UsageError(f"--brake {word!r} must be a share from 0% to 100%")
    return share


def _read_rate(word: str | None) -> float | None:
    try:
        return None if word is None else float(word.removesuffix("/s"))
    except ValueError:
        raise click.UsageError(f"--rate {word!r} must be a number of runs a second, like 10") from None


def order_many(
    given: ConnectionOptions,
    loaded: LoadedModules | None,
    verb: Verb,
    many: ManyRuns,
    make: Callable[[OperationDesk], Operation],
) -> None:
    """Show what would be done, ask, make the operation and follow it until it ends or stops."""
    with open_for_reading(given, loaded) as app:
        _print_preview(verb, app.operations.preview(verb, many.where))
        if many.preview:
            return
        confirm("These runs get that order", many.yes)
        operation = make(app.operations)
        print_message(f"This is operation {operation.id}; it goes on without this command, too.")
        warn_if_nobody_carries_out(app)
        if not many.detach:
            follow(operation)


def _print_preview(verb: Verb, found: OperationPreview) -> None:
    noun = "run" if found.total == 1 else "runs"
    statuses = ", ".join(f"{number:,} {status.value}" for status, number in found.statuses)
    print_message(f"{found.total:,} {noun} would be {_PASSIVE[verb]}{f': {statuses}' if statuses else ''}.")
    groups = [f"{number:,} of failure group {group}" for group, number in found.groups if group is not None]
    if groups:
        print_message(f"Their last failures: {_list(groups)}.")
    if found.undos:
        print_message(f"To be undone: {_list([f'{number:,} {name}' for name, number in found.undos])}.")
    if found.without_undo:
        print_message(f"Nothing undoes: {_list([f'{number:,} {name}' for name, number in found.without_undo])}.")


def _list(words: list[str]) -> str:
    return ", ".join(words)


def follow(operation: Operation) -> None:
    """Show the progress of an operation until it is not open any more, and what came of it; Failure if it stopped."""
    total, console = operation.row.total, Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=total)
            while operation.row.state is OperationState.OPEN:
                _update(progress, task, operation)
                time.sleep(POLL)
    except KeyboardInterrupt:
        short = short_id(operation.id)
        print_message(
            f"It goes on without this command: `aft operations show {short}`, `aft operations cancel {short}`."
        )
        raise click.Abort from None
    report(operation)


def _update(progress: Progress, task: TaskID, operation: Operation) -> None:
    row, counts = operation.row, operation.counts
    done = row.total - counts[OutcomeState.SELECTED] - counts[OutcomeState.ORDERED]
    failed = counts[OutcomeState.RETURNED] + counts[OutcomeState.FAILED]
    words = f"batch {row.batch}: {counts[OutcomeState.PASSED]:,} passed, {failed:,} failed"
    progress.update(task, completed=done, description=words)


def report(operation: Operation) -> None:
    """Print what came of an operation; raises Failure if it has stopped by itself."""
    row, short = operation.row, short_id(operation.id)
    told = describe_counts(operation.counts)
    if row.state is OperationState.STOPPED:
        raise Failure(
            f"operation {short} has stopped: {row.why}. `aft operations show {short}` lists its runs; after the fix "
            f"`aft operations resume {short}`, else `aft operations cancel {short}`"
        )
    print_message(f"Operation {short} is {row.state.value}: {told}.")


def describe_counts(counts: dict[OutcomeState, int]) -> str:
    """Describe how many runs of an operation are in each state."""
    return ", ".join(f"{number:,} {_WORDS[state]}" for state, number in counts.items() if number) or "no runs"


_WORDS = {
    OutcomeState.SELECTED: "without order",
    OutcomeState.ORDERED: "ordered",
    OutcomeState.PASSED: "passed",
    OutcomeState.RETURNED: "failed with the same failure",
    OutcomeState.FAILED: "failed with another",
    OutcomeState.UNDERWAY: "still going on",
    OutcomeState.REFUSED: "refused",
    OutcomeState.DROPPED: "dropped",
}
