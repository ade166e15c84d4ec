"""Commands that take words as a flow's arguments."""

from __future__ import annotations

import click


class Words(click.Command):
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
