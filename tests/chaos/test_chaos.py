"""The short profile: seeded, on two combinations of database and broker. ``make chaos`` is the long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import drive, part_crashpoints, part_kills, part_pauses
from chaos.load import plan_of
from chaos.setups import Site

SEED = 20_261
#: Every so many points a process is killed; the first of them, and the distance to the next.
FIRST, EVERY = 5, 37
RUNS, KILLS = 120, 10
PAUSED_RUNS, PAUSES = 40, 6
#: Seconds after which a run is stuck: many tests run beside this one, on machines of any kind.
PATIENCE = 180.0


@pytest.fixture(params=["postgresql+rabbitmq", "sqlite+embedded"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A namespace of the test's own; its servers are shared, and only workers die here."""
    monkeypatch.setattr(drive, "STUCK_AT_LEAST", PATIENCE)
    if request.param == "sqlite+embedded":
        made = Site(request.param, f"sqlite:///{tmp_path / 'aft.db'}", "embedded", tmp_path)
    else:
        urls = request.getfixturevalue("migrated_url"), request.getfixturevalue("rabbit_url")
        made = Site(request.param, *urls, tmp_path)
    made.prepare()
    yield made
    made.forget()


def test_a_process_may_die_at_any_point(site: Site) -> None:
    site.settings |= {"lease": "1s", "grace": "500ms"}
    outcomes = list(part_crashpoints.crash(site, range(FIRST, 10_000, EVERY)))
    assert [str(violation) for outcome in outcomes for violation in outcome.violations] == []
    assert sum(outcome.crashed for outcome in outcomes) >= 5


def test_processes_are_killed_at_random_and_no_promise_is_broken(site: Site) -> None:
    site.settings |= {"lease": "60s"}  # who is killed is seen to be dead; who is only late shall not be overtaken
    plans = [plan_of(SEED, number, slow=0.02) for number in range(RUNS)]
    result = part_kills.kill(site, plans, KILLS, SEED)
    assert result.violations == []
    assert sum(result.faults.values()) == KILLS


def test_processes_that_were_paused_beyond_their_lease_do_no_harm(site: Site) -> None:
    site.settings |= {"lease": "1500ms"}
    plans = [plan_of(SEED, number, slow=0.3) for number in range(PAUSED_RUNS)]
    result = part_pauses.pause(site, plans, PAUSES, SEED)
    assert result.violations == []
    assert sum(result.faults.values()) >= PAUSES // 2  # the load may be done before the last of them
