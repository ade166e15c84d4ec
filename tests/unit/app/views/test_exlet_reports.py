"""Claims about telling how a fault was handled: every ruling has its words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aft.app.views.exlet_reports import format_ruling
from aft.runs.rulings import Ruling, RulingAction
from tests.faults import make_fault


@pytest.mark.parametrize("do", RulingAction)
def test_every_ruling_can_be_told(do: RulingAction) -> None:
    told = format_ruling(replace(make_fault(), ruling=Ruling(do, {"seats": 5}).encode()))
    assert told.endswith(", with seats changed")
    assert len(told) > len(", with seats changed")
