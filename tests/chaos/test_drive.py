"""Coming to rest: what others do does not give a run more time."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from chaos import drive
from chaos.drive import Count, Driver, stuck_after
from chaos.load import plan_of
from chaos.setups import Site


class Restless(Driver):
    """A run that never ends, beside messages that come and come."""

    def prepare(self) -> None:
        self._held, self._stop, self._looks = threading.Event(), threading.Event(), count()

    def look(self) -> Count:
        number = next(self._looks)
        assert number < 100, "it waits on while anything gets on"
        self.seen = Count(made=2, resting=1, messages=number, late=0)
        return self.seen


def test_a_run_is_stuck_in_time_whatever_else_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "STUCK_AFTER", 0.3)
    monkeypatch.setattr(drive, "STUCK_AT_LEAST", 0.1)
    monkeypatch.setattr(drive, "LOOK", 0.01)
    site = Site("sqlite+embedded", "", "embedded", tmp_path, settings={"lease": "500ms"})
    driver = Restless(site, [plan_of(1, number) for number in range(2)])
    driver.prepare()
    assert driver.settle() > 0.15


def test_three_leases_and_never_less_than_a_run_may_need() -> None:
    assert [stuck_after(lease) for lease in (1.0, 5.0, 10.0)] == [20.0, 20.0, 30.0]
