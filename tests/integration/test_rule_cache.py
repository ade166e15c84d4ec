"""Rules are known while somebody else's look at them hangs: one connection that has fallen silent stops no run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aft.rules.trees import rows, rule_cache
from aft.rules.trees.rule_cache import RuleCache, built_in
from aft.telemetry import Telemetry
from tests.storing import HandClock, Stage


def test_the_rules_that_were_seen_last_are_in_force_while_a_look_hangs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, over, answers = threading.Event(), threading.Event(), list[int]()

    def hang(*given: Any) -> int:
        hangs.set()
        assert over.wait(60)
        return built_in().version

    monkeypatch.setattr(rows, "version", hang)
    monkeypatch.setattr(rule_cache, "LOOK_PATIENCE", 0.05)
    rules = RuleCache(stage.store, stage.namespace, HandClock(), Telemetry())
    first = threading.Thread(target=rules.current, daemon=True)
    first.start()
    assert hangs.wait(30)
    other = threading.Thread(target=lambda: answers.append(rules.current().version), daemon=True)
    other.start()
    other.join(30)
    over.set()
    first.join(30)
    assert answers == [built_in().version]
