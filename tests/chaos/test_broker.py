"""The part that breaks a cluster's network fails when that network cannot be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import part_broker
from chaos.results import Context


def test_a_check_of_the_network_that_fails_is_told(tmp_path: Path) -> None:
    checks = tmp_path / "check_something.py"
    checks.write_text("def test_a_cut_cuts():\n    assert False\n")
    passed, said = part_broker.check_network(checks)
    assert not passed
    assert "test_a_cut_cuts" in said


def test_nothing_is_struck_where_a_cut_does_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_broker, "check_network", lambda: (False, "a packet came through"))
    result = part_broker.run(Context(1, tmp_path))
    assert result.runs == 0
    assert result.violations == ["the network does not do what it is told: a packet came through"]
