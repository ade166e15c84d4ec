"""Schedules, as a person meets them on the command line; and runs that begin later."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from aft.cli.root import root
from aft.dispatcher.sweep.schedules import ScheduleFirer
from aft.store.tables import schedules
from tests.acceptance.terminal import Terminal
from tests.setups import Setup

pytestmark = pytest.mark.usefixtures("bare_environment")

KEYS = {
    "name",
    "flow",
    "version",
    "args",
    "cron",
    "every_seconds",
    "zone",
    "catch_up",
    "overlap",
    "options",
    "paused",
    "broken",
    "next_at",
    "next_local",
    "last_at",
    "last_local",
    "last_run",
    "last_status",
    "skipped_at",
    "skipped_why",
    "made_by",
    "changed_by",
    "created_at",
    "updated_at",
}
PAYS = "tests.acceptance.agency:pays"
NIGHTLY = ("add", "nightly", PAYS, "j-1", "--cron", "30 2 * * *", "--zone", "Europe/Vienna")
#: A moment of NIGHTLY in summer.
MOMENT = datetime(2041, 5, 17, 0, 30, tzinfo=UTC)


class ScheduleDesk(Terminal):
    def set_row(self, name: str, **values: Any) -> None:
        statement = update(schedules).where(schedules.c.namespace == self.app.namespace, schedules.c.name == name)
        with self.app.store.write() as connection:
            connection.execute(statement.values(**values))

    def fire(self, at: datetime) -> None:
        ScheduleFirer(self.app.make_dispatcher_deps()).fire_due(at)


@pytest.fixture
def terminal(setup: Setup) -> ScheduleDesk:
    return ScheduleDesk(setup)


# --- declaring ---


def test_a_schedule_is_made_and_listed_with_its_times_in_both_zones(terminal: ScheduleDesk) -> None:
    said = terminal.good("schedules", *NIGHTLY, "--owner", "ads", "--priority", "3").stderr
    assert "Schedule 'nightly' is due next at " in said
    assert " in Europe/Vienna." in said
    assert "no live dispatcher fires schedules; start one with `aft dispatcher MODULE`" in said
    terminal.set_row("nightly", next_at=MOMENT)
    (found,) = terminal.data("schedules", "list")
    assert set(found) == KEYS
    assert (found["flow"], found["version"], found["args"]) == ("agency_pays", None, {"journey": "j-1"})
    assert (found["next_at"], found["next_local"]) == ("2041-05-17T00:30:00+00:00", "2041-05-17T02:30:00+02:00")
    assert (found["options"]["owner"], found["options"]["priority"]) == ("ads", 3)
    assert (found["made_by"], found["last_status"]) == ("night-watch", None)
    table = terminal.good("schedules", "list").stdout
    assert "2041-05-17 00:30" in table
    assert "2041-05-17 02:30:00 CEST" in table
    assert "30 2 * * * Europe/Vienna" in table


def test_the_last_run_and_its_status_are_listed(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", "add", "now", PAYS, "j-2", "--every", "6h")
    run = terminal.good("schedules", "now", "now").stdout.strip()
    (found,) = terminal.data("schedules", "list")
    assert (found["last_run"], found["last_status"]) == (run, "running")
    with terminal.app.dispatcher():
        assert terminal.app.run(run).result(60) == "paid"
    table = terminal.good("schedules", "list").stdout
    assert run[-12:] in table
    assert "completed" in table
    assert "every 6h" in table


def test_the_same_schedule_again_changes_nothing(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    before = terminal.data("schedules", "list")
    assert "was there already, just like this" in terminal.good("schedules", *NIGHTLY).stderr
    assert terminal.data("schedules", "list") == before


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    before = terminal.data("schedules", "list")
    other = ("add", "nightly", PAYS, "j-2", "--cron", "0 4 * * *")
    said = terminal.refused("schedules", *other)
    assert said == (
        "aft: schedule 'nightly' is there already; what differs: args, cron, zone. Choose another name, or replace it: "
        "--replace"
    )
    assert terminal.data("schedules", "list") == before
    terminal.good("schedules", *other, "--replace")
    (found,) = terminal.data("schedules", "list")
    assert (found["cron"], found["args"], found["zone"]) == ("0 4 * * *", {"journey": "j-2"}, "UTC")


def test_a_version_can_be_pinned(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", "add", "pinned", "agency_pays@1", "j", "-m", "tests.acceptance.agency", "--every", "1h")
    assert terminal.data("schedules", "list")[0]["version"] == 1
    assert "agency_pays@1" in terminal.good("schedules", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((PAYS, "j", "--cron", "61 * * * *"), "schedule 'bad': cron='61 * * * *' cannot be read: bad minute"),
        ((PAYS, "j", "--cron", "daily"), "must have five fields"),
        ((PAYS, "j", "--cron", "0 3 * * *", "--zone", "Europe/Viena"), "did you mean 'Europe/Vienna'?"),
        ((PAYS, "j", "--every", "500ms"), "every='500ms' is not between one second and ten years"),
        ((PAYS, "j", "--every", "soon"), "'soon' is not a duration; write"),
        (("tests.acceptance.agency:payz", "j", "--every", "1h"), "no flow 'payz' is registered here"),
        (("no_such_module:pays", "j", "--every", "1h"), "there is no module 'no_such_module'"),
        ((PAYS, "--every", "1h"), "missing a required argument: 'journey'"),
        ((PAYS, "j", "k=1", "--every", "1h"), "has no argument 'k'"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_changed(
    production: Setup, arguments: tuple[str, ...], said: str
) -> None:
    terminal = Terminal(production)
    assert said in terminal.refused("schedules", "add", "bad", *arguments)
    assert terminal.data("schedules", "list") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "bad", PAYS, "j"), "say when: either --cron '0 3 * * *' or --every 15m"),
        (("add", "bad", PAYS, "j", "--cron", "0 3 * * *", "--every", "1h"), "either --cron"),
        (("add", "bad", "pays", "j", "--every", "1h"), "Write MODULE:pays, or add -m MODULE"),
        (("add", "bad", PAYS, "j", "--every", "1h", "--catch-up", "none"), "'skip', 'one', 'all'"),
        (("add", "bad"), "MODULE:FLOW"),
        (("pause",), "NAME"),
        (("lst",), "did you mean 'list'?"),
    ],
)
def test_a_command_line_that_is_wrong_is_a_matter_of_usage(
    production: Setup, arguments: tuple[str, ...], said: str
) -> None:
    assert said in Terminal(production).refused("schedules", *arguments, status=2)


# --- by hand ---


def test_a_schedule_is_paused_resumed_and_removed(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    assert "`aft schedules resume nightly` continues it" in terminal.good("schedules", "pause", "nightly").stderr
    assert terminal.data("schedules", "list")[0]["paused"] is True
    assert "paused" in terminal.good("schedules", "list").stdout
    assert "'nightly' is paused already, by 'night-watch'" in terminal.refused("schedules", "pause", "nightly")
    assert "is due next at" in terminal.good("schedules", "resume", "nightly").stderr
    assert "is not paused" in terminal.refused("schedules", "resume", "nightly")
    assert "was removed" in terminal.good("schedules", "remove", "nightly").stderr
    assert terminal.data("schedules", "list") == []


@pytest.mark.parametrize("command", ["pause", "resume", "remove", "now"])
def test_a_schedule_that_is_not_there_is_named(production: Setup, command: str) -> None:
    said = Terminal(production).refused("schedules", command, "nigtly")
    assert "no schedule has the name 'nigtly'" in said
    assert said.endswith("`aft schedules list` shows what there is")


def test_a_second_run_at_once_is_refused_where_none_may_overlap(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    run = terminal.good("schedules", "now", "nightly").stdout.strip()
    assert f"run {run} has not ended; wait for its end" in terminal.refused("schedules", "now", "nightly")


def test_a_moment_that_was_let_go_is_shown_with_the_reason(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    run = terminal.good("schedules", "now", "nightly").stdout.strip()
    terminal.set_row("nightly", next_at=MOMENT)
    terminal.fire(MOMENT)
    table = terminal.good("schedules", "list").stdout
    assert f"skipped 2041-05-17 00:30:00.000 UTC: run {run} has not ended, and overlap is off" in table


def test_a_broken_schedule_is_shown_and_declared_anew(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    terminal.set_row("nightly", next_at=MOMENT, zone="Middle/Earth")
    terminal.fire(MOMENT)
    shown = terminal.good("schedules", "list")
    assert "broken" in shown.stdout
    assert "zone='Middle/Earth' is not a time zone" in shown.stdout
    assert "declare it again" in shown.stderr
    assert terminal.data("schedules", "list")[0]["next_local"] is None
    assert "cannot be resumed" in terminal.refused("schedules", "resume", "nightly")
    terminal.good("schedules", *NIGHTLY, "--replace")
    assert terminal.data("schedules", "list")[0]["broken"] is None


def test_the_doctor_tells_of_schedules_that_nobody_fires_and_of_broken_ones(terminal: ScheduleDesk) -> None:
    terminal.good("schedules", *NIGHTLY)
    sick = terminal.call("doctor")
    assert sick.exit_code == 1
    assert "no live process fires 1 schedule" in sick.stdout
    assert "start a dispatcher with the role sweep" in sick.stdout
    with terminal.app.dispatcher():
        assert "1 schedule fired when due" in terminal.call("doctor").stdout
    terminal.set_row("nightly", next_at=MOMENT, zone="Middle/Earth")
    terminal.fire(MOMENT)
    assert "'nightly' is broken: it cannot be fired: zone='Middle/Earth'" in terminal.call("doctor").stdout


def test_without_schedules_the_way_to_one_is_told(terminal: ScheduleDesk) -> None:
    shown = terminal.good("schedules", "list")
    assert shown.stdout == ""
    assert "Make one with `aft schedules add NAME MODULE:FLOW --cron '0 3 * * *'`" in shown.stderr


def test_looking_makes_no_database(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'none.db'}"
    result = CliRunner().invoke(root, ["--database", place, "schedules", "list"])
    assert result.exit_code == 0
    assert "No schedules: there is no database" in result.stderr
    assert list(tmp_path.iterdir()) == []


# --- later ---


def test_a_run_is_started_later_and_says_when(terminal: ScheduleDesk) -> None:
    started = terminal.good("runs", "start", PAYS, "j-3", "--at", "2041-05-17T08:00+02:00")
    assert "It begins at 2041-05-17 06:00:00.000 UTC." in started.stderr
    run = started.stdout.strip()
    assert "begins at 2041-05-17 06:00" in terminal.good("runs", "list").stdout
    assert "It begins at 2041-05-17 06:00:00.000 UTC." in terminal.good("runs", "show", run).stderr
    assert terminal.data("runs", "show", run)["due_at"] == "2041-05-17T06:00:00+00:00"


def test_a_run_that_is_started_after_a_while_waits_for_it(terminal: ScheduleDesk) -> None:
    with terminal.app.dispatcher():
        soon = terminal.good("runs", "start", PAYS, "j-4", "--after", "300ms", "--wait=20")
        assert soon.stdout.strip() == '"paid"'
        later = terminal.good("runs", "start", PAYS, "j-5", "--after", "1h").stdout.strip()
        past = terminal.good("runs", "start", PAYS, "j-6", "--at", "2001-01-01T00:00Z", "--wait=20")
        assert past.stdout.strip() == '"paid"'
        assert terminal.app.run(later).row.started_at is None


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (("--after", "soon"), "after: 'soon' is not a duration", 1),
        (("--after", "0s"), "leaves no time at all", 1),
        (("--at", "tomorrow"), "'tomorrow' is not a time; write it as 2027-01-31T08:00+01:00", 1),
        (("--at", "2041-05-17T08:00"), "does not say in which zone", 1),
        (("--at", "2041-05-17T08:00Z", "--after", "1h"), "give one of the two", 1),
        (("--after", "1h", "--here"), "--here executes it now", 2),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(
    production: Setup, arguments: tuple[str, ...], said: str, status: int
) -> None:
    terminal = Terminal(production)
    assert said in terminal.refused("runs", "start", PAYS, "j", *arguments, status=status)
    assert terminal.data("runs", "list") == []
