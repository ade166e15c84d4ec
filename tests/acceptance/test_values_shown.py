"""What commands print of arguments, results, signals and tags is what people mean, not how aft stores it."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

import aft
from aft import do
from aft.cli.show import documents
from aft.runs.states import Status
from tests.acceptance.terminal import Terminal
from tests.setups import eventually

HERE = __name__
MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
MARK = "$aft"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    price: Decimal
    colours: tuple[Colour, ...]
    due: date


LINE = Line(Decimal("12.50"), (Colour.RED,), date(2026, 4, 1))
#: How that is shown.
SHOWN_LINE = {"price": "12.50", "colours": ["red"], "due": "2026-04-01"}


def unorder(line: Line, at: datetime) -> None: ...


@aft.compensate_with(unorder)
def shown_order(line: Line, at: datetime) -> dict[str, Any]:
    return {"id": UUID(int=7), "at": at, "parts": ({"net": Decimal("10.00")},), "raw": b"\x00" * 300}


class Full(aft.Unrecoverable):
    """There is no room."""


@aft.activity
def shown_refuses(amount: Decimal, at: date) -> Decimal:
    raise Full(f"no room for {amount}")


@aft.flow
def shown_buys(line: Line, at: datetime, within: timedelta = timedelta(minutes=1)) -> tuple[Any, ...]:
    made = shown_order(line, at)
    limit = aft.wait_for("limit", Decimal)
    return (made["parts"], limit, line.due)


@aft.flow
def shown_fails(line: Line, at: datetime) -> None:
    shown_order(line, at)
    shown_refuses(line.price, line.due)


@pytest.fixture(autouse=True)
def plain(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those that a command is given, and a wide terminal."""
    monkeypatch.setenv("COLUMNS", "400")


def said(terminal: Terminal, *arguments: str) -> str:
    """What a command prints, which holds nothing of the encoding."""
    result = terminal.good(*arguments)
    assert MARK not in result.stdout + result.stderr
    return result.stdout


def data(terminal: Terminal, *arguments: str) -> Any:
    return json.loads(said(terminal, *arguments, "--json"))


def test_a_story_a_stack_and_a_preview_show_values_as_people_write_them(terminal: Terminal) -> None:
    with terminal.app.dispatcher():
        run = terminal.app.submit(shown_buys.options(tags={"batch": "b-1"}), LINE, MOMENT)
        eventually(lambda: run.status is Status.WAITING)
        story = said(terminal, "runs", "show", run.id)
        args = f'line={json.dumps(SHOWN_LINE)}, at="2026-03-01T12:30:00+00:00", within=60.0'
        assert f"shown_buys  {args}" in story
        assert 'id="00000000-0000-0000-0000-000000000007"' in story
        assert 'parts=[{"net": "10.00"}]' in story
        assert "AAAAA…" in story  # of the bytes, the beginning
        stack = said(terminal, "stack", run.id)
        assert json.dumps(SHOWN_LINE) in stack
        assert '"parts": [{"net": "10.00"}]' in stack
        preview = said(terminal, "runs", "compensate", run.id, "--dry-run")
        assert json.dumps(SHOWN_LINE) in preview
        (undo,) = data(terminal, "runs", "compensate", run.id, "--dry-run")
        assert undo["arguments"] == {"line": SHOWN_LINE, "at": "2026-03-01T12:30:00+00:00"}
        assert undo["result"]["parts"] == [{"net": "10.00"}]
        run.signal("limit", Decimal("99.90"))
        assert run.result(60) == (({"net": Decimal("10.00")},), Decimal("99.90"), date(2026, 4, 1))
    found = data(terminal, "runs", "show", run.id)
    assert found["args"]["line"] == SHOWN_LINE
    assert found["result"] == [[{"net": "10.00"}], "99.90", "2026-04-01"]
    assert found["inbox"][0]["value"] == "99.90"
    assert {one["what"]: one["detail"] for one in found["timeline"]}["signal"] == '"99.90"'
    assert data(terminal, "stack", run.id)["frames"][0]["args"]["line"] == SHOWN_LINE
    assert data(terminal, "runs", "list")[0]["args"]["line"] == SHOWN_LINE
    story = said(terminal, "runs", "show", run.id)
    assert 'limit  "99.90"' in story
    assert 'completed  [[{"net": "10.00"}], "99.90", "2026-04-01"]' in story


def test_a_signal_that_nobody_has_asked_for_is_shown_as_it_was_sent(terminal: Terminal) -> None:
    run = terminal.app.submit(shown_buys, LINE, MOMENT)
    run.signal("limit", Decimal("1.5"))
    assert "signal 'limit'  \"1.5\"" in said(terminal, "runs", "show", run.id)


def test_a_fault_its_rules_and_its_tags_are_shown_without_tags_of_the_encoding(terminal: Terminal) -> None:
    app = terminal.app
    dated = aft.Exlet("shown_dated", [do.set(tags={"until": date(2026, 5, 1)}), do.complete(Decimal("7.5"))])
    app.rules.add_exlet(dated)
    with app.dispatcher():
        first = app.submit(shown_fails, LINE, MOMENT)
        eventually(lambda: first.status.ended)
    assert first.fault is not None
    app.rules.add(app.rules.propose(first.fault.id, "fault.name == 'Full'", "shown_dated"))
    with app.dispatcher():
        run = app.submit(shown_fails, LINE, MOMENT)
        eventually(lambda: run.status.ended)
    assert data(terminal, "runs", "show", run.id)["tags"] == {"until": "2026-05-01"}
    assert 'tags until="2026-05-01"' in said(terminal, "runs", "show", run.id)
    (fault,) = (one for one in app.faults() if one.run_id == run.id)
    assert documents.fault(fault)["ruling"]["result"] == ["7.5"]
    assert MARK not in json.dumps(documents.fault(fault))
    said(terminal, "rules", "explain", run.id)
    data(terminal, "rules", "explain", run.id)
    held = said(
        terminal, "rules", "test", run.id, "--if", "activity.args.at == '2026-04-01' && activity.args.amount == 12.5"
    )
    assert "2026-04-01" in held


def test_starting_a_run_prints_its_result_as_json(terminal: Terminal) -> None:
    assert json.loads(said(terminal, "runs", "start", f"{HERE}:shown_doubles", "2.5", "--here", "--wait")) == ["5.0"]
    assert 'completed: ["5.0"]' in terminal.good("runs", "start", f"{HERE}:shown_doubles", "2.5", "--here").stderr


@aft.flow
def shown_doubles(amount: Decimal) -> tuple[Decimal, ...]:
    return (amount * 2,)


def test_a_schedule_shows_its_arguments(terminal: Terminal) -> None:
    said(terminal, "schedules", "add", "nightly", f"{HERE}:shown_doubles", "2.5", "--every", "1h")
    said(terminal, "schedules", "list")
    assert data(terminal, "schedules", "list")[0]["args"] == {"amount": "2.5"}


def test_an_argument_that_does_not_fit_is_shown_with_its_field(terminal: Terminal) -> None:
    words = ("runs", "start", f"{HERE}:shown_buys")
    assert "argument line.due: this field is missing in a dict with 'price', 'colours'; " in terminal.refused(
        *words, '{"price": "1", "colours": []}', "2026-03-01T12:30:00Z"
    )
    line = terminal.refused("runs", "start", f"{HERE}:shown_doubles", "many")
    assert "argument amount: the str 'many' does not fit decimal.Decimal" in line
