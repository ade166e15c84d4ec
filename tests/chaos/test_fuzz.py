"""Nothing that comes in from outside crashes, hangs or misleads: a short look at every door."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aft import envelope
from aft.runs.ownership import claims
from chaos import fuzzing, part_fuzz
from chaos.load import plan_of
from chaos.part_fuzz import DOORS, flood, fuzz
from chaos.setups import Site
from tests.chaos.bugs import without_stale_check

SEED = 990

#: Inputs at each door: some seconds in all.
INPUTS = {"decoder": 12_000, "stored": 600, "values": 300, "settings": 400, "addresses": 400, "durations": 3_000}


@pytest.mark.parametrize("door", sorted(DOORS))
def test_what_comes_in_is_read_or_refused_as_documented(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_fuzz, "SLOWEST_ELSEWHERE", 0.5)  # how fast it is, a quiet machine tells: make chaos
    found = fuzz(door, str(SEED), INPUTS[door])
    assert not found.violations, "\n".join(found.violations)
    assert found.read > 0
    assert found.refused > 0
    assert found.inputs == INPUTS[door]


@pytest.fixture(params=["postgresql+rabbitmq", "sqlite+embedded"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A place for a flood, in a namespace of its own."""
    if request.param == "sqlite+embedded":
        made = Site(request.param, f"sqlite:///{tmp_path / 'aft.db'}", "embedded", tmp_path)
    else:
        migrated, rabbit = (request.getfixturevalue(name) for name in ("migrated_url", "rabbit_url"))
        made = Site(request.param, migrated, rabbit, tmp_path)
    made.settings |= {"lease": "60s"}
    made.prepare()
    return made


def test_a_flood_of_bad_messages_changes_no_run(site: Site) -> None:
    plans = [plan_of(SEED, number, slow=0.0) for number in range(20)]
    result = flood(site, plans, messages=250, seed=SEED)
    assert not result.violations, "\n".join(result.violations)
    assert sum(result.faults.values()) == 250
    assert result.figures["malformed"] > 20


# --- controls: what is broken on purpose must be found ---


def test_control_a_pattern_that_begins_again_and_again_is_found_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    careless = re.compile(rb'"(?:[^"\\\\]|\\\\.)*"', re.DOTALL)

    def judge(body: bytes) -> bool:
        return len(body) > 8_192 or bool(careless.sub(b"", body))

    monkeypatch.setitem(DOORS, "careless", (fuzzing.an_input, judge))
    assert any("it took too long" in why for why in fuzz("careless", str(SEED), 1_500).violations)


def test_control_an_error_that_is_not_documented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "decode", lambda body: {}[body])
    assert any("KeyError came out" in why for why in fuzz("decoder", str(SEED), 10).violations)


def test_control_a_flood_is_found_out_where_stale_messages_wake_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site("sqlite+embedded", f"sqlite:///{tmp_path / 'aft.db'}", "embedded", tmp_path)
    site.prepare()
    monkeypatch.setattr(claims, "claim_now", without_stale_check(claims.claim_now))
    result = flood(site, [plan_of(SEED, number, slow=0.0) for number in range(5)], messages=60, seed=SEED, patience=2.0)
    assert any("was touched" in why or "5 early" in why for why in result.violations)
