"""Claims about how the benchmarks play rounds, compare, and report; none of them measures anything."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench import jobs, report
from bench.__main__ import WORKLOADS
from bench.contests import Contest, Entrant, Goal, Metric, Outcome, play

RATE = Metric("rate", "flows/s")
COST = Metric("cost", "µs", more=False)


def outcome(**values: list[float]) -> Outcome:
    found = Outcome(Contest("happy", "a contest", (RATE, COST), ()))
    for name, rounds in values.items():
        for value in rounds:
            found.add(Entrant(name, dict), {"rate": value, "cost": value})
    return found


def test_entrants_take_turns_and_another_one_begins_each_round() -> None:
    played: list[str] = []

    def entrant(name: str) -> Entrant:
        def plays() -> dict[str, float]:
            played.append(name)
            return {"rate": 1.0}

        return Entrant(name, plays)

    contest = Contest("happy", "turns", (RATE,), (entrant("aft"), entrant("peer"), entrant("limit")))
    play(contest, 3, lambda name: None)
    assert played == ["aft", "peer", "limit", "peer", "limit", "aft", "limit", "aft", "peer"]


def test_who_fails_does_not_play_on_and_does_not_end_the_contest() -> None:
    calls = []

    def fail() -> dict[str, float]:
        calls.append(1)
        raise jobs.JobFailed("no such queue")

    contest = Contest("happy", "failing", (RATE,), (Entrant("aft", lambda: {"rate": 2.0}), Entrant("peer", fail)))
    found = play(contest, 3, lambda name: None)
    assert found.figures["rate"]["aft"].values == [2.0, 2.0, 2.0]
    assert found.failures == {"peer": "no such queue"}
    assert len(calls) == 1


def test_a_figure_is_the_median_with_its_spread() -> None:
    figure = outcome(aft=[3.0, 9.0, 4.0]).figures["rate"]["aft"]
    assert (figure.median, figure.spread) == (4.0, (3.0, 9.0))


def test_a_ratio_is_above_one_where_aft_is_better_whatever_is_counted() -> None:
    found = outcome(aft=[10.0], peer=[5.0])
    assert found.ratio(RATE, "peer") == 2.0
    assert found.ratio(COST, "peer") == 0.5


def test_the_best_of_ours_is_compared() -> None:
    found = Outcome(Contest("happy", "a contest", (RATE, COST), ()))
    for name, value in (("aft 2 × 4", 10.0), ("aft 2 × 16", 20.0), ("peer", 5.0)):
        found.add(Entrant(name, dict), {"rate": value})
    assert found.best(RATE) == "aft 2 × 16"
    assert found.ratio(RATE, "peer") == 4.0


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal("rate", 2.0, "peer"), True),
        (Goal("rate", 2.1, "peer"), False),
        (Goal("rate", 2.0, "nobody"), None),
        (Goal("cost", 0.5, "peer"), True),
        (Goal("cost", 9.0), False),
        (Goal("cost", 10.0), True),
    ],
)
def test_goals_are_ratios_or_figures(goal: Goal, reached: bool | None) -> None:
    assert outcome(aft=[10.0], peer=[5.0]).reached(goal) is reached


def test_a_goal_may_be_one_of_ours_alone() -> None:
    found = outcome(**{"aft 2 × 4": [10.0], "aft submit": [6.0], "peer": [5.0]})
    goals = [Goal("rate", limit, "peer", ours="aft submit") for limit in (1.2, 1.3)]
    assert [found.reached(goal) for goal in goals] == [True, False]
    assert found.reached(Goal("rate", 1.0, "peer", ours="aft in other ways")) is None


def test_a_goal_for_each_of_ours_is_reached_by_the_worst_of_them() -> None:
    found = outcome(aft_one=[10.0], aft_two=[20.0], peer=[50.0])
    assert [found.reached(Goal("cost", limit, each=True)) for limit in (15.0, 20.0)] == [False, True]
    assert [found.reached(Goal("rate", limit, each=True)) for limit in (15.0, 10.0)] == [False, True]


def test_the_page_keeps_what_stands_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "PERFORMANCE.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.put_into(page, "new")
    report.put_into(page, "newer")
    assert page.read_text() == f"before\n{report.BEGIN}\nnewer\n{report.END}\nafter\n"


def test_the_page_of_the_repository_has_a_place_for_the_figures() -> None:
    text = (jobs.ROOT / "PERFORMANCE.md").read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1


def test_every_workload_is_played() -> None:
    found = {path.stem for path in (jobs.ROOT / "bench" / "workloads").glob("*.py")} - {"__init__"}
    assert set(WORKLOADS) == found
    assert all(callable(importlib.import_module(f"bench.workloads.{name}").contests) for name in WORKLOADS)


def test_a_tally_counts_what_several_hands_write(tmp_path: Path) -> None:
    one, other = jobs.Tally(str(tmp_path / "tally")), jobs.Tally(str(tmp_path / "tally"))
    one.add()
    other.add()
    assert one.count() == other.count() == 2
    assert one.wait_until(2, 0.0)[0] == 2
    with pytest.raises(jobs.JobFailed, match="only 2 of 3"):
        one.wait_for(3, 0.0)


def test_settings_of_aft_do_not_reach_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_DATABASE_URL", "sqlite:///elsewhere.db")
    assert not [name for name in jobs.environment() if name.startswith("AFT_")]
