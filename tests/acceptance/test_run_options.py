"""Every option of a run is honoured by whatever makes the run, or refused there with a sentence.

Driven by the fields of the options themselves: one that is added must be given here, and is tried in every way.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

import aft
from aft.app.schedule import Schedule
from aft.cli.root import root
from aft.dispatcher.sweep.schedules import ScheduleFirer
from aft.run_options import RunOptions
from aft.runs.run_rows import RunRow
from aft.runs.schedules.schedule_rows import decode_options, encode_options
from tests.setups import Setup

THEN = datetime(2041, 5, 17, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)

#: A value for each option, which is not its default.
GIVEN: dict[str, Any] = {
    "key": "options-of-runs",
    "priority": 3,
    "owner": "ads",
    "expected": "1h",
    "resources": ["cms", "payments"],
    "tags": {"vip": True, "$aft": "date", "nested": {"amounts": [1, 2.5, None]}},
    "deadline": "1h",
    "after": "1h",
    "at": THEN,
}


def _an_hour(since: datetime, until: datetime | None) -> bool:
    return until is not None and abs(until - since - HOUR) < timedelta(minutes=1)


#: Whether a run's row says what was given.
HONOURED: dict[str, Callable[[RunRow], bool]] = {
    "key": lambda row: row.key == GIVEN["key"],
    "priority": lambda row: row.priority == 3,
    "owner": lambda row: row.owner == "ads",
    "expected": lambda row: row.expected == HOUR,
    "resources": lambda row: row.resources == ("cms", "payments"),
    "tags": lambda row: row.tags == GIVEN["tags"],
    "deadline": lambda row: _an_hour(row.created_at, row.deadline_at),
    "after": lambda row: _an_hour(row.created_at, row.due_at),
    "at": lambda row: row.due_at == THEN,
}

OPTIONS = [option.name for option in fields(RunOptions)]


@aft.flow(name="run_options_waits")
def waits() -> None:
    aft.wait_for("never")


@aft.flow(name="run_options_anew")
def begins_anew(again: bool = False) -> None:
    if not again:
        aft.continue_as_new(True)
    aft.wait_for("never")


@aft.flow(name="run_options_parent")
def parent(option: str) -> None:
    waits.options(**{option: GIVEN[option]})()


def submitted(app: aft.Aft, option: str) -> RunRow:
    return app.submit(waits.options(**{option: GIVEN[option]})).row


def started(app: aft.Aft, option: str) -> RunRow:
    return app.start(waits.options(**{option: GIVEN[option]})).row


def begun_anew(app: aft.Aft, option: str) -> RunRow:
    row = app.start(begins_anew.options(**{option: GIVEN[option]})).row
    assert row.key_generation == 1
    return row


def called(app: aft.Aft, option: str) -> RunRow:
    """A child; what is refused in a flow's code parks the parent, with the sentence."""
    made = app.start(parent, option)
    if made.row.reason is not None:
        raise aft.DefinitionError(made.row.reason)
    (child,) = (run.row for run in app.runs(flow=waits) if run.row.parent_id == made.id)
    return child


def declared(app: aft.Aft, option: str) -> Schedule:
    call = waits.options(**{option: GIVEN[option]}).call()
    return app.schedule(f"s{secrets.token_hex(4)}", call, every="1s", overlap=True)


def made_now(app: aft.Aft, option: str) -> RunRow:
    return declared(app, option).run_now().row


def fired(app: aft.Aft, option: str) -> RunRow:
    schedule = declared(app, option)
    soon = schedule.row.next_at
    assert soon is not None
    ScheduleFirer(app.make_dispatcher_deps()).fire_due(soon)
    made = schedule.last_run
    assert made is not None
    schedule.remove()
    return made.row


WAYS: dict[Callable[[aft.Aft, str], RunRow], set[str]] = {
    submitted: set(),
    started: {"after", "at"},
    begun_anew: {"after", "at"},
    called: {"key"},
    made_now: {"key", "after", "at"},
    fired: {"key", "after", "at"},
}


def test_each_option_has_a_value_to_be_tried_with() -> None:
    assert list(GIVEN) == list(HONOURED) == OPTIONS


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_each_option_of_a_run_is_honoured_or_refused(way: Callable[[aft.Aft, str], RunRow], setup: Setup) -> None:
    app = setup.app()
    refused = WAYS[way]
    taken = [option for option in OPTIONS if option not in refused]
    assert [option for option in taken if HONOURED[option](way(app, option))] == taken
    for option in refused:
        with pytest.raises(aft.DefinitionError, match=rf"{option}=|app\.submit"):
            way(app, option)


def test_a_schedule_that_was_stored_before_there_were_deadlines_and_tags_is_the_same_schedule() -> None:
    stored = '{"expected": 60.0, "owner": "ads", "priority": 3, "resources": ["cms"]}'
    options = RunOptions(priority=3, owner="ads", expected=timedelta(minutes=1), resources=("cms",))
    assert decode_options(stored) == options
    assert encode_options(options) == stored


# --- on the command line ---

#: What is written for each option: its words.
WRITTEN: dict[str, list[str]] = {
    "key": ["--key", GIVEN["key"]],
    "priority": ["--priority", "3"],
    "owner": ["--owner", "ads"],
    "expected": ["--expected", "1h"],
    "resources": ["--resource", "cms", "--resource", "payments"],
    "tags": [word for name, value in GIVEN["tags"].items() for word in ("--tag", f"{name}={json.dumps(value)}")],
    "deadline": ["--deadline", "1h"],
    "after": ["--after", "1h"],
    "at": ["--at", THEN.isoformat()],
}


def command(setup: Setup, *words: str) -> str:
    setup.app().check()
    done = CliRunner().invoke(root, words, env=setup.environ(), catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_can_be_given_to_a_run_that_is_started_by_hand(option: str, setup: Setup) -> None:
    made = command(setup, "runs", "start", f"{__name__}:run_options_waits", *WRITTEN[option]).strip()
    assert HONOURED[option](setup.app().run(made).row)


def test_each_option_can_be_given_to_a_schedule_that_is_declared_by_hand(setup: Setup) -> None:
    options = [option for option in OPTIONS if option not in WAYS[fired]]
    words = [word for option in options for word in WRITTEN[option]]
    command(setup, "schedules", "add", "by-hand", f"{__name__}:run_options_waits", "--every", "1h", *words)
    row = setup.app().schedule("by-hand").run_now().row
    assert [option for option in options if HONOURED[option](row)] == options
    (told,) = json.loads(command(setup, "schedules", "list", "--json"))
    assert set(told["options"]) == set(options)
