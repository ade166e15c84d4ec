"""The floors of the house are a claim: a package imports only from floors below its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]


def lint(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Hold the contracts of a configuration against the code."""
    return subprocess.run([*LINT, *options], cwd=directory, capture_output=True, text=True, check=False)


def test_every_contract_of_the_floors_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 broken." in done.stdout


@pytest.fixture
def upside_down(tmp_path: Path) -> Path:
    """A copy of the house whose store imports from the floor of the flows."""
    for module in (ROOT / "aft").rglob("*.py"):
        copy = tmp_path / module.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(module.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    outbox = tmp_path / "aft" / "store" / "outbox.py"
    outbox.write_text(outbox.read_text(encoding="utf-8") + "\nimport aft.flows.worker.slots\n", encoding="utf-8")
    return tmp_path


def test_the_contracts_notice_an_import_from_above(upside_down: Path) -> None:
    done = lint(upside_down)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "aft.store.outbox -> aft.flows.worker.slots" in done.stdout
