"""One order to many runs from the command line: previewed, asked about, carried out, and reported."""

from __future__ import annotations

import pytest

import aft
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually
from tests.world import fixed

pytestmark = pytest.mark.usefixtures("bare_environment")


@aft.flow(name="cli_sick")
def sick(order: str) -> str:
    assert order in fixed, "a mistake in the flow's own code parks the run"
    return "well"


def make_sick(app: aft.Aft, order: str, number: int) -> None:
    for _ in range(number):
        app.submit(sick, order)
    eventually(lambda: app.count_runs("status:parked") == number)


def test_many_runs_are_retried_and_the_report_says_what_came_of_it(
    terminal: Terminal, embedded: Setup, order: str
) -> None:
    app = embedded.app()
    with app.dispatcher():
        make_sick(app, order, 7)
        shown = terminal.good("runs", "retry", "--where", "flow:cli_sick", "--preview")
        assert "7 runs would be retried: 7 parked." in shown.stderr
        assert app.operations.list() == []
        assert "--yes" in terminal.call("runs", "retry", "--where", "flow:cli_sick").stderr
        assert app.operations.list() == []
        stopped = terminal.call("runs", "retry", "--where", "flow:cli_sick", "--yes")
        assert stopped.exit_code == 1
        assert "has stopped: 1 of 1 runs failed again, with the same failure" in stopped.stderr
        fixed.add(order)
        (operation,) = app.operations.list()
        terminal.good("operations", "resume", operation.id)
        assert operation.wait(60) == "done"
    listed = terminal.data("operations", "list")
    assert [(one["state"], one["runs"]["passed"], one["runs"]["returned"]) for one in listed] == [("done", 6, 1)]
    assert "6 passed, 1 failed with the same failure" in terminal.good("operations", "show", operation.id).stdout
    assert "cannot" not in terminal.good("operations", "list").stdout


def test_a_command_says_which_runs_it_needs(terminal: Terminal, embedded: Setup) -> None:
    embedded.app().check()
    assert "RUN, --where WORDS or --all" in terminal.refused("runs", "suspend", status=2)
    assert "RUN, --where WORDS or --all" in terminal.refused("runs", "suspend", "x", "--all", status=2)
    assert "--brake 'much'" in terminal.refused("runs", "retry", "--all", "--brake", "much", status=2)
    assert "0 runs would be" in terminal.good("runs", "retry", "--where", "flow:none", "--preview").stderr
    assert "there are no runs" in terminal.call("runs", "retry", "--where", "flow:none", "--yes").stderr
    assert "no operation has the id 'x'" in terminal.refused("operations", "show", "x")
