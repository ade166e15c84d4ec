"""The options of a run: the same wherever a command makes or declares one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from aft.cli.arguments import read_tags

_OPTIONS = (
    click.option("--owner", metavar="NAME", help="Its owner, for listings."),
    click.option("--priority", type=int, default=0, help="One with a priority goes before the others."),
    click.option("--expected", metavar="DURATION", help="How long it should take; reported if longer."),
    click.option("--resource", "resources", multiple=True, metavar="NAME", help="What it needs; more than once."),
    click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="For rules and people; more than once."),
    click.option("--deadline", metavar="DURATION", help="How long it may take; then it is interrupted."),
)
#: Their names in ``flow.options``.
_NAMES = ("owner", "priority", "expected", "resources", "tags", "deadline")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a run to a command; it gets them as ``run_options``, for ``flow.options``."""

    @functools.wraps(command)
    def collected(*args: Any, **given: Any) -> Any:
        run_options = {name: given.pop(name) for name in _NAMES}
        return command(*args, run_options={**run_options, "tags": read_tags(run_options["tags"])}, **given)

    made: Callable[..., Any] = collected
    for option in reversed(_OPTIONS):
        made = option(made)
    return made
