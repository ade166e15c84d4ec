"""Claims about finding runs: by what they are, what was said about them, and what went wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import aft
from aft import do
from aft.errors import DefinitionError
from tests.acceptance.terminal import Terminal
from tests.acceptance.theatre import teach
from tests.setups import Setup, dispatching, eventually
from tests.world import broken


class BankAway(Exception):
    """The bank does not answer."""


@aft.activity(name="finding_charge", levels=[])
def charge(order: str) -> str:
    if order in broken:
        raise BankAway(f"no answer for {order} from host {len(order)}")
    return order


@aft.activity(name="finding_ship", levels=[])
def ship(order: str) -> str:
    if ("ship", order) in broken:
        raise aft.Unrecoverable(f"the lorry for {order} is full")
    return order


@aft.flow(name="finding_buy", version=2)
def buy(order: str) -> str:
    charge(order)
    return ship(order)


@aft.flow(name="finding_count")
def count(number: int) -> int:
    if number < 0:
        raise TypeError("a mistake in the flow's code")
    return number


@dataclass
class Found:
    """Runs of one namespace, by names."""

    app: aft.Aft
    runs: dict[str, aft.Run[Any]]

    def names(self, where: str | None = None, **wanted: Any) -> list[str]:
        names = {run.id: name for name, run in self.runs.items()}
        return [names[run.id] for run in self.app.runs(where, **wanted)]


@pytest.fixture
def found(setup: Setup, show: str) -> Iterator[Found]:
    app = setup.app()
    broken.update({f"{show}-2", ("ship", f"{show}-3")})
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "bought": {"key": f"{show}/1", "owner": "ads", "tags": {"region": "eu", "tier": 3, "all": [1]}},
        "away": {"key": f"{show}/2", "resources": ["bank", "post"], "tags": {"region": "us"}},
        "full": {"key": "100%_other", "priority": 5, "tags": {"region": "eu"}, "expected": "1ms"},
    }
    runs: dict[str, aft.Run[Any]] = {"plain": app.start(count, 1)}
    for number, name in enumerate(list(options)[1:], 1):
        runs[name] = app.start(buy.options(**options[name]), f"{show}-{number}")
    runs["mistake"] = app.start(count, -1)
    with dispatching(app):
        eventually(lambda: all(run.status.ended or run.status == "parked" for run in runs.values()))
    yield Found(app, runs)
    broken.difference_update({f"{show}-2", ("ship", f"{show}-3")})


def test_every_field_finds_its_runs_newest_first(found: Found, show: str) -> None:
    everything = ["mistake", "full", "away", "bought", "plain"]
    assert found.names() == everything
    cases = {
        "status:parked": ["mistake"],
        "status:parked,completed": ["mistake", "bought", "plain"],
        "flow:finding_count": ["mistake", "plain"],
        "flow:finding_buy@2": ["full", "away", "bought"],
        "flow:finding_buy@1": [],
        f"key:{show}/1": ["bought"],
        f"key:{show}/*": ["away", "bought"],
        "key:100%_*": ["full"],
        "key:100%o*": [],
        "tag:region=eu": ["full", "bought"],
        "tag:region=eu tag:tier=3": ["bought"],
        "tag:tier='\"3\"'": [],
        "owner:ads": ["bought"],
        "resource:post": ["away"],
        "priority:5": ["full"],
        "since:1h": everything,
        "since:1h until:10m": [],
        "until:10m": [],
        "reason:mistake": ["mistake"],
        "activity:finding_charge": ["away"],
        "fault:BankAway": ["away"],
        f"fault:{__name__}.BankAway": ["away"],
        "fault:Away": [],
        "fault:Unrecoverable": ["full"],
        "text:'lorry for'": ["full"],
        "activity:finding_charge text:lorry": [],
        "status:failed,compensated flow:finding_buy": ["full", "away"],
    }
    for where, names in cases.items():
        assert found.names(where) == names, where
        assert found.app.count_runs(where) == len(names), where


def test_options_and_words_narrow_together_and_must_not_differ(found: Found) -> None:
    assert found.names("tag:region=eu", status="completed") == ["bought"]
    assert found.names("flow:finding_count", flow=count) == ["mistake", "plain"]
    with pytest.raises(DefinitionError, match="differs from what where= says"):
        found.app.runs("status:parked", status="completed")
    with pytest.raises(DefinitionError, match="there is no option 'stat'"):
        found.app.runs(stat="parked")  # type: ignore[call-arg]


def test_all_runs_are_read_page_after_page(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aft.runs.find.find_runs.PAGE", 2)
    assert [run.id for run in found.app.iter_runs()] == [run.id for run in found.app.runs()]
    assert [run.id for run in found.app.iter_runs("tag:region=eu")] == [found.runs[n].id for n in ("full", "bought")]


def test_failures_of_one_cause_are_one_group_and_lead_to_their_runs(setup: Setup, show: str) -> None:
    app = setup.app()
    orders = [f"{show}-{number}" for number in range(3)]
    broken.update([*orders, ("ship", f"{show}-9")])
    runs = [app.start(buy, order) for order in (*orders, f"{show}-9")]
    with dispatching(app):
        eventually(lambda: all(run.status.ended for run in runs))
    groups = app.failure_groups(since="1h")
    assert [(one.count, one.runs, one.example.name) for one in groups] == [
        (3, 3, "finding_charge"),
        (1, 1, "finding_ship"),
    ]
    assert sum(groups[0].trend) == 3
    assert groups[0].first_at <= groups[0].last_at
    assert [run.id for run in app.runs(f"group:{groups[0].id}")] == [run.id for run in reversed(runs[:3])]
    assert app.failure_groups(since="1ms") == []
    broken.difference_update([*orders, ("ship", f"{show}-9")])


def test_tags_that_rules_set_are_found_and_erased_ones_are_not(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, buy, "fault", "true", do.set(tags={"region": "mars"}), do.complete("away"))
    broken.add(f"{show}-1")
    with dispatching(app):
        run = app.submit(buy.options(tags={"region": "eu", "tier": 1}), f"{show}-1")
        run.result(timeout=60)
    assert [one.id for one in app.runs("tag:region=mars tag:tier=1")] == [run.id]
    assert app.runs("tag:region=eu") == []
    run.forget()
    assert app.runs("tag:region=mars") == []


# At the terminal ------------------------------------------------------------------------------------------------------


def test_the_command_line_finds_counts_and_pages(terminal: Terminal, show: str) -> None:
    runs = [terminal.app.start(count.options(tags={"nth": number}), number) for number in range(3)]
    listed = terminal.good("runs", "list", "--where", "tag:nth=1").stdout
    assert runs[1].id[-12:] in listed
    assert runs[0].id[-12:] not in listed
    assert terminal.good("runs", "list", "--count").output.strip() == "3"
    page = terminal.good("runs", "list", "--limit", "1", "--before", runs[1].id).stdout
    assert runs[0].id[-12:] in page
    nothing = terminal.good("runs", "list", "--where", "tag:nth=9 since:1h")
    assert "No runs with tag nth=9 made since" in nothing.stderr
    assert "did you mean 'status'" in terminal.refused("runs", "list", "--where", "statuz:parked")


def test_the_command_line_lists_groups_of_failures(terminal: Terminal, show: str) -> None:
    assert "No faults" in terminal.good("faults", "groups").stderr
    broken.add(show)
    run = terminal.app.start(buy, show)
    with dispatching(terminal.app):
        eventually(lambda: run.status.ended)
    listed = terminal.good("faults", "groups").stdout
    (group,) = terminal.app.failure_groups()
    assert group.id in listed
    assert "finding_charge" in listed
    assert f'"group": "{group.id}"' in terminal.good("faults", "groups", "--json").stdout
    broken.discard(show)
