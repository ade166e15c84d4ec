"""A part: random SIGKILLs and SIGTERMs of processes under load, without any server."""

from __future__ import annotations

from chaos import part_kills
from chaos.results import Context, Result


def run(ctx: Context) -> Result:
    """Run the part on SQLite and the embedded broker."""
    return part_kills.run(ctx, "sqlite+embedded")
