"""The command line, as a person meets it: every command, its JSON, its exit status, and what it says to a mistake."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from click.testing import CliRunner, Result

import aft
from aft.app.process import DispatcherProcess
from aft.cli.modules import load_module
from aft.cli.root import PLACES, root
from aft.flows.declare.registry import declared
from aft.runs.records import quarantine
from aft.store.schema import HEAD
from tests.acceptance.commands import REPOSITORY, Dispatcher, until

CLISHOP = """
    from __future__ import annotations

    import time
    from pathlib import Path

    import aft


    def cli_unbook(slot: str) -> None:
        if Path("stuck").exists():
            raise ValueError("the ledger is\\nclosed \\x1b[31mred")


    @aft.compensate_with(cli_unbook)
    def cli_book(slot: str) -> str:
        return f"booked {slot}"


    @aft.activity(levels=[aft.Level("30ms", tries=2), "60ms"])
    def cli_busy(slot: str) -> str:
        if Path("busy").exists():
            raise ConnectionError("the line is busy")
        return slot


    @aft.activity
    def cli_refuse(slot: str) -> str:
        raise ValueError("no [bold]such[/] slot")


    @aft.activity
    def cli_wait(slot: str) -> str:
        with Path("calls").open("a") as calls:
            calls.write("x")
        while not Path("go").exists():
            time.sleep(0.01)
        return slot


    @aft.flow
    def cli_order(slot: str, number: int = 1, express: bool = False) -> dict[str, object]:
        cli_book(slot)
        cli_busy(slot)
        return {"slot": slot, "number": number, "express": express}


    @aft.flow
    def cli_fail(slot: str) -> str:
        cli_book(slot)
        cli_book(slot + "-2")
        return cli_refuse(slot)


    @aft.flow
    def cli_bug(slot: str) -> str:
        cli_book(slot)
        return undefined_name


    @aft.flow
    def cli_long(slot: str) -> str:
        cli_book(slot)
        cli_wait(slot)
        return cli_book(slot + "-2")


    @aft.flow
    def cli_any(*words: object, **more: object) -> list[object]:
        return [list(words), dict(more)]
"""

RUN_KEYS = {
    "id",
    "flow",
    "version",
    "status",
    "key",
    "args",
    "result",
    "reason",
    "cause",
    "fault",
    "priority",
    "owner",
    "tags",
    "root",
    "parent",
    "parent_path",
    "waits",
    "resources",
    "expected",
    "worker",
    "epoch",
    "deaths",
    "created_at",
    "started_at",
    "updated_at",
    "due_at",
    "deadline_at",
    "ended_at",
}
FAULT_KEYS = {
    "id",
    "run",
    "kind",
    "name",
    "path",
    "state",
    "type",
    "message",
    "attempt",
    "level",
    "try_in_level",
    "wait_seconds",
    "ladder",
    "why",
    "rule_type",
    "decision",
    "ruling",
    "own_answer",
    "declared_answer",
    "http_status",
    "resource",
    "signal",
    "retry_after_seconds",
    "lineage",
    "traceback",
    "epoch",
    "raised_at",
    "decided_at",
    "due_at",
    "settled_at",
}
FRAME_KEYS = {
    *("path", "scope", "activity", "compensator", "child", "state"),
    *("args", "result", "note", "pushed_at", "settled_at"),
}
HAPPENING_KEYS = {
    *("at", "what", "path", "name", "detail", "level", "wait_seconds"),
    *("by", "since", "until", "child", "beside"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, but for the module ``clishop``; no settings, and no flow declared by anybody else."""
    for name in list(os.environ):
        if name.startswith("AFT_") and not name.startswith("AFT_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(declared, "_flows", {})
    monkeypatch.setattr(declared, "_activities", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    write("clishop", CLISHOP)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def write(module: str, text: str) -> None:
    Path(f"{module}.py").write_text(textwrap.dedent(text))
    importlib.invalidate_caches()


def call(*arguments: str) -> Result:
    """Run a command in this process; a traceback is a failure of any test."""
    result = CliRunner().invoke(root, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def good(*arguments: str) -> Result:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str, status: int = 1) -> str:
    """Run a command that fails, and return the one line that says why."""
    result = call(*arguments)
    assert result.exit_code == status, result.output
    first, *more = result.stderr.splitlines()
    assert first.startswith("aft: "), result.output
    assert status == 2 or not more, result.output
    assert "Traceback" not in result.output
    return first


def data(*arguments: str) -> Any:
    return json.loads(good(*arguments, "--json").stdout)


@pytest.fixture
def dispatching() -> Iterator[DispatcherProcess]:
    """A dispatcher in this process, on the database that the commands use by default."""
    load_module("clishop")
    with aft.Aft() as app, app.dispatcher(concurrency=2) as process:
        yield process


# Before any command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_help_lists_every_command(arguments: tuple[str, ...]) -> None:
    shown = good(*arguments).stdout
    for name, place in PLACES.items():
        assert re.search(rf"^  {name} +{re.escape(place.says)}", shown, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(PLACES))
def test_every_command_has_a_help_of_its_own(name: str) -> None:
    assert f"Usage: aft {name}" in good(name, "--help").stdout


def test_the_version_is_told() -> None:
    assert good("--version").stdout == f"aft {aft.__version__}\n"


def test_python_dash_m_aft_is_the_same_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aft", "--version"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"aft {aft.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rns",), "did you mean 'runs'?"),
        (("runs", "lst"), "did you mean 'list'?"),
        (("xyzzy",), "there are dispatcher"),
        (("runs", "list", "--jsn"), "--json"),
        (("runs", "list", "--status", "done"), "'parked'"),
        (("runs", "list", "--limit", "0"), "--limit"),
        (("runs", "show"), "RUN"),
        (("runs", "skip-frame", "x"), "--note"),
        (("runs", "start", "order"), "add -m MODULE"),
        (("runs", "start", "clishop:cli_order", "a", "-5"), "put -- before"),
        (("runs", "start", "--wait", "clishop:cli_order"), "--wait as the last word"),
        (("runs", "show", "x", "--follow", "--json"), "do not go together"),
        (("dispatcher",), "aft dispatcher shop.orders"),
        (("dispatcher", "clishop", "--only", "wrk"), "'wrk' is not a role; there are intake, work, relay, sweep"),
        (("dispatcher", "clishop", "--only", ","), "names no role"),
        (("dispatcher", "clishop", "--concurrency", "0"), "--concurrency"),
        (("faults", "list", "--quarantined", "--state", "open"), "no --state"),
        (("db", "downgrade", "--to", "nope"), "there are base, 0001, 0002, 0003"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error_with_a_hint(arguments: tuple[str, ...], says: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("aft: ")
    assert says in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--database", "nonsense"], "'nonsense' is not a database URL"),
        (["--database", "mysql://x"], "does not know the database 'mysql'"),
        (["--database", "sqlite:////no/such/place/aft.db"], "there is no directory '/no/such/place'"),
        (["--database", "postgresql://u:secret@127.0.0.1:1/x"], "Connection refused"),
        (["--broker", "http://x"], "--broker: write 'embedded'"),
        (["--namespace", "No Good"], "is not a namespace"),
    ],
)
def test_a_wrong_place_to_connect_to_is_told_in_one_line(options: list[str], says: str) -> None:
    line = refused(*options, "runs", "list")
    assert says in line
    assert "secret" not in line


def test_an_unknown_variable_is_told_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_NAMESPCE", "x")
    assert "did you mean AFT_NAMESPACE?" in refused("runs", "list")


def test_options_before_the_command_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_NAMESPACE", "from-environment")
    settings = {one["name"]: one for one in data("--namespace", "typed", "doctor")["settings"]}
    assert settings["namespace"] == {"name": "namespace", "value": "typed", "source": "--namespace"}
    settings = {one["name"]: one for one in data("doctor")["settings"]}
    assert settings["namespace"] == {"name": "namespace", "value": "from-environment", "source": "AFT_NAMESPACE"}
    assert settings["lease"]["source"] == "default"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("runs", "list"), 0),
        (("runs", "list", "--json"), 0),
        (("faults", "list"), 0),
        (("faults", "list", "--quarantined", "--json"), 0),
        (("doctor",), 0),
        (("db", "current"), 0),
        (("db", "check"), 1),
        (("runs", "show", "x"), 1),
        (("stack", "x"), 1),
        (("faults", "show", "x"), 1),
        (("runs", "retry", "x"), 1),
        (("broker", "status"), 1),
    ],
)
def test_looking_does_not_make_a_database(here: Path, arguments: tuple[str, ...], status: int) -> None:
    result = call(*arguments)
    assert result.exit_code == status, result.output
    assert not (here / "aft.db").exists()
    if "--json" in arguments:
        assert json.loads(result.stdout) == []
    else:
        assert "yet" in result.output or "aft db upgrade" in result.output


# Modules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("clishopp", "did you mean 'clishop'?"),
        ("nowhere.at.all", "not even 'nowhere'"),
        ("clishop.sub", "'clishop' is a module, not a package"),
        ("clishop.py", "name its module, from the directory where it can be imported: clishop"),
        ("./lib/clishop.py", "lib.clishop"),
        ("two words", "is not the name of a module"),
        ("clishop:nothing", "clishop:nothing does not exist"),
        ("clishop:cli_order", "is a Flow, not an aft.Aft"),
        ("json", "json declares no flow"),
    ],
)
def test_a_module_that_cannot_be_used_is_told_in_one_line(name: str, says: str) -> None:
    assert says in refused("dispatcher", name)


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("import nosuchthing", "ModuleNotFoundError: No module named 'nosuchthing'", "import nosuchthing"),
        ("def x(:", "SyntaxError", "def x(:"),
        ("raise SystemExit(3)", "SystemExit: 3", "raise SystemExit(3)"),
        ("import aft\naft.flow(3)", "goes on a function, not on 3", "aft.flow(3)"),
    ],
)
def test_a_module_that_fails_inside_shows_the_line_that_failed(text: str, says: str, line: str) -> None:
    write("clibroken", text)
    result = call("doctor", "clibroken")
    assert result.exit_code == 1
    first, *more = result.stderr.splitlines()
    assert first.startswith("aft: module 'clibroken' was found, but failed while it was imported: ")
    assert says in first
    assert any(line in other for other in more), result.stderr
    assert "Traceback" not in result.stderr
    assert "aft/cli" not in result.stderr


def test_a_module_may_bring_its_own_application(here: Path) -> None:
    write("cliapp", "import aft\nimport clishop\napp = aft.Aft('sqlite:///own.db', namespace='own')")
    assert {one["source"] for one in data("doctor", "cliapp:app")["settings"]} == {"cliapp:app"}
    run = good("runs", "start", "cli_order", "a", "-m", "cliapp:app", "--here").stdout.strip()
    assert (here / "own.db").exists()
    assert data("--database", "sqlite:///own.db", "--namespace", "own", "runs", "list")[0]["id"] == run
    assert "brings its own settings" in refused("--namespace", "x", "doctor", "cliapp:app", status=2)


def test_an_application_that_a_module_defines_for_elsewhere_is_pointed_out() -> None:
    write("cliapp2", "import aft\napp = aft.Aft('sqlite:///own.db')")
    assert "to use those, name it: cliapp2:app" in call("doctor", "cliapp2").stderr


# Starting runs ----------------------------------------------------------------------------------------------------


def result_of(run: str) -> Any:
    return data("runs", "show", run)["result"]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["a"], {"slot": "a", "number": 1, "express": False}),
        (["7", "7"], {"slot": "7", "number": 7, "express": False}),
        (['"7"', "number=3"], {"slot": "7", "number": 3, "express": False}),
        (["express=true", "slot=null", "number=2"], {"slot": "null", "number": 2, "express": True}),
        (["a b=c", "--", "-5"], {"slot": "a b=c", "number": -5, "express": False}),
        (['"x=1"'], {"slot": "x=1", "number": 1, "express": False}),
    ],
)
def test_words_become_the_arguments_that_the_annotations_ask_for(words: list[str], result: object) -> None:
    run = good("runs", "start", "clishop:cli_order", "--here", *words).stdout.strip()
    assert result_of(run) == result


def test_words_without_annotations_are_json_or_text() -> None:
    words = ["1", "NaN", "[1, 2]", "plain", "{broken", "k=true", "l=text"]
    run = good("runs", "start", "clishop:cli_any", "--here", *words).stdout.strip()
    assert result_of(run) == [[1, "NaN", [1, 2], "plain", "{broken"], {"k": True, "l": "text"}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "missing a required argument: 'slot'; it takes (slot: str, number: int = 1, express: bool = False)"),
        (["a", "b"], "argument number"),
        (["a", "1", "true", "4"], "too many positional arguments"),
        (["a", "slott=b"], "has no argument 'slott'"),
        (["a", "slot=b"], "multiple values"),
        (["slot=a", "slot=b"], "given twice"),
    ],
)
def test_words_that_do_not_fit_start_nothing(words: list[str], says: str, here: Path) -> None:
    assert says in refused("runs", "start", "clishop:cli_order", *words)
    assert not (here / "aft.db").exists()


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("cliplain:order", "cliplain.order is a plain function, not a flow; put @aft.flow on it"),
        ("cliplain:none", "module 'cliplain' has no flow; put @aft.flow on a function there"),
        ("clishop:cli_busy", "clishop.cli_busy is an activity, not a flow; start the flow that calls it"),
    ],
)
def test_what_is_no_flow_cannot_be_started_and_the_refusal_says_what_it_is(target: str, says: str) -> None:
    write("cliplain", "def order(slot: str) -> str:\n    return slot\n")
    assert refused("runs", "start", target, "a") == f"aft: {says}"


def test_a_module_alone_is_no_flow_and_the_refusal_shows_how_to_name_one() -> None:
    assert "if 'clishop' is the module, name its flow: clishop:FLOW" in call("runs", "start", "clishop", "a").stderr


def test_a_flow_is_found_by_module_and_name_or_by_name_beside_its_module() -> None:
    one = good("runs", "start", "cli_order", "a", "-m", "clishop", "--key", "k").stdout
    same = good("runs", "start", "clishop:cli_order@1", "a", "--key", "k").stdout
    assert one == same
    assert "did you mean 'cli_order'?" in refused("runs", "start", "clishop:cli_ordr", "a")
    assert "already names run" in refused("runs", "start", "clishop:cli_order", "b", "--key", "k")


def test_submitting_without_a_worker_says_that_none_is_there() -> None:
    result = good("runs", "start", "clishop:cli_order", "a")
    assert re.fullmatch(r"[0-9a-f-]{36}\n", result.stdout)
    assert "no live worker has flow cli_order@1" in result.stderr
    said = call("runs", "start", "clishop:cli_order", "a", "--wait=0.1").stderr
    assert "has not ended within 0.1 s; it still waits for a worker" in said


@pytest.mark.usefixtures("dispatching")
def test_waiting_prints_the_result_or_says_how_it_ended(here: Path) -> None:
    assert json.loads(good("runs", "start", "clishop:cli_order", "a", "--wait").stdout)["slot"] == "a"
    failed = call("runs", "start", "clishop:cli_fail", "a", "--wait", "30")
    assert failed.exit_code == 1
    assert "everything it had done was undone: ValueError: no [bold]such[/] slot" in failed.stderr
    parked = call("runs", "start", "clishop:cli_bug", "a", "--wait")
    assert parked.exit_code == 1
    assert "is parked and waits for a person: NameError" in parked.stderr


# Looking at runs --------------------------------------------------------------------------------------------------


def start_here(flow: str, slot: str = "a") -> str:
    return good("runs", "start", f"clishop:{flow}", slot, "--here").stdout.strip()


def test_runs_are_listed_newest_first_and_as_json_with_stable_keys() -> None:
    ids = [start_here("cli_order", slot) for slot in "abc"]
    listed = data("runs", "list")
    assert [run["id"] for run in listed] == ids[::-1]
    assert set(listed[0]) == RUN_KEYS
    assert listed[0]["args"] == {"slot": "c", "number": 1, "express": False}
    assert datetime.fromisoformat(listed[0]["created_at"]).utcoffset() is not None
    assert [run["id"] for run in data("runs", "list", "--limit", "1")] == ids[:1:-1]
    assert data("runs", "list", "--status", "parked") == data("runs", "list", "--flow", "other") == []
    shown = good("runs", "list").stdout
    assert all(run[-12:] in shown for run in ids)
    assert "CREATED UTC" in shown
    assert "\x1b" not in shown


def test_an_empty_listing_says_so_on_stderr() -> None:
    start_here("cli_order")
    result = good("runs", "list", "--status", "parked", "--flow", "x")
    assert result.stdout == ""
    assert result.stderr.startswith("No runs that are parked of flow 'x'")
    other = good("--namespace", "other", "runs", "list")
    assert "aft runs start MODULE:FLOW" in other.stderr
    assert good("faults", "list").stderr.startswith("No faults")


def test_a_run_is_shown_by_a_part_of_its_id() -> None:
    run = start_here("cli_order", "slot-7")
    for part in (run, run[-12:], run[-6:], run[-12:-4]):
        shown = good("runs", "show", part).stdout
        assert "cli_book" in shown
        assert "completed" in shown
        assert "\x1b" not in shown
    story = data("runs", "show", run[-12:])
    assert set(story) == RUN_KEYS | {"timeline", "inbox", "children"}
    assert all(set(one) == HAPPENING_KEYS for one in story["timeline"])
    assert [one["what"] for one in story["timeline"]] == ["started", "activity", "pushed", "activity", "ended"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "show", "nono"),
        ("runs", "show", "nono", "--follow"),
        ("stack", "nono"),
        ("faults", "show", "nono"),
        ("runs", "retry", "nono"),
        ("runs", "skip-frame", "nono", "--note", "x"),
        ("runs", "frame-done", "nono", "--note", "x"),
    ],
)
def test_a_run_that_nobody_knows_is_told_in_one_line(arguments: tuple[str, ...]) -> None:
    start_here("cli_order")
    line = refused(*arguments)
    assert "nono" in line
    assert "list` shows what there is" in line


def test_following_tells_each_happening_once_until_the_end(dispatching: DispatcherProcess, here: Path) -> None:
    run = good("runs", "start", "clishop:cli_long", "a").stdout.strip()
    until(lambda: (here / "calls").exists(), "the activity is called")
    opener = threading.Timer(0.3, (here / "go").touch)
    opener.start()
    lines = good("runs", "show", run[-8:], "--follow").stdout.splitlines()
    opener.join()
    what = [line.split("UTC")[1].split()[0] for line in lines]
    assert what == ["started", "activity", "pushed", "activity", "activity", "pushed", "ended"]


# By hand ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parked(dispatching: DispatcherProcess, here: Path) -> str:
    """A run whose compensator fails, and so waits for a person."""
    (here / "stuck").touch()
    run = start_here("cli_fail")
    until(lambda: data("runs", "show", run)["status"] == "parked", "the run is parked")
    return run


def ends_as(run: str, status: str) -> bool:
    until(lambda: data("runs", "show", run)["ended_at"], "the run ends")
    return bool(data("runs", "show", run)["status"] == status)


def test_a_parked_run_is_tried_again_after_the_fix(parked: str, here: Path) -> None:
    assert f"aft runs retry {parked[-12:]}" in good("runs", "show", parked).stderr
    (here / "stuck").unlink()
    assert "tries again" in good("runs", "retry", parked[-12:], "--note", "the ledger is open").stderr
    assert ends_as(parked, "compensated")
    assert "the ledger is open" in good("runs", "show", parked).stdout
    assert "not parked" in refused("runs", "retry", parked)


def test_a_skipped_frame_makes_the_run_failed_and_keeps_the_note(parked: str, here: Path) -> None:
    (here / "stuck").unlink()
    good("runs", "skip-frame", parked, "--note", "no ledger any more")
    assert ends_as(parked, "failed")
    top, below = data("stack", parked)["frames"]
    assert (top["state"], top["note"]) == ("skipped", "no ledger any more")
    assert below["state"] == "undone"
    assert "no ledger any more" in good("stack", parked).stdout


def test_a_frame_that_was_undone_by_hand_counts_as_undone(parked: str, here: Path) -> None:
    (here / "stuck").unlink()
    good("runs", "frame-done", parked, "--note", "paid back in cash")
    assert ends_as(parked, "compensated")
    assert data("stack", parked)["frames"][0]["state"] == "done"


def test_the_stack_is_shown_top_first(parked: str) -> None:
    shown = data("stack", parked[-12:])
    assert set(shown) == {"run", "flow", "version", "status", "frames"}
    assert all(set(frame) == FRAME_KEYS for frame in shown["frames"])
    assert [frame["args"] for frame in shown["frames"]] == [{"slot": "a-2"}, {"slot": "a"}]
    assert "2 of 2 frames owed" in good("stack", parked).stderr


# Faults -----------------------------------------------------------------------------------------------------------


def test_faults_are_listed_and_shown_by_their_id_or_by_the_run(parked: str) -> None:
    compensators, activities = data("faults", "list")
    assert set(compensators) == FAULT_KEYS
    assert (compensators["kind"], activities["kind"]) == ("compensator", "activity")
    assert [one["id"] for one in data("faults", "list", "--state", "final")] == [activities["id"]]
    assert data("faults", "show", activities["id"][-12:]) == {**activities, "plan": None}
    assert data("faults", "show", parked) == {**compensators, "plan": None}
    shown = good("faults", "show", activities["id"]).stdout
    assert "ValueError: no [bold]such[/] slot" in shown
    assert "unrecoverable" in shown
    assert "Traceback (most recent call last)" in shown
    assert activities["id"][-12:] in good("faults", "list").stdout
    assert "The run has another fault" in good("faults", "show", parked).stderr


@pytest.mark.usefixtures("dispatching")
def test_a_fault_in_the_ladder_tells_its_position(here: Path) -> None:
    (here / "busy").touch()
    run = start_here("cli_order")
    until(lambda: data("runs", "show", run)["ended_at"], "the ladder is exhausted")
    waits = [(one["level"], one["try_in_level"]) for one in data("faults", "list")][::-1]
    assert waits == [(1, 1), (1, 2), (2, 1), (None, None)]
    assert "30ms*2, 60ms" in good("faults", "show", run).stdout


def test_a_run_without_faults_is_not_taken_for_an_unknown_one() -> None:
    assert "has no fault; it is completed" in refused("faults", "show", start_here("cli_order"))


def test_what_a_terminal_would_obey_is_spelled_out(parked: str) -> None:
    for arguments in (("runs", "list"), ("runs", "show", parked), ("faults", "list"), ("faults", "show", parked)):
        output = good(*arguments).output
        assert "\x1b" not in output
        assert "\\x1b[31mred" in output


def test_refused_messages_are_listed() -> None:
    start_here("cli_order")
    with aft.Aft() as app, app.store.write() as connection:
        quarantine.add(connection, app.namespace, [("aft.resume.v2", b"\xff{", "it is not JSON")])
    (one,) = data("faults", "list", "--quarantined")
    assert set(one) == {
        *("id", "queue", "state", "reason", "size", "body", "at"),
        *("settled_at", "settled_by", "note"),
    }
    assert one["body"] == "\\xff{"
    assert "it is not JSON" in good("faults", "list", "--quarantined").stdout
    assert "refused by admission" in good("doctor").stdout


# Workers ----------------------------------------------------------------------------------------------------------


def test_workers_are_listed_and_a_run_or_a_lease_is_taken_away_by_hand() -> None:
    assert "there is no database" in good("workers", "list").stderr
    start_here("cli_order")
    assert "start one with `aft dispatcher MODULE`" in good("workers", "list").stderr
    run = good("runs", "start", "clishop:cli_long", "a").stdout.strip()
    with Dispatcher("dispatcher", "clishop"):
        until(Path("calls").exists, "the activity is called")
        (worker,) = data("workers", "list")
        told = {"id", "host", "pid", "roles", "flows", "runs", "watched", "alive", "started_at", "expires_at"}
        assert set(worker) == told
        assert (worker["runs"], worker["watched"]) == (1, True)
        assert worker["id"][-12:] in good("workers", "list").stdout
        assert "Missing option '--note'" in call("runs", "release", run).output
        assert "goes on elsewhere" in good("runs", "release", run, "--note", "it hangs").stderr
        until(lambda: len(Path("calls").read_text()) == 2, "it is called again")
        released = good("workers", "release", worker["id"], "--note", "it is old").stderr
        assert "has no lease any more; 1 of its runs" in released
        until(lambda: len(Path("calls").read_text()) == 3, "it is called once more")
        assert "no worker with a lease has the id" in refused("workers", "release", worker["id"], "--note", "again")
        Path("go").touch()
        until(lambda: data("runs", "show", run)["status"] == "completed", "it completes")
    assert "has no worker that it could be taken from" in refused("runs", "release", run, "--note", "why not")
    assert [fault["kind"] for fault in data("faults", "list")] == ["abort", "abort"]


# Database and broker ----------------------------------------------------------------------------------------------


def test_the_schema_goes_up_and_down_and_says_from_where_to_where(here: Path) -> None:
    assert "has no aft tables" in refused("db", "check")
    assert f"base → {HEAD}" in good("db", "upgrade").stdout
    assert f"is at {HEAD} already" in good("db", "upgrade").stdout
    assert good("db", "current").stdout.startswith(HEAD)
    good("db", "check")
    assert "is lost" in refused("db", "downgrade", "--to", "base", status=2)
    good("db", "check")
    assert f"{HEAD} → base" in good("db", "downgrade", "--to", "base", "--yes").stdout
    assert "aft db upgrade" in refused("db", "check")


@pytest.fixture
def unmigrated(postgres_url: str, here: Path) -> Iterator[str]:
    """A PostgreSQL database without aft's tables: a schema of its own in the shared one."""
    name = f"cli_{time.time_ns()}"
    plain = re.sub(r"^postgres(ql)?(\+\w+)?:", "postgresql:", postgres_url)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        yield f"{plain}{'&' if '?' in plain else '?'}options={quote(f'-csearch_path={name}')}"
        connection.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "list"),
        ("runs", "start", "clishop:cli_order", "a"),
        ("faults", "list"),
        ("broker", "declare"),
        ("db", "check"),
    ],
)
def test_postgresql_without_tables_is_told_to_be_upgraded(unmigrated: str, arguments: tuple[str, ...]) -> None:
    assert "run `aft db upgrade`" in refused("--database", unmigrated, *arguments)


def test_postgresql_is_upgraded_by_hand_and_then_well(unmigrated: str) -> None:
    sick = call("--database", unmigrated, "doctor")
    assert sick.exit_code == 1
    assert re.search(r"✗ schema +no aft tables", sick.stdout)
    assert f"base → {HEAD}" in good("--database", unmigrated, "db", "upgrade").stdout
    assert re.search(r"✓ database .*PostgreSQL", good("--database", unmigrated, "doctor").stdout)


def test_queues_are_missing_until_they_are_declared() -> None:
    good("db", "upgrade")
    missing = call("broker", "status")
    assert missing.exit_code == 1
    assert "aft broker declare" in missing.stderr
    assert "aft.delay.10s.v2" in good("broker", "declare").stdout
    good("broker", "status")
    assert call("broker", "status", "clishop").exit_code == 1  # its waits have no queue yet
    assert "aft.delay.30ms.v2" in good("broker", "declare", "clishop").stdout
    shown = data("broker", "status", "clishop")
    assert set(shown) == {"broker", "namespace", "queues"}
    assert all(set(one) == {"name", "exists", "messages", "consumers", "problem"} for one in shown["queues"])
    assert {one["name"] for one in shown["queues"]} >= {"aft.faults.v2", "aft.resume.v2", "aft.undeliverable.v2"}


# Doctor -----------------------------------------------------------------------------------------------------------


def states(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in report["checks"]}


def test_the_doctor_finds_nothing_wrong_in_an_empty_directory(here: Path) -> None:
    result = good("doctor")
    assert "no database yet; the first run creates it" in result.stdout
    assert "No problems found." in result.stdout
    report = data("doctor")
    assert set(report) == {"ok", "settings", "checks", "workers", "counts"}
    assert report["ok"] is True
    assert all(set(check) == {"name", "state", "says", "advice"} for check in report["checks"])


def test_the_doctor_speaks_where_the_terminal_knows_only_ascii() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aft", "doctor"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"no database yet" in done.stdout


def test_the_doctor_goes_on_when_database_and_broker_are_away() -> None:
    away = ["--database", "postgresql://u:s3cret@127.0.0.1:1/x", "--broker", "amqp://u:s3cret@127.0.0.1:1/"]
    result = call(*away, "doctor", "clishop")
    assert result.exit_code == 1
    assert re.search(r"✓ flows +.*cli_order@1", result.stdout)
    assert re.search(r"✗ database .*Connection refused", result.stdout)
    assert re.search(r"✗ broker .*Connection refused", result.stdout)
    assert "s3cret" not in result.output


def test_the_doctor_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r"webhook_secret +not set +default", call("doctor").stdout)
    monkeypatch.setenv("AFT_WEBHOOK_SECRET", "s3cret")
    result = call("doctor")
    assert re.search(r"webhook_secret +\*+ +AFT_WEBHOOK_SECRET", result.stdout)
    assert "s3cret" not in result.output


def test_the_doctor_tells_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_LEVELS", "often")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    (check,) = json.loads(result.stdout)["checks"]
    assert (check["name"], check["state"]) == ("settings", "problem")


def test_the_doctor_finds_work_that_nobody_does() -> None:
    good("runs", "start", "clishop:cli_order", "a")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert states(report)["workers"] == "problem"
    assert report["counts"]["unfinished"] == report["counts"]["unserved"] == {"cli_order@1": 1}


def test_the_doctor_finds_flows_that_no_live_worker_has(dispatching: DispatcherProcess) -> None:
    write("cliother", "import aft\n@aft.flow\ndef cli_newcomer() -> None: ...")
    good("runs", "start", "cliother:cli_newcomer")
    result = call("doctor")
    assert result.exit_code == 1
    assert re.search(r"✗ flows +1 unfinished run of cli_newcomer@1, and no live worker has that flow", result.stdout)


def test_the_doctor_is_content_while_a_dispatcher_runs(dispatching: DispatcherProcess) -> None:
    report = data("doctor", "clishop")
    assert set(states(report).values()) == {"ok"}
    (worker,) = report["workers"]
    assert worker["pid"] == os.getpid()
    assert worker["roles"] == ["intake", "relay", "sweep", "work"]
    assert "cli_order@1" in worker["flows"]
    assert str(os.getpid()) in good("doctor").stdout


def test_the_doctor_names_parked_runs_and_what_to_do(parked: str) -> None:
    result = call("doctor")
    assert result.exit_code == 1
    assert f"aft runs retry {parked[-12:]}" in result.stdout


# The dispatcher ---------------------------------------------------------------------------------------------------


def test_a_dispatcher_says_what_it_runs_and_stops_promptly_when_told() -> None:
    with Dispatcher("--namespace", "try-out", "dispatcher", "clishop", "--concurrency", "3") as dispatcher:
        dispatcher.until_it_says("ready")
        for line in (
            r"database +sqlite:///.*aft\.db",
            r"broker +embedded",
            r"namespace +try-out",
            r"flows .*cli_order@1",
            r"roles +intake, work, relay, sweep",
            r"concurrency +3",
        ):
            assert re.search(line, dispatcher.said), dispatcher.said
        told = time.monotonic()
        dispatcher.terminate()
        assert dispatcher.status() == 0
        assert time.monotonic() - told < 60
        assert "no run is going on" in dispatcher.said


def test_a_dispatcher_without_the_role_work_needs_no_module() -> None:
    with Dispatcher("dispatcher", "--only", "intake,relay", "--only", "sweep") as dispatcher:
        dispatcher.until_it_says("ready")
        assert re.search(r"roles +intake, relay, sweep\n", dispatcher.said)
        dispatcher.process.send_signal(signal.SIGINT)
        assert dispatcher.status() == 0


def test_a_dispatcher_executes_what_is_submitted_and_logs_it_in_utc() -> None:
    with Dispatcher("dispatcher", "clishop") as dispatcher:
        dispatcher.until_it_says("ready")
        assert json.loads(good("runs", "start", "clishop:cli_order", "a", "--wait", "30").stdout)["slot"] == "a"
        dispatcher.until_it_says("run ended")
        assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]+Z INFO +aft  run ended: ", dispatcher.said, re.MULTILINE)


def test_sigterm_in_the_middle_of_a_run_burns_no_attempt(here: Path) -> None:
    run = good("runs", "start", "clishop:cli_long", "a").stdout.strip()
    with Dispatcher("dispatcher", "clishop") as dispatcher:
        until(lambda: (here / "calls").exists(), "the activity is called")
        dispatcher.terminate()
        dispatcher.until_it_says(f"draining: 1 run is still going on: {run} (cli_long)")
        (here / "go").touch()
        assert dispatcher.status() == 0
    row = data("runs", "show", run)
    assert (row["status"], row["worker"], row["deaths"]) == ("running", None, 0)
    assert data("faults", "list") == []
    with Dispatcher("dispatcher", "clishop") as second:
        assert ends_as(run, "completed")
        second.terminate()
        assert second.status() == 0
    assert (here / "calls").read_text() == "x"


def test_a_second_sigterm_stops_at_once_and_says_so(here: Path) -> None:
    good("runs", "start", "clishop:cli_long", "a")
    with Dispatcher("dispatcher", "clishop") as dispatcher:
        until(lambda: (here / "calls").exists(), "the activity is called")
        dispatcher.terminate()
        dispatcher.until_it_says("draining: 1 run is still going on")
        dispatcher.terminate()
        assert dispatcher.status() == 1
        assert "stopped at once" in dispatcher.said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--broker", "amqp://guest:guest@127.0.0.1:1/"], "aft: cannot reach RabbitMQ"),
        (["--database", "postgresql://u@127.0.0.1:1/x"], "Connection refused"),
        (["--database", "sqlite:///nowhere/x.db"], "there is no directory"),
    ],
)
def test_a_dispatcher_that_cannot_connect_ends_with_one_line(options: list[str], says: str) -> None:
    with Dispatcher(*options, "dispatcher", "clishop") as dispatcher:
        assert dispatcher.status() == 1
    last = dispatcher.said.splitlines()[-1]
    assert last.startswith("aft: ")
    assert says in last
    assert "Traceback" not in dispatcher.said


def test_an_argument_that_is_no_text_is_told_in_one_line(tmp_path: Path) -> None:
    """What is not UTF-8 reaches Python as halves of characters, which no database takes."""
    found = subprocess.run(
        [sys.executable.encode(), b"-m", b"aft", b"runs", b"show", b"a\xff"],
        capture_output=True,
        cwd=tmp_path,
    )
    assert found.returncode == 2
    assert found.stderr.decode().startswith("aft: the argument 'a\\udcff' holds half a character")
