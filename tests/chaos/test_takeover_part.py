"""One kill at a time: a round in which the host took the processors away is told apart, and made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import part_takeover
from chaos.ledger import Ledger
from chaos.load import Plan, StepPlan
from chaos.part_takeover import Following, Host, kill_each, measure
from chaos.setups import Site
from chaos.takeover import Takeover

PLANS = [Plan(f"p{number}", (StepPlan("slow", seconds=1.0), StepPlan("plain")), "completed") for number in range(4)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A place without servers, whose leases outlast a machine that stands still."""
    made = Site("sqlite+embedded", f"sqlite:///{tmp_path / 'aft.db'}", "embedded", tmp_path)
    made.settings |= {"lease": "60s"}
    made.prepare()
    yield made
    made.forget()


def test_a_round_that_the_host_disturbed_is_made_again_and_told_apart(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.5, 0.0, 0.05])
    monkeypatch.setattr(Host, "share_since", lambda self, before: next(shares))
    monkeypatch.setattr(part_takeover, "ORDINARY", 1)
    result = kill_each(site, PLANS, 2, seed=1)
    assert result.violations == []
    assert (result.runs, result.faults) == (3, {"SIGKILL": 3})
    assert result.figures["rounds"] == {"undisturbed": 2, "disturbed by the host": 1, "missing": 0}


def test_a_host_that_takes_the_processors_in_every_round_leaves_a_figure_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "share_since", lambda self, before: 0.2)
    monkeypatch.setattr(part_takeover, "ORDINARY", 1)
    result = kill_each(site, PLANS[:1], 1, seed=1).compared({"rounds": {"missing": 0}})
    assert result.missed == ["rounds: missing 1, wanted 0 at most"]


def test_figures_are_of_the_rounds_that_were_not_disturbed() -> None:
    plans = [*PLANS, Plan("long", (StepPlan("slow", seconds=5.0), StepPlan("plain")), "completed")]
    found = [
        Takeover(plan.name, "0", seconds, short=False)
        for plan, seconds in zip(plans, [0.07, 8.0, 0.08, 0.09, 1.2], strict=True)
    ]
    shares = {"p0": 0.1, "p1": 0.11, "p2": 0.0, "p3": 0.0, "long": 0.0}
    assert measure(plans, found, shares, kills=5) == {
        "steps under 3 s": {"count": 3, "p50": 0.08, "p99": 0.09, "max": 0.09},
        "all": {"count": 4, "p50": 0.09, "p99": 1.2, "max": 1.2},
        "rounds": {"undisturbed": 4, "disturbed by the host": 1, "missing": 1},
        "while disturbed": {"count": 1, "p50": 8.0, "p99": 8.0, "max": 8.0},
    }


def test_the_host_s_share_is_of_all_that_the_processors_did() -> None:
    assert Host(300, 60).share_since(Host(100, 10)) == 0.25
    assert Host(100, 10).share_since(Host(100, 10)) == 0.0
    assert Host.look().ticks > Host.look().taken >= 0


def test_a_ledger_is_followed_line_by_line_and_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    ledger, (plan, other, *_) = Ledger(tmp_path / "ledger"), PLANS
    seen = Following(ledger)
    assert seen.lines(plan) == []
    ledger.append(plan.name, "0", "begin", "key", 1)
    ledger.append(other.name, "0", "begin", "key", 1)
    assert [line.what for line in seen.lines(plan)] == ["begin"]
    ledger.append(plan.name, "1", "done", "key", 1)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-10])
    assert not seen.ended(plan)
    ledger.path.write_bytes(whole)
    assert seen.ended(plan)
    assert seen.lines(plan) + seen.lines(other) == sorted(ledger.read(), key=lambda line: (line.load, line.at))
