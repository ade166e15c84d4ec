"""Shares SQLAlchemy's compiled statements between all engines of a test process.

Each app of a test has engines of its own, and an engine compiles every statement again: a sixth of a test's CPU.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy

from aft.store import connect as store_connect


class _ByDialect(dict[Any, Any]):
    """Compiled statements by the class of their dialect, where SQLAlchemy's key names the engine's own."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), compiled)


_compiled = _ByDialect()


def _create_engine(*given: Any, **named: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(*given, **named, execution_options={"compiled_cache": _compiled})


def share() -> None:
    """Let all stores that are made from now on share what they compile."""
    store_connect.create_engine = _create_engine  # type: ignore[attr-defined]
