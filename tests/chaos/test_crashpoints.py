"""Who rescues may die as well; and a death that no crash point caused is told apart from one that did."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chaos import drive, part_crashpoints
from chaos.crashpoints import Death, read_deaths
from chaos.fleet import End
from chaos.part_crashpoints import SUBMITTING, unexpected
from chaos.setups import Site

#: Where one dies, and where the one after it does.
FIRST, SECOND = 25, range(8, 32, 8)
#: Seconds after which a run is stuck: many tests run beside this one, on machines of any kind.
PATIENCE = 180.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "STUCK_AT_LEAST", PATIENCE)


def embedded(directory: Path) -> Site:
    """A site without servers, with short leases."""
    site = Site("sqlite+embedded", f"sqlite:///{directory / 'aft.db'}", "embedded", directory)
    site.settings |= {"lease": "1s", "grace": "500ms"}
    site.prepare()
    return site


def test_whoever_rescues_may_die_at_any_point(tmp_path: Path) -> None:
    outcomes = list(part_crashpoints.crash(embedded(tmp_path), SECOND, first=[FIRST]))
    assert [violation for outcome in outcomes for violation in outcome.violations] == []
    assert [outcome.numbers for outcome in outcomes] == [(FIRST, second) for second in SECOND]
    assert all(outcome.crashed for outcome in outcomes)
    assert all(death.point.startswith(("before ", "after ")) for outcome in outcomes for death in outcome.deaths)


def test_whoever_submits_may_die_at_any_point_and_asks_again(tmp_path: Path) -> None:
    outcomes = list(part_crashpoints.crash(embedded(tmp_path), range(1, SUBMITTING + 1), submits=True))
    assert [violation for outcome in outcomes for violation in outcome.violations] == []
    points = [death.point for outcome in outcomes for death in outcome.deaths]
    assert points == [f"{side} commit of runs.submit._make" for side in ("before", "after")] * (SUBMITTING // 2)


def test_only_who_was_killed_at_its_own_point_has_crashed_there() -> None:
    killed, stopped = -signal.SIGKILL, End(4, 0)
    assert list(unexpected([End(1, killed), End(2, killed), stopped], {1, 2})) == []
    assert list(unexpected([End(1, killed), End(4, 3)], {1})) == []
    # Killed by somebody else; broken; ended in order before it was asked to; ended in disorder when it was.
    for ends in ([End(3, killed), stopped], [End(3, 1), stopped], [End(3, 0), stopped], [End(4, -signal.SIGSEGV)]):
        assert len(list(unexpected(ends, {1}))) == 1
    # Whoever was at a point and died of something else.
    assert len(list(unexpected([End(1, -signal.SIGSEGV), stopped], {1}))) == 1


def test_a_record_that_nobody_wrote_tells_of_no_death(tmp_path: Path) -> None:
    record = tmp_path / "deaths"
    assert read_deaths(record) == []
    record.write_text('{"pid": 7, "at": 1.5, "point": "before commit of runs.owner.Owner.share"}\n')
    assert read_deaths(record) == [Death(7, 1.5, "before commit of runs.owner.Owner.share")]
