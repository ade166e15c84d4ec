"""A run's story as a person reads it: what it waits for, what went on side by side, what its children did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import aft
from aft.flows.declare.registry import declared
from aft.runs.states import Status
from tests.acceptance import agency
from tests.acceptance.observe import children_of
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually
from tests.world import Busy, Refused, gates, ledger, trouble

REPOSITORY = Path(aft.__file__).parent.parent


@pytest.fixture(autouse=True)
def plain(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those that a command is given, and a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def drawn(terminal: Terminal, run: aft.Run, *options: str) -> list[str]:
    """The lines of a run's story, without their times; none is wider than the terminal."""
    lines = terminal.good("runs", "show", run.id, *options).stdout.splitlines()
    assert max(map(len, lines)) <= 80, lines
    return [re.sub(r"^ *(\+\S+ )?", "", line) for line in lines]


def ended(terminal: Terminal, run: aft.Run) -> aft.Run:
    """Let a dispatcher bring a run to its end, whatever that is."""
    with terminal.app.dispatcher():
        eventually(lambda: run.status.ended)
    return run


def detail(terminal: Terminal, run: aft.Run) -> str:
    """What the listing says of a run."""
    (line,) = [line for line in terminal.good("runs", "list").stdout.splitlines() if line.startswith(run.id[-12:])]
    return line


def test_parents_children_and_waits_are_told_on_every_set_up(setup: Setup, journey: str) -> None:
    terminal = Terminal(setup)
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.waits_below, journey)
        eventually(lambda: [child.status for child in children_of(terminal.app, run)] == [Status.WAITING])
        eventually(lambda: run.status is Status.WAITING)  # the child may wait before its parent does
        (child,) = children_of(terminal.app, run)
        assert f"waits for child {child.id[-12:]} of flow agency_approval" in detail(terminal, run)
        assert "waits for signal 'verdict'" in detail(terminal, aft.Run(terminal.app, child.id))
        story = drawn(terminal, run)
        assert story[:-3] == [
            f'┌ agency_waits_below  journey="{journey}"',
            f'│ ✓ agency_book  "deposit of {journey}"',
            "│   ▲ push unbook",
            f'│ ┌ agency_approval  journey="{journey}", timeout=null  run {child.id[-12:]}',
            f'│ │ ✓ agency_book  "draft of {journey}"',
            "│ │   ▲ push unbook",
        ]
        assert re.fullmatch(r"│ │ ◔ waits for signal 'verdict', since \d\d:\d\d:\d\d", story[-3])
        assert story[-2:] == ["│ ┆ still waiting", "┆ still waiting"]
        terminal.app.run(child.id).signal("verdict", "yes", by="ann")
        run.result(60)
    assert any(re.fullmatch(r'│ │ ✉ verdict  "yes"  from ann after \S+', line) for line in drawn(terminal, run))
    assert [one["status"] for one in terminal.data("runs", "show", run.id)["children"]] == ["completed"]


# Waits ------------------------------------------------------------------------------------------------------------


def test_a_wait_says_until_when_and_a_sleep_its_time(terminal: Terminal, journey: str) -> None:
    with terminal.app.dispatcher():
        asks = terminal.app.submit(agency.approval, journey, "3h")
        sleeps = terminal.app.submit(agency.naps, journey, "3h")
        eventually(lambda: (asks.status, sleeps.status) == (Status.WAITING, Status.WAITING))
    until = "(\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d|\\d\\d:\\d\\d:\\d\\d)"
    assert re.search(f"waits for signal 'verdict' until {until}$", detail(terminal, asks))
    assert re.search(f"waits for its time: {until}$", detail(terminal, sleeps))
    assert any(re.match(f"│ ◔ waits for signal 'verdict' until {until}, since", one) for one in drawn(terminal, asks))
    assert any(re.match(f"│ ◔ sleeps until {until}$", one) for one in drawn(terminal, sleeps))
    (wait,) = terminal.data("runs", "show", asks.id)["waits"]
    assert (wait["kind"], wait["name"], wait["path"]) == ("signal", "verdict", "2")
    assert wait["since"] < wait["until"]


def test_waits_that_are_over_say_what_came_of_them(terminal: Terminal, journey: str) -> None:
    late = ended(terminal, terminal.app.submit(agency.approval, journey, "50ms"))
    assert "│ ◷ signal 'verdict' did not come within 50ms" in drawn(terminal, late)
    slept = ended(terminal, terminal.app.submit(agency.naps, journey, "70ms"))
    assert "│ ☾ slept 70ms" in drawn(terminal, slept)
    (told,) = [one for one in terminal.data("runs", "show", slept.id)["timeline"] if one["what"] == "slept"]
    assert told["since"] < told["until"]


def test_what_was_sent_is_told_also_where_it_was_refused_or_never_asked_for(terminal: Terminal, journey: str) -> None:
    run = terminal.app.submit(agency.collects, journey, 1)
    run.signal("extra", True, by="eve")
    run.signal("number", "seven", by="eve")
    run.signal("number", 7, by="ann")
    before = drawn(terminal, run)
    assert "│ ✉ signal 'extra'  true  from eve: not waited for yet" in before
    assert before[-1] == "┆ still running: waits for a worker"
    story = " ".join(drawn(terminal, ended(terminal, run)))
    assert "✉ signal 'extra'  true  from eve: never waited for" in story
    assert "✉ signal 'number' refused" in story
    assert "✉ number  7  from ann" in story
    items = terminal.data("runs", "show", run.id)["inbox"]
    assert [(one["name"], one["value"], one["from"], one["read"]) for one in items] == [
        ("extra", True, "eve", False),
        ("number", "seven", "eve", True),
        ("number", 7, "ann", True),
    ]
    assert items[1]["note"].startswith("refused: ")


def test_a_fault_that_waits_for_a_signal_says_for_which(terminal: Terminal, journey: str) -> None:
    trouble[journey, "pay"] = [aft.Recoverable("no balance", on_signal="refilled")]
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.pays, journey)
        eventually(lambda: run.row.waits)
    assert "│   ◷ level 1, try 1: waits for signal 'refilled'" in drawn(terminal, run)
    assert "waits for signal 'refilled' before the next try" in detail(terminal, run)


def test_a_suspended_and_resumed_run_is_listed_by_what_it_waits_for(terminal: Terminal, journey: str) -> None:
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.approval, journey)
        eventually(lambda: run.status is Status.WAITING)
        run.suspend("a look", by="ann")
        assert "suspended by ann: a look" in detail(terminal, run)
        run.resume()
        eventually(lambda: (row := run.row).status is Status.WAITING and row.worker_id is None)
    assert "waits for signal 'verdict'" in detail(terminal, run)


# Side by side -----------------------------------------------------------------------------------------------------


def test_calls_side_by_side_are_told_one_after_the_other_under_one_head(terminal: Terminal, journey: str) -> None:
    trouble[journey, "flight"] = [Busy("no line")]
    trouble[journey, "hotel"] = [Refused("full")]
    run = ended(terminal, terminal.app.submit(agency.journey_flow, journey))
    story = drawn(terminal, run)
    assert story[1] == "│ ┬ side by side  3 of 3, 1 failed"
    first = story.index("│ │ ✗ agency_book #1  Busy: no line")
    assert re.fullmatch(r"│ │   ◷ level 1, try 1: waits 50ms in \S+", story[first + 1])
    assert story[first + 2 : first + 4] == [f'│ │ ✓ agency_book #1  "flight of {journey}"', "│ │   ▲ push unbook"]
    assert "│ │ ✗ agency_book #2  Refused: full" in story
    assert sorted(story[-3:-1]) == [
        f'│ ▼ pop unbook  journey="{journey}", what="car"',
        f'│ ▼ pop unbook  journey="{journey}", what="flight"',
    ]
    assert story[-1] == "└ compensated"


def test_a_large_map_says_how_far_it_is_and_shows_what_did_not_go_well(terminal: Terminal, journey: str) -> None:
    trouble[journey, "7"] = [Busy("not now")]
    gates[journey, "30"] = threading.Event()
    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.round_trip, [f"{journey}:{number}" for number in range(40)], 4)
        eventually(lambda: len(set(ledger[journey])) == 40)  # all but one, and the one that was busy
        eventually(lambda: "39 of 40" in drawn(terminal, run)[1])
        assert drawn(terminal, run)[1] == "│ ┬ side by side  39 of 40"
        gates[journey, "30"].set()
        run.result(60)
    story = drawn(terminal, run)
    assert story[1] == "│ ┬ side by side  40 of 40"
    assert "│ │ ✗ agency_visit #8  Busy: not now" in story
    assert "│ │ ✓ agency_visit  39 more completed" in story
    assert len(story) == 7
    assert len([line for line in drawn(terminal, run, "--all") if "✓ agency_visit #" in line]) == 40


def test_what_undid_a_savepoint_is_told_in_it(terminal: Terminal, journey: str) -> None:
    trouble[journey, "cabin"] = [Refused("none left")]
    story = drawn(terminal, ended(terminal, terminal.app.submit(agency.fallback, journey)))
    assert story[3:5] == ["│ ┬ savepoint 'sea'", "│ │ ┬ side by side  2 of 2, 1 failed"]
    undone = story.index("│ │ ↩ sea undone")
    assert story[undone - 1] == f'│ │ ▼ pop unbook  journey="{journey}", what="ferry"'
    assert story[undone + 1] == f'│ ✓ agency_book  "train of {journey}"'


def test_branches_of_an_async_flow_are_told_one_after_the_other(terminal: Terminal, journey: str) -> None:
    story = drawn(terminal, ended(terminal, terminal.app.submit(agency.async_journey, journey)))
    told = [line for line in story if "▲" not in line][1:-1]
    parts = sorted([told[:3], told[3:]])  # whichever had its first outcome first is told first
    assert parts == [
        [
            "│ ┬ part 1",
            f'│ │ ✓ agency_book_async  "flight of {journey}"',
            f'│ │ ✓ agency_book_async  "seat of {journey}"',
        ],
        [
            "│ ┬ part 2",
            f'│ │ ✓ agency_book_async  "hotel of {journey}"',
            f'│ │ ✓ agency_book_async  "breakfast of {journey}"',
        ],
    ]


# Children ---------------------------------------------------------------------------------------------------------


def test_a_child_is_undone_in_the_story_where_its_parent_had_it_undone(terminal: Terminal, journey: str) -> None:
    trouble[journey, "dinner"] = [Refused("closed")]
    run = ended(terminal, terminal.app.submit(agency.family, journey))
    train, boat = (child.id[-12:] for child in children_of(terminal.app, run))
    story = [line for line in drawn(terminal, run) if "push unbook" not in line]
    assert story == [
        f'┌ agency_family  journey="{journey}"',
        f'│ ┌ agency_leg  journey="{journey}", what="train"  run {train}',
        f'│ │ ✓ agency_book  "train there of {journey}"',
        f'│ │ ✓ agency_book  "train back of {journey}"',
        "│ ┆ undone below",
        "│   ▲ push child agency_leg",
        f'│ ✓ agency_book  "lunch of {journey}"',
        f'│ ┌ agency_leg  journey="{journey}", what="boat"  run {boat}',
        f'│ │ ✓ agency_book  "boat there of {journey}"',
        f'│ │ ✓ agency_book  "boat back of {journey}"',
        "│ ┆ undone below",
        "│   ▲ push child agency_leg",
        "│ ✗ agency_book  Refused: closed",
        "│   ■ final  unrecoverable: 'agency_book' declares Refused unrecoverable",
        f"│ ┌ agency_leg, undone  run {boat}",
        f'│ │ ▼ pop unbook  journey="{journey}", what="boat back"',
        f'│ │ ▼ pop unbook  journey="{journey}", what="boat there"',
        f'│ └ compensated  "boat back of {journey}"',
        "│ ▼ pop child agency_leg",
        f'│ ▼ pop unbook  journey="{journey}", what="lunch"',
        f"│ ┌ agency_leg, undone  run {train}",
        f'│ │ ▼ pop unbook  journey="{journey}", what="train back"',
        f'│ │ ▼ pop unbook  journey="{journey}", what="train there"',
        f'│ └ compensated  "train back of {journey}"',
        "│ ▼ pop child agency_leg",
        "└ compensated",
    ]


def test_children_may_be_left_out(terminal: Terminal, journey: str) -> None:
    trouble[journey, "boat back"] = [Refused("storm")]
    run = ended(terminal, terminal.app.submit(agency.family, journey))
    train, boat = (child.id[-12:] for child in children_of(terminal.app, run))
    story = drawn(terminal, run, "--depth", "0")
    assert f"│ ↳ agency_leg  run {train}  compensated" in story
    assert f'│ ✓ agency_leg  "train back of {journey}"' in story
    assert f"│ ↳ agency_leg  run {boat}  compensated" in story
    assert "│ ✗ agency_leg  the child ended compensated" in story
    assert not any("boat there" in line for line in story)
    assert terminal.data("runs", "show", run.id, "--depth", "0")["children"] == []


def test_children_are_listed_beside_their_parent(terminal: Terminal, journey: str) -> None:
    first = ended(terminal, terminal.app.submit(agency.family, journey))
    second = ended(terminal, terminal.app.submit(agency.pays, journey))
    listed = terminal.data("runs", "list")
    assert listed[0]["id"] == second.id
    assert {one["parent"] for one in listed[1:]} == {None, first.id}
    assert {one["root"] for one in listed[1:]} == {first.id}
    assert {one["parent_path"] for one in listed[1:]} == {None, "1", "3"}


def test_a_parked_child_is_pointed_at(terminal: Terminal, journey: str) -> None:
    @aft.flow(name=f"broken_{journey}")
    def broken(journey: str) -> None:
        raise TypeError("a bug")

    @aft.flow(name=f"above_{journey}")
    def above(journey: str) -> None:
        broken(journey)

    with terminal.app.dispatcher():
        run = terminal.app.submit(above, journey)
        eventually(lambda: [child.status for child in children_of(terminal.app, run)] == [Status.PARKED])
    short = children_of(terminal.app, run)[0].id[-12:]
    said = terminal.good("runs", "show", run.id).stderr
    assert f"Its descendant {short} waits for a person. See `aft faults show {short}`" in said


def test_the_stack_names_the_child_that_a_frame_stands_for(terminal: Terminal, journey: str) -> None:
    run = ended(terminal, terminal.app.submit(agency.family, journey))
    train, boat = children_of(terminal.app, run)
    shown = terminal.good("stack", run.id).stdout.splitlines()
    assert re.match(rf"owed +agency_leg +child {boat.id[-12:]} ", shown[2])
    frames = terminal.data("stack", run.id)["frames"]
    assert [frame["child"] for frame in frames] == [None, boat.id, None, train.id]


# Following --------------------------------------------------------------------------------------------------------


def test_following_goes_on_through_waits_and_children_until_the_end(terminal: Terminal, journey: str) -> None:
    def answer() -> None:
        eventually(lambda: [child.status for child in children_of(terminal.app, run)] == [Status.WAITING])
        terminal.app.run(children_of(terminal.app, run)[0].id).signal("verdict", "no", by="ann")

    with terminal.app.dispatcher():
        run = terminal.app.submit(agency.waits_below, journey)
        answering = threading.Thread(target=answer)
        answering.start()
        lines = terminal.good("runs", "show", run.id, "--follow").stdout.splitlines()
        answering.join()
    child = f"run {children_of(terminal.app, run)[0].id[-12:]}"
    told = [line.split("UTC")[1].split()[0] for line in lines if not line.endswith(child)]
    assert told == ["started", "activity", "pushed", "child", "returned", "pushed", "ended"]
    below = [line for line in lines if line.endswith(child)]
    assert [line.split("UTC")[1].split()[0] for line in below if not re.search(" (awaits|unread) ", line)] == [
        *("started", "activity", "pushed", "signal", "activity", "pushed", "ended"),
    ]
    assert any(re.search(r'signal +verdict \[2\]  "no"  from ann', line) for line in below)


# Terminals --------------------------------------------------------------------------------------------------------


def test_a_poor_terminal_gets_the_same_story_in_ascii(terminal: Terminal, journey: str) -> None:
    run = ended(terminal, terminal.app.submit(agency.family_at_once, journey))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "aft", "--database", terminal.app.store.url),
            *("--namespace", terminal.app.namespace, "runs", "show", run.id),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode("ascii").splitlines()
    assert lines[1].endswith("| + side by side  2 of 2")
    assert not any("?" in line for line in lines)
    assert any(line.endswith(f'| | + completed  "train back of {journey}"') for line in lines)


# Doctor -----------------------------------------------------------------------------------------------------------


def test_the_doctor_has_nothing_against_runs_that_wait_or_were_suspended(terminal: Terminal, journey: str) -> None:
    with terminal.app.dispatcher():
        waits = terminal.app.submit(agency.approval, journey)
        stopped = terminal.app.submit(agency.approval, journey)
        eventually(lambda: (waits.status, stopped.status) == (Status.WAITING, Status.WAITING))
        stopped.suspend()
        report = json.loads(terminal.call("doctor", "--json").stdout)
    states = {check["name"]: check["state"] for check in report["checks"] if check["name"] != "queues"}
    assert set(states.values()) == {"ok"}
    assert report["counts"]["unfinished"] == {"agency_approval@1": 1}


def test_the_doctor_says_that_nobody_touches_runs_of_a_flow_that_no_worker_has(
    terminal: Terminal, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A copy: a newer version that stayed declared would be begun by the schedules of other tests.
    flows = dict(declared._flows)
    monkeypatch.setattr(declared, "_flows", flows)

    @aft.flow(name="agency_approval", version=2)
    def newer(journey: str) -> None: ...

    run = terminal.app.submit(newer, journey)
    del flows["agency_approval", 2]
    with terminal.app.dispatcher():
        result = terminal.call("doctor")
        assert run.status is Status.RUNNING
    assert result.exit_code == 1
    says = "1 unfinished run of agency_approval@2, and no live worker has that flow: no worker can continue it"
    assert re.search(rf"✗ flows +{re.escape(says)}", result.stdout)
