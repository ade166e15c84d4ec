"""The command line: a thin layer over :mod:`aft.app`. Each noun has its module, imported when it is called."""

from __future__ import annotations

from aft.cli.root import root


def main() -> None:
    """Run the command line; the entry point of the script ``aft``. Ends the process with its exit status."""
    root()


__all__ = ["main"]
