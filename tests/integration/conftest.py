"""What the integration tests share: a database of either kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aft.store import Store, schema
from tests.storing import Stage


@pytest.fixture
def sqlite_stage(tmp_path: Path) -> Iterator[Stage]:
    """A migrated SQLite file, with a namespace of the test's own."""
    store = Store(f"sqlite:///{tmp_path / 'aft.db'}")
    schema.check(store)
    made = Stage(store)
    yield made
    made.close()


@pytest.fixture
def postgres_stage(migrated_url: str) -> Iterator[Stage]:
    """The worker's PostgreSQL database, with a namespace of the test's own."""
    made = Stage(Store(migrated_url))
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """A migrated database of either kind."""
    found: Stage = request.getfixturevalue("sqlite_stage" if request.param == "sqlite" else "postgres_stage")
    return found
