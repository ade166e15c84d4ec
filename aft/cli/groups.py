"""Groups of commands that import a command when it is called, and guess what a wrong name meant."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from aft.cli.errors import exit_status
from aft.texts import find_unstorable


@dataclass(frozen=True, slots=True)
class CommandRef:
    """The place of a command (``module:name``), and its line in ``--help``, which needs no import."""

    where: str
    says: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self.where.partition(":")
        found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command)
        return found


class Noun(click.Group):
    """A group that shows its help when called alone, and guesses what a wrong name meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of the file, not of the alphabet

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        wanted, known = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and wanted not in known and not wanted.startswith("-"):
            near = difflib.get_close_matches(wanted, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise click.UsageError(f"{ctx.command_path!r} has no command {wanted!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


class NumericArguments(click.Command):
    """A command whose arguments may be negative numbers, which look like options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name.lstrip("-")[:1].isdigit():
                raise
            raise click.UsageError(
                f"{error.option_name!r} looks like an option; put -- before arguments that begin with a dash", ctx
            ) from None


class Root(Noun):
    """The outermost group. It imports a command when it is called, and reports errors in one line."""

    def __init__(self, *args: Any, places: Mapping[str, CommandRef], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = places

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for arg in args:
            if (found := find_unstorable(arg, lines=True)) is not None:
                raise click.UsageError(f"the argument {arg!r} holds {found}; write it in UTF-8, without that", ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        return None if place is None else place.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.says) for name, place in self._places.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; in standalone mode, end the process with its exit status."""

        def call() -> Any:
            # Whatever the process is called: messages name the command `aft`.
            return super(Root, self).main(args, "aft", complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return call()
        sys.exit(exit_status(call))
