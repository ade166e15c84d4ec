"""What ``aft doctor`` and ``aft workers list`` say of workers that died, and of runs that take too long."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

import aft
from tests.acceptance.commands import Dispatcher
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually

MODULE = """
    import aft


    @aft.flow
    def doctored() -> str:
        return "done"
"""


@aft.flow(name="doctor_waits")
def waits() -> str:
    told: str = aft.wait_for("never", str)
    return told


def check(report: dict[str, Any], name: str) -> dict[str, Any]:
    """The doctor's line of that name."""
    (found,) = [one for one in report["checks"] if one["name"] == name]
    return dict(found)


def diagnose(terminal: Terminal) -> dict[str, Any]:
    """The doctor's report, whether something is wrong or not."""
    result = terminal.call("doctor", "--json")
    return dict(json.loads(result.stdout))


def test_a_killed_dispatcher_is_dead_at_once_though_its_lease_stands(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctored.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(setup)
    with Dispatcher("dispatcher", "doctored", AFT_LEASE="10m", **setup.environ()) as dispatcher:
        dispatcher.until_it_says("ready")
        assert check(diagnose(terminal), "workers")["state"] == "ok"
        assert [one["alive"] for one in terminal.data("workers", "list")] == [True]
        dispatcher.process.kill()
        dispatcher.status()
    said = eventually(lambda: _said_of_dead(terminal))
    assert f"pid {dispatcher.process.pid} has died, last heartbeat" in said
    (worker,) = terminal.data("workers", "list")
    assert (worker["pid"], worker["alive"]) == (dispatcher.process.pid, False)
    assert "dead" in terminal.good("workers", "list").stdout
    shown = terminal.call("doctor").stdout
    assert "dead; heartbeat" in shown
    assert " alive; every role" not in shown


def _said_of_dead(terminal: Terminal) -> str:
    found = check(diagnose(terminal), "workers")
    return str(found["says"]) if found["says"].startswith("no dispatcher is alive") else ""


def test_a_run_that_waits_for_a_signal_is_none_that_should_go_on(setup: Setup) -> None:
    terminal = Terminal(setup)
    run = terminal.app.start(waits)
    assert run.status == "waiting"
    found = check(diagnose(terminal), "workers")
    assert (found["state"], found["says"]) == ("warning", "no dispatcher is alive")
    run.signal("never", "now")
    found = check(diagnose(terminal), "workers")
    assert (found["state"], found["says"]) == (
        "problem",
        "no dispatcher is alive, and 1 unfinished run cannot go on",
    )


def test_the_doctor_calls_overdue_what_the_list_calls_overdue_and_names_it(setup: Setup) -> None:
    terminal = Terminal(setup)
    app = terminal.app
    assert check(diagnose(terminal), "overdue")["state"] == "ok"
    run = app.start(waits.options(expected="1ms"))
    app.start(waits.options(expected="1h"))
    (listed,) = eventually(lambda: terminal.data("runs", "list", "--overdue"))
    assert listed["id"] == run.id
    report = diagnose(terminal)
    found = check(report, "overdue")
    assert found["state"] == "warning"
    assert found["says"] == f"1 run takes longer than expected: {run.id[-12:]}"
    assert "--overdue" in found["advice"]
    assert report["counts"]["overdue_runs"] == 1
    assert check(report, "stalled")["state"] == "ok"


def test_the_doctor_names_the_runs_that_nobody_goes_on_with(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(setup)
    monkeypatch.setenv("AFT_GRACE", "10ms")
    runs = [setup.app(grace=0.01).submit(waits) for _ in range(6)]
    report = eventually(lambda: _when_stalled(terminal, len(runs)))
    says = check(report, "stalled")["says"]
    assert says.startswith("6 runs stalled, the oldest for ")
    assert says.endswith(f"{', '.join(run.id[-12:] for run in runs[:5])} and 1 more")
    assert check(report, "overdue")["state"] == "ok"
    assert terminal.data("runs", "list", "--overdue") == []


def _when_stalled(terminal: Terminal, runs: int) -> dict[str, Any] | None:
    report = diagnose(terminal)
    return report if report["counts"]["stalled_runs"] == runs else None
