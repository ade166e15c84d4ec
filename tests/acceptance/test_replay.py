"""Claims about ``aft replay``: it plays scenarios with real processes and notices what ends otherwise than declared."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aft import Aft, Settings
from tests.setups import Setup, eventually

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cms_ad_approval"
COMMAND = [sys.executable, "-m", "aft", "replay"]


def environ(setup: Setup | None = None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AFT_", "COLUMNS"))}
    return clean | {"PYTHONPATH": str(ROOT)} | ({} if setup is None else setup.environ())


def replay(*words: str | Path, cwd: Path, setup: Setup | None = None) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environ(setup), capture_output=True, text=True, timeout=300, check=False
    )


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def copy_example(to: Path, example: Path = EXAMPLE) -> Path:
    return Path(shutil.copytree(example, to / example.name, ignore=shutil.ignore_patterns("__pycache__")))


def test_every_scenario_ends_as_declared_in_an_empty_directory(tmp_path: Path) -> None:
    played = replay(EXAMPLE, cwd=tmp_path)
    assert played.returncode == 0, played.stdout + played.stderr
    assert "18 played, all as declared" in played.stdout
    assert "\x1b" not in played.stdout
    assert (tmp_path / "aft.db").exists()
    for line in (
        "✓ sysadmin_approve  state=",
        "▲ push undo_sysadmin_approve",
        "✗ approve_slot  CmsBusy: the CMS is publishing an edition",
        "◷ level 2, try 1: waits 500ms in aft-replay.delay.500ms.v2",
        "■ final  all levels exhausted after 4 failures",
        "▼ pop undo_sysadmin_approve",
        "▲ push undo_remind",
        "✗ ad_slot_approval  WaitTimeout: signal 'reviewer_verdict' did not",
        "☞ signal  sysadmin_verdict with key 'form-17' once more: dropped",
        "☠ worker ",
        "which died of SIGKILL",
        '└ completed  "approved"',
        "└ compensated",
    ):
        assert line in played.stdout, line


def test_every_scenario_ends_as_declared_on_postgresql_and_rabbitmq(production: Setup, tmp_path: Path) -> None:
    played = replay("cms_ad_approval", "--json", cwd=tmp_path, setup=production)
    assert played.returncode == 0, played.stdout + played.stderr
    results = {result["scenario"]: result for result in json.loads(played.stdout)}
    assert len(results) == 18
    assert all(result["ok"] for result in results.values())
    assert results["worker-killed"]["killed"]["signal"] == signal.SIGKILL
    assert results["worker-killed"]["done"] == ["sysadmin_approve", "approve_slot"]
    assert results["worker-killed-while-waiting"]["killed"]["signal"] == signal.SIGKILL
    assert results["verdict-sent-twice"]["sent"] == ["sysadmin_verdict", "sysadmin_verdict", "reviewer_verdict"]
    assert results["verdict-sent-twice"]["dropped"] == ["sysadmin_verdict"]
    assert results["nobody-answers"]["undone"] == ["undo_remind", "undo_sysadmin_approve"]


def test_the_worker_is_really_killed_and_another_one_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, str(EXAMPLE), "--scenario", "worker-killed", "--json"],
        cwd=tmp_path,
        env=environ(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        (first,) = eventually(lambda: children(process.pid))
        (second,) = eventually(lambda: [pid for pid in children(process.pid) if pid != first])
        assert not Path(f"/proc/{first}").exists()
        output, _ = process.communicate(timeout=60)
    (result,) = json.loads(output)
    assert result["killed"] == {"pid": first, "signal": signal.SIGKILL}
    assert result["ok"]
    assert "worker lost" in result["faults"]
    assert not Path(f"/proc/{second}").exists()


def test_a_scenario_that_ends_otherwise_than_declared_is_told_with_status_1(tmp_path: Path) -> None:
    example = copy_example(tmp_path)
    path = example / "scenarios" / "07-unrecoverable.toml"
    path.write_text(path.read_text().replace('tables = "as before"', 'tables = "rejected"'))
    played = replay(example, "--scenario", "approved", "--scenario", "unrecoverable", cwd=tmp_path)
    assert played.returncode == 1
    assert "tables: declared rejected; found as before" in played.stdout
    assert "1 of 2 not as declared" in played.stdout


def test_a_compensator_that_leaves_something_behind_is_noticed(tmp_path: Path) -> None:
    example = copy_example(tmp_path)
    path = example / "cms.py"
    spoilt = "    connection.execute(delete(notices).where(notices.c.key == audit.key))\n"
    assert spoilt in path.read_text()
    path.write_text(path.read_text().replace(spoilt, "").replace("ForeignKey(audits.c.key)", "String(200)"))
    played = replay(example, "--scenario", "unrecoverable", cwd=tmp_path)
    assert played.returncode == 1
    assert "tables: declared as before; found submitted, but audits say [] and there are 1 notices and 0 reminders" in (
        played.stdout
    )


def test_a_signal_that_nobody_waited_for_is_noticed(tmp_path: Path) -> None:
    example = copy_example(tmp_path)
    path = example / "scenarios" / "02-rejected-by-sysadmin.toml"
    more = '[[signal]]\nname = "reviewer_verdict"\nvalue = "approve"\n\n[expect]'
    path.write_text(path.read_text().replace("[expect]", more))
    played = replay(example, "--scenario", "rejected-by-sysadmin", cwd=tmp_path)
    assert played.returncode == 1
    assert "sent: declared sysadmin_verdict | reviewer_verdict; found sysadmin_verdict\n" in played.stdout


def test_a_signal_that_was_to_be_dropped_and_was_not_is_noticed(tmp_path: Path) -> None:
    example = copy_example(tmp_path)
    path = example / "scenarios" / "17-verdict-sent-twice.toml"
    path.write_text(path.read_text().replace('key = "form-17"\nwhen', 'key = "form-18"\nwhen'))
    played = replay(example, "--scenario", "verdict-sent-twice", cwd=tmp_path)
    assert played.returncode == 1
    assert "dropped: declared sysadmin_verdict; found nothing" in played.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((EXAMPLE, "--scenario", "approvd"), "no scenario 'approvd'; did you mean 'approved'?"),
        (("cms_ad_aproval",), "no example 'cms_ad_aproval'; did you mean 'cms_ad_approval'?"),
        (("examples/cms_ad_approval",), "no example 'examples/cms_ad_approval'; did you mean 'cms_ad_approval'?"),
    ],
)
def test_a_name_that_is_not_there_is_one_line_and_status_2(
    words: tuple[str | Path, ...], said: str, tmp_path: Path
) -> None:
    played = replay(*words, cwd=tmp_path)
    assert (played.returncode, played.stdout, played.stderr) == (2, "", f"aft: {said}\n")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("done =", "dome =", "01-approved.toml: nothing can be expected of 'dome'; did you mean 'done'?"),
        ('value = "approve"', 'valve = "approve"', "01-approved.toml: a signal has no 'valve'; did you mean 'value'?"),
        (
            "[[signal]]",
            '[[signal]]\nwhen = "soon"',
            "01-approved.toml: no signal is sent 'soon'; there are 'awaited', 'at once'",
        ),
        ("title", 'deadline = "soon"\ntitle', "01-approved.toml: 'soon' is not a duration"),
        (
            '"reviewer_verdict"',
            '"reviewer_veredict"',
            "no signal 'reviewer_veredict'; did you mean 'reviewer_verdict'?",
        ),
        ('value = "approve"', 'value = "perhaps"', "scenario 'approved': signal 'sysadmin_verdict':"),
    ],
)
def test_a_data_file_with_a_slip_is_told_before_anything_is_played(
    right: str, wrong: str, said: str, tmp_path: Path
) -> None:
    example = copy_example(tmp_path)
    path = example / "scenarios" / "01-approved.toml"
    path.write_text(path.read_text().replace(right, wrong))
    played = replay(example, cwd=tmp_path)
    assert (played.returncode, played.stdout) == (2, "")
    assert said in played.stderr
    assert not (tmp_path / "aft.db").exists()


def test_scenarios_are_listed_without_playing(tmp_path: Path) -> None:
    listed = replay("cms_ad_approval", "--list", cwd=tmp_path)
    assert listed.returncode == 0
    assert "worker-killed-while-undoing" in listed.stdout
    assert not (tmp_path / "aft.db").exists()


def test_a_database_that_is_not_migrated_is_told_in_one_line(postgres_url: str, tmp_path: Path) -> None:
    empty = Setup("postgresql", postgres_url + "?options=-csearch_path%3Dnowhere", "embedded")
    played = replay("cms_ad_approval", cwd=tmp_path, setup=empty)
    assert played.returncode == 1
    assert "run `aft db upgrade`" in played.stderr
    assert "Traceback" not in played.stderr


def test_a_worker_that_cannot_start_shows_its_last_lines(tmp_path: Path) -> None:
    example = copy_example(tmp_path)
    with (example / "flow.py").open("a") as code:
        code.write('import sys\nif "worker" in sys.argv[0]:\n    sys.exit("not in this house")\n')
    played = replay(example, "--scenario", "approved", cwd=tmp_path)
    assert played.returncode == 1
    assert "aft: the worker process ended by itself, with status 1" in played.stderr
    assert "not in this house" in played.stderr


def test_a_file_in_the_current_folder_is_not_taken_for_an_installed_module(tmp_path: Path) -> None:
    for name in ("tenacity", "sqlalchemy", "tomllib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('trapped')\n")
    command = [sys.executable, "-P", *COMMAND[1:], str(EXAMPLE), "--scenario", "approved"]
    played = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=300)
    assert "trapped" not in played.stdout + played.stderr
    assert played.returncode == 0, played.stdout + played.stderr


def test_a_second_replay_in_the_same_namespace_is_refused(tmp_path: Path) -> None:
    settings = Settings.load(database_url=f"sqlite:///{tmp_path / 'aft.db'}", namespace="aft-replay")
    with Aft(settings=settings) as app, app.dispatcher():
        played = replay(EXAMPLE, "--scenario", "approved", cwd=tmp_path)
    assert played.returncode == 1
    assert f"another replay is playing in namespace 'aft-replay' (its worker is process {os.getpid()})" in played.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_replay(how: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, str(EXAMPLE)], cwd=tmp_path, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        (worker,) = eventually(lambda: children(process.pid))
        process.send_signal(how)
    eventually(lambda: not Path(f"/proc/{worker}").exists())


def test_a_name_alone_never_means_a_folder_of_the_current_one(tmp_path: Path) -> None:
    planted = copy_example(tmp_path)
    (planted / "__init__.py").write_text("raise RuntimeError('code of the current folder')\n")
    played = replay("cms_ad_approval", "--scenario", "approved", cwd=tmp_path)
    assert played.returncode == 0, played.stdout + played.stderr
    assert "code of the current folder" not in played.stdout + played.stderr

    planted.rename(tmp_path / "mine")
    refused = replay("mine", "--scenario", "approved", cwd=tmp_path)
    assert refused.returncode == 2
    assert "write './mine'" in refused.stderr
    assert "code of the current folder" in replay("./mine", "--scenario", "approved", cwd=tmp_path).stderr
