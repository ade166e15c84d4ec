"""What is installed is what was tested: the wheel, in an empty virtual environment, outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AFT_", "PYTHON"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def pip() -> list[str]:
    """A pip that can install into other environments; the tests' own environment may have none."""
    for python in (sys.executable, shutil.which("python3") or "python3"):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            return [python, "-m", "pip", "--disable-pip-version-check"]
    pytest.fail("no pip found: neither in the tests' environment nor as `python3 -m pip`")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an empty environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(*pip(), "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("aft-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    put = run(*pip(), "--python", python, "install", "--quiet", wheel, cwd=folder)
    assert put.returncode == 0, put.stderr
    return python.parent


def test_an_installed_wheel_upgrades_a_database_and_replays_the_examples(installed: Path, tmp_path: Path) -> None:
    upgraded = run(installed / "aft", "db", "upgrade", cwd=tmp_path)
    assert upgraded.returncode == 0, upgraded.stderr
    for example in ("cms_ad_approval", "organise_concert"):
        played = run(installed / "aft", "replay", example, cwd=tmp_path)
        assert played.returncode == 0, played.stdout + played.stderr


def test_an_installed_wheel_is_typed(installed: Path, tmp_path: Path) -> None:
    found = run(
        installed / "python", "-c", "import aft, pathlib; print(pathlib.Path(aft.__file__).parent)", cwd=tmp_path
    )
    assert (Path(found.stdout.strip()) / "py.typed").exists()
