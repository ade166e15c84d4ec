"""Claims about the service that carries exlets out."""

from __future__ import annotations

from pathlib import Path

import pytest

from aft.dispatcher.exlets.plans import PlanExecutor
from aft.errors import StoreError
from aft.store import Store
from tests.storing import Stage


def test_while_the_database_is_away_no_step_succeeds(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'away' / 'aft.db'}")
    plans = PlanExecutor(Stage(store).dispatcher_deps())
    for _ in range(3):
        with pytest.raises(StoreError):
            plans.step()
