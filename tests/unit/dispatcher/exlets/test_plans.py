"""Claims about the service that carries exlets out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from aft.clock import SystemClock
from aft.dispatcher.exlets.plans import Plans
from aft.errors import StoreError
from aft.store import Store
from aft.telemetry import Telemetry


def test_while_the_database_is_away_no_step_succeeds(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'away' / 'aft.db'}")
    plans = Plans("aft", store, SystemClock(), Telemetry(), timedelta(seconds=5))
    for _ in range(3):
        with pytest.raises(StoreError):
            plans.step()
