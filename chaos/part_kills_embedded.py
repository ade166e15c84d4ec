"""Random SIGKILLs and SIGTERMs of workers, dispatchers and relays while runs go through, without any server."""

from __future__ import annotations

from chaos import part_kills
from chaos.results import Context, Result


def run(ctx: Context) -> Result:
    """The part, on SQLite and the embedded broker."""
    return part_kills.run(ctx, "sqlite+embedded")
