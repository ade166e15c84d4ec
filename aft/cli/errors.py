"""Reports errors in one line on stderr that begins with ``aft:``, and by the exit status.

0 done, 1 what was asked for failed, 2 the command line itself is wrong. A traceback is a defect of aft, or of a user's
module that is being imported; the latter's is shortened to the lines that matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from aft.errors import AftError, RuleRefused
from aft.security.redaction import redact


class Failure(AftError):
    """Raised by a command when what was asked for cannot be done; ``details`` are lines below the message."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def exit_status(call: Callable[[], object]) -> int:
    """Call, report what goes wrong, and return the exit status."""
    try:
        answer = call()
    except click.UsageError as error:
        print_to_stderr(error.format_message())
        if error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help'.", err=True)
        return error.exit_code
    except click.ClickException as error:
        print_to_stderr(error.format_message())
        return error.exit_code
    except click.Abort:
        print_to_stderr("stopped")
        return 1
    except RuleRefused as error:
        _print_refusal(str(error))
        return 1
    except AftError as error:
        print_to_stderr(str(error))
        if isinstance(error, Failure) and error.details:
            click.echo(printable(error.details), err=True)
        return 1
    return answer if isinstance(answer, int) else 0


def print_to_stderr(text: str) -> None:
    """Print one line on stderr."""
    click.echo(f"aft: {one_line(text)}", err=True)
    sys.stderr.flush()


def _print_refusal(text: str) -> None:
    """Report what is wrong with a rule; the lines below the first stay as they are: one may be a caret."""
    first, _, below = text.partition("\n")
    print_to_stderr(first)
    if below:
        click.echo(printable(below.expandtabs(4)), err=True)


def one_line(text: str) -> str:
    """Return a text on one line that a terminal can show."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Escape what a terminal would interpret instead of showing, and redact secrets (``security.redaction``)."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in redact(text))
