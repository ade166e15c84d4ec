"""What the integration tests share: a database of either kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aft.store import Store, schema
from tests.storing import Stage


@pytest.fixture(params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A migrated database of either kind, with a namespace of the test's own."""
    if request.param == "sqlite":
        store = Store(f"sqlite:///{tmp_path / 'aft.db'}")
        schema.check(store)
    else:
        store = Store(request.getfixturevalue("migrated_url"))
    made = Stage(store)
    yield made
    made.close()
