"""Signal, suspend, resume, cancel: as a person types them, and what is said to a mistake."""

from __future__ import annotations

import enum
import threading
from pathlib import Path

import pytest

import aft
from aft.flows.declare.registry import declared
from aft.runs.records import inbox
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import child_runs
from tests.acceptance import agency
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually
from tests.world import gates, ledger

pytestmark = pytest.mark.usefixtures("bare_environment")

AGENCY = "tests.acceptance.agency"


def waiting(terminal: Terminal, journey: str) -> aft.Run:
    """A run that waits for the signal ``verdict``; nobody executes it any more."""
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.approval, journey)
        eventually(lambda: run.status is Status.WAITING)
    return run


def unread(terminal: Terminal, run: aft.Run) -> list[object]:
    with terminal.app.store.read() as connection:
        return [item.payload for item in inbox.unread(connection, run.id)]


def test_a_person_stops_a_run_lets_it_go_on_answers_it_and_takes_it_back(setup: Setup, journey: str) -> None:
    terminal = Terminal(setup)
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.approval, journey)
        eventually(lambda: run.status is Status.WAITING)
        said = terminal.good("runs", "suspend", run.id[-12:], "--note", "who asked for this?").stderr
        assert f"is suspended. `aft runs resume {run.id[-12:]}` continues it." in said
        assert terminal.data("runs", "show", run.id)["reason"] == "suspended by night-watch: who asked for this?"
        assert "goes on" in terminal.good("runs", "resume", run.id).stderr
        eventually(lambda: run.status is Status.WAITING)
        assert (
            "was sent signal 'verdict', and goes on" in terminal.good("runs", "signal", run.id, "verdict", "no").stderr
        )
        assert run.result(60) == "no"
        other = terminal.app.submit(agency.approval, journey)
        eventually(lambda: other.status is Status.WAITING)
        assert "is undone as soon as" in terminal.good("runs", "cancel", other.id, "--note", "a mistake").stderr
        eventually(lambda: other.status is Status.COMPENSATED)
    assert ledger[journey] == ["draft", "verdict no", "draft", "undraft"]
    assert "it was cancelled" in terminal.good("runs", "list", "--status", "compensated").stdout
    story = terminal.good("runs", "show", other.id).stdout
    assert "by night-watch: a mistake" in story


# Signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"), [("7", 7), ("seven", "seven"), ('"7"', "7"), ('{"a": [1]}', {"a": [1]}), ("NaN", "NaN")]
)
def test_a_value_is_json_or_plain_text(terminal: Terminal, journey: str, word: str, value: object) -> None:
    run = terminal.app.submit(agency.reminded, journey)
    terminal.good("runs", "signal", run.id, "anything", word)
    with terminal.app.store.read() as connection:
        (item,) = inbox.unread(connection, run.id)
    assert item.actor == "night-watch"
    assert terminal.data("runs", "show", run.id)["inbox"][0]["value"] == value


def test_a_value_may_be_left_out_or_negative(terminal: Terminal, journey: str) -> None:
    run = terminal.app.submit(agency.collects, journey, 1)
    terminal.good("runs", "signal", run.id, "refilled")
    terminal.good("runs", "signal", run.id, "number", "--", "-5")
    assert "put -- before" in terminal.refused("runs", "signal", run.id, "number", "-5", status=2)
    assert [one["value"] for one in terminal.data("runs", "show", run.id)["inbox"]] == [None, -5]


def test_a_value_that_nothing_has_checked_is_not_said_to_let_the_run_go_on(
    terminal: Terminal, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waiting(terminal, journey)
    monkeypatch.setattr(declared, "_flows", {})
    said = terminal.good("runs", "signal", run.id, "verdict", "perhaps").stderr
    assert "goes on as soon as a worker takes it, if its flow takes that value (-m MODULE" in said


def test_a_module_says_which_signals_and_values_there_are(
    terminal: Terminal, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waiting(terminal, journey)
    line = terminal.refused("runs", "signal", run.id, "veredict", "yes", "-m", AGENCY)
    assert "flow 'agency_approval' waits for no signal 'veredict'; did you mean 'verdict'?" in line
    assert "value" in terminal.refused("runs", "signal", run.id, "verdict", "perhaps", "-m", AGENCY)
    assert "there is no module" in terminal.refused("runs", "signal", run.id, "verdict", "yes", "-m", "nowhere")
    assert unread(terminal, run) == []
    said = terminal.good("runs", "signal", run.id, "verdict", "yes", "-m", AGENCY).stderr
    assert "goes on as soon as a worker takes it." in said
    monkeypatch.setattr(declared, "_flows", {})
    assert "agency_approval" in terminal.refused("runs", "signal", run.id, "verdict", "-m", AGENCY)
    assert len(unread(terminal, run)) == 1


def test_a_signal_that_nobody_awaits_is_kept_and_what_is_awaited_is_said(
    terminal: Terminal, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waiting(terminal, journey)
    monkeypatch.setattr(declared, "_flows", {})  # as in a process that has not imported the flow
    said = terminal.good("runs", "signal", run.id, "veredict", "yes").stderr
    assert "it is kept until the run waits for it" in said
    assert "note: now it waits for signal 'verdict'; did you mean 'verdict'?" in said
    run.suspend()
    assert "note: it is suspended now; `aft runs resume" in terminal.good("runs", "signal", run.id, "verdict").stderr
    assert len(unread(terminal, run)) == 2


def test_a_signal_that_a_child_awaits_is_told_to_go_there(terminal: Terminal, journey: str) -> None:
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.waits_below, journey)
        eventually(lambda: len(family(terminal, run)) == 2 and family(terminal, run)[1].status is Status.WAITING)
    child = family(terminal, run)[1]
    said = terminal.good("runs", "signal", run.id, "verdict", "yes").stderr
    assert f"note: its relative {child.id[-12:]} of flow 'agency_approval' waits for that" in said
    assert f"`aft runs signal {child.id[-12:]} verdict …`" in said


def family(terminal: Terminal, run: aft.Run) -> list[RunRow]:
    with terminal.app.store.read() as connection:
        return child_runs.all_of(connection, run.id)


def test_a_signal_with_a_used_key_is_dropped_and_that_is_said(terminal: Terminal, journey: str) -> None:
    run = waiting(terminal, journey)
    terminal.good("runs", "signal", run.id, "verdict", "yes", "--key", "ticket-7")
    said = terminal.good("runs", "signal", run.id, "verdict", "no", "--key", "ticket-7").stderr
    assert "with key 'ticket-7' before; nothing was sent now" in said
    assert len(unread(terminal, run)) == 1


def test_a_signal_to_a_run_that_no_worker_has_says_so(terminal: Terminal, journey: str) -> None:
    run = waiting(terminal, journey)
    assert (
        "no live worker has flow agency_approval@1" in terminal.good("runs", "signal", run.id, "verdict", "no").stderr
    )


# Stopping ---------------------------------------------------------------------------------------------------------


def test_a_run_that_is_executed_stops_at_its_next_step(terminal: Terminal, journey: str) -> None:
    gates[journey, "draft"] = threading.Event()
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.approval, journey)
        eventually(lambda: run.row.worker_id is not None)
        assert "stops at its next step" in terminal.good("runs", "suspend", run.id).stderr
        gates[journey, "draft"].set()
        eventually(lambda: run.status is Status.SUSPENDED)


def test_cancelled_without_compensation_everything_stays(terminal: Terminal, journey: str) -> None:
    run = waiting(terminal, journey)
    said = terminal.good("runs", "cancel", run.id, "--no-compensate").stderr
    assert "ends, and nothing is undone, as soon as a worker takes it" in said
    with terminal.app.dispatcher():
        eventually(lambda: run.status is Status.CANCELLED)
    assert ledger[journey] == ["draft"]


# Mistakes ---------------------------------------------------------------------------------------------------------

ORDERS = [("signal", "verdict", "yes"), ("suspend",), ("resume",), ("cancel",), ("cancel", "--no-compensate")]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_an_ended_run_takes_no_orders(terminal: Terminal, journey: str, order: tuple[str, ...]) -> None:
    run = terminal.app.start(agency.pays, journey)
    before = terminal.data("runs", "show", run.id)
    verb, *rest = order
    assert "completed" in terminal.refused("runs", verb, run.id, *rest)
    assert terminal.data("runs", "show", run.id) == before


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_a_run_that_nobody_knows_takes_none_either(terminal: Terminal, order: tuple[str, ...]) -> None:
    verb, *rest = order
    line = terminal.refused("runs", verb, "nono", *rest)
    assert "no run has the id 'nono'" in line
    assert "`aft runs list` shows what there is" in line


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_ordering_does_not_make_a_database(tmp_path: Path, order: tuple[str, ...]) -> None:
    none = Setup("sqlite", f"sqlite:///{tmp_path / 'none.db'}", "embedded")
    terminal = Terminal(none, check=False)
    verb, *rest = order
    assert "there is no database" in terminal.refused("runs", verb, "x", *rest)
    assert not (tmp_path / "none.db").exists()
    none.close()


def test_only_a_suspended_run_is_resumed_and_a_cancel_is_asked_for_once(terminal: Terminal, journey: str) -> None:
    run = waiting(terminal, journey)
    assert "is waiting, not suspended" in terminal.refused("runs", "resume", run.id)
    assert "NAME" in terminal.refused("runs", "signal", run.id, status=2)
    assert "a signal's name is a text" in terminal.refused("runs", "signal", run.id, " ")


def test_what_would_be_undone_is_shown_before_it_is(terminal: Terminal, journey: str) -> None:
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.family, journey)
        run.result(60)
        done = len(ledger[journey])
        shown = terminal.good("runs", "compensate", run.id, "--dry-run")
        assert "6 would be undone, in this order. Nothing was undone; leave out --dry-run to undo it." in shown.stderr
        assert shown.stdout.index("dinner") < shown.stdout.index("lunch")
        assert len(ledger[journey]) == done
        terminal.good("runs", "compensate", run.id, "--note", "withdrawn")
        eventually(lambda: run.status is Status.COMPENSATED)
    assert "has ended compensated" in terminal.refused("runs", "compensate", run.id)


def test_a_plain_value_will_do_where_a_member_of_an_enum_is_meant(setup: Setup, journey: str) -> None:
    class Verdict(enum.StrEnum):
        YES = "yes"

    @aft.flow(name=f"enum_{journey}", signals={"verdict": Verdict})
    def judged(journey: str) -> str:
        return str(aft.wait_for("verdict") is Verdict.YES)

    app = setup.app()
    run = app.submit(judged, journey)
    with pytest.raises(aft.CodecError):
        run.signal("verdict", "maybe")
    run.signal("verdict", "yes")
    with app.dispatcher():
        assert run.result(60) == "True"
