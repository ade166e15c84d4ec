"""What is kept of a part: figures that were missed, and of which code they are."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from chaos import __main__ as profile
from chaos import results
from chaos.report import write_report
from chaos.results import Result, digest

SEEN = {"takeover": {"count": 3, "p50": 0.2, "p99": 2.5}, "drift": 0.01}
RESULT = Result("part", 1, 10, {"SIGKILL": 3}, [], 1.0, SEEN)


def test_figures_that_are_too_high_or_not_there_are_missed() -> None:
    assert not RESULT.compared({"takeover": {"p99": 2.5}}).failed
    found = RESULT.compared({"takeover": {"p50": 0.1, "p99": 3.0}, "takeover of short steps": {"p50": 0.1}})
    assert found.missed == [
        "takeover: p50 0.2, wanted 0.1 at most",
        "takeover of short steps: p50 was not measured, wanted 0.1 at most",
    ]
    assert found.failed


def test_the_report_tells_what_is_wanted_beside_what_was_seen() -> None:
    report = write_report({"part": RESULT.compared({"takeover": {"p50": 0.1, "p99": 3.0}})}, {"part": "abc"})
    assert "- takeover: count 3, p50 0.2 (wanted ≤ 0.1), p99 2.5 (wanted ≤ 3.0)" in report
    assert "| 10 | 3 | 0 | 1 | 1 |" in report
    assert "- **missed**: takeover: p50 0.2, wanted 0.1 at most" in report


def test_a_result_is_used_again_only_with_the_same_seed_and_code(tmp_path: Path) -> None:
    RESULT.save(tmp_path / "part.json")
    kept = Result.load(tmp_path / "part.json")
    assert kept is not None
    assert (kept.code, len(kept.code), len(kept.date)) == (digest(), 12, 10)
    assert kept.is_of(1)
    assert not kept.is_of(2)
    assert not replace(kept, code="000000000000").is_of(1)


def test_a_result_that_was_kept_before_there_was_a_digest_is_of_older_code(tmp_path: Path) -> None:
    old = {name: value for name, value in asdict(RESULT).items() if name not in ("wanted", "missed", "code", "date")}
    (tmp_path / "part.json").write_text(json.dumps(old))
    kept = Result.load(tmp_path / "part.json")
    assert kept is not None
    assert not kept.is_of(1)
    codes = {"old": "abc", "new": "abc"}
    told = write_report({"old": kept, "new": replace(kept, code="abc", date="2026-01-02")}, codes)
    assert "| [old](#old) | 1 | unknown | older code |" in told
    assert "| [new](#new) | 1 | 2026-01-02 | as it is now, `abc` |" in told


@pytest.mark.parametrize(("bound", "code"), [(0.1, 1), (0.2, 0)])
def test_a_profile_fails_for_a_missed_figure_and_repeats_what_is_of_older_code(
    bound: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def run(part: str, *given: object) -> Result:
        made.append(part)
        return RESULT.compared({"takeover": {"p50": bound}})

    for name, value in (("ROOT", tmp_path), ("KEPT", tmp_path / "chaos"), ("_run", run), ("parts", lambda: ["soak"])):
        monkeypatch.setattr(profile, name, value)
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(sys, "argv", ["chaos", "soak"])
    assert (profile.main(), profile.main(), made) == (code, code, ["soak"])
    monkeypatch.setattr(results, "digest", lambda part: "another code")
    assert (profile.main(), made) == (code, ["soak", "soak"])


def test_the_digest_is_of_what_is_broken_and_of_what_breaks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    found = []
    for name in (
        "aft/runs/ownership/owner.py",
        "migrations/versions/0001_first.py",
        "chaos/load.py",
        "chaos/load.py",
        "docs/notes.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a") as file:
            file.write("# more\n")
        found.append(digest.__wrapped__())
    assert len(set(found)) == 4
    assert found[-1] == found[-2]


def test_the_digest_is_also_of_the_helpers_that_chaos_shares_with_the_tests() -> None:
    texts = [path.read_text() for path in Path(results.__file__).parent.glob("*.py")]
    shared = {name for text in texts for name in re.findall(r"\bfrom (tests[\w.]+) import", text)}
    assert shared
    assert {f"{name.replace('.', '/')}.py" for name in shared} <= set(results.CODE)


def test_the_digest_of_a_part_is_of_what_that_part_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    texts = {
        "aft/clock.py": "",
        "chaos/load.py": "",
        "chaos/part_kills.py": "",
        "chaos/part_more.py": "from chaos import part_kills\n",
        "chaos/part_soak.py": "",
        "chaos/report.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    changed = {}
    for name, text in texts.items():
        before = digest.__wrapped__("more")
        (tmp_path / name).write_text(f"{text}# more\n")
        changed[Path(name).stem] = digest.__wrapped__("more") != before
    made_of = {"clock", "load", "part_kills", "part_more"}
    assert changed == {Path(name).stem: Path(name).stem in made_of for name in texts}
