"""A file in the current folder is not taken for a module of Python's, nor for one that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOP = """
import aft
import tomllib

@aft.activity(name="paths_buy")
def buy(what: str) -> str:
    return what

@aft.flow(name="paths_buying")
def buying(what: str) -> str:
    return buy(what)
"""
TRAP = "raise SystemExit('trapped')\n"
#: The script: what ``python -m`` finds first is Python's own doing.
AFT = Path(sys.executable).with_name("aft")


def examine(folder: Path, module: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AFT_", "PYTHON"))}
    command = [str(AFT), "doctor", module]
    return subprocess.run(
        command, cwd=folder, env={**kept, **environ}, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_file_beside_the_users_module_is_not_taken_for_one_of_pythons(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    for name in ("tomllib", "psycopg", "click", "shlex", "readline"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    done = examine(tmp_path, "shop")
    assert "trapped" not in done.stdout + done.stderr
    assert "paths_buying" in done.stdout


def test_a_module_that_an_installed_one_hides_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "sqlalchemy.py").write_text(SHOP)
    done = examine(tmp_path, "sqlalchemy")
    assert done.returncode != 0
    assert "rename" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_current_folder_is_not_looked_at_where_python_is_told_not_to(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    refused = examine(tmp_path, "shop", PYTHONSAFEPATH="1")
    assert refused.returncode != 0
    assert "PYTHONSAFEPATH" in refused.stderr
    named = examine(tmp_path, "shop", PYTHONSAFEPATH="1", PYTHONPATH=str(tmp_path))
    assert "paths_buying" in named.stdout, named.stderr
