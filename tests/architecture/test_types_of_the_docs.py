"""Type checkers accept what README and guide show; and results have the types that their flows declare."""

from __future__ import annotations

import ast
import builtins
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "docs" / "guide.md"]
NAMES = "names_of_the_guide"

#: What a person would expect of the types, beside what the documents show.
TYPED = """
from typing import Any, assert_type

import aft

@aft.activity
async def upload(page: str) -> str:
    return page

@aft.activity
def render(slot: str) -> int:
    return len(slot)

@aft.flow
def plain(slot: str) -> int:
    stored: str = upload(slot)                  # an async activity in a plain flow: its value
    upload(slot)
    amount: int = aft.wait_for("amount", int)
    assert_type(aft.map(render, [stored]), list[int])
    assert_type(aft.map(upload, [stored]), list[str])
    assert_type(aft.parallel(render.call(slot), upload.call(slot)), tuple[int, str])
    return amount + render(slot)

@aft.flow
async def awaiting(slot: str) -> str:
    verdict: str = await aft.wait_for("v", str)
    await aft.sleep("1h")
    assert_type(await render.call(slot), int)
    stored: str = await upload(slot)
    return verdict + stored

def use(app: aft.Aft, found: aft.Run) -> None:
    assert_type(app.submit(plain, "x"), aft.Run[int])
    assert_type(app.submit(plain.options(key="x"), "x").result(), int)
    assert_type(app.start(awaiting, "x").result(timeout=3), str)
    assert_type(app.run("7").result(), Any)
    anything: str = found.result()
"""


def blocks() -> list[tuple[str, str]]:
    found = []
    for document in DOCS:
        text = document.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text[: block.start()].count("\n") + 2
            found.append((f"{document.stem.lower()}_{line}", block[1]))
    return found


def module(code: str) -> str:
    """Make a module of a block: what it uses and does not say is imported; a piece of a function becomes one."""
    code = (
        code if not code.startswith(" ") else "def piece() -> None:\n" + textwrap.indent(textwrap.dedent(code), "    ")
    )
    tree = ast.parse(code)
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {getattr(node, "name", None) or "" for node in ast.walk(tree) if hasattr(node, "name")}
    made |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    missing = sorted(used - made - set(dir(builtins)) - {"aft"})
    imports = f"from {NAMES} import {', '.join(missing)}\n" if missing else ""
    return f"import aft\n{imports}\n{code}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("types")
    (place / f"{NAMES}.pyi").write_text((Path(__file__).parent / f"{NAMES}.pyi").read_text())
    first = None
    for name, code in blocks():
        first = first or code
        (place / f"{name}.py").write_text(module(code))
    (place / "shop.py").write_text(first or "")  # as README says: save it
    (place / "typed.py").write_text(TYPED)
    (place / "pyproject.toml").write_text(PROJECT)
    return place


#: What the documents leave out is no mistake: bodies, and annotations of compensators.
PROJECT = f"""
[tool.mypy]
python_version = "3.11"
mypy_path = "{ROOT}"
check_untyped_defs = true
disable_error_code = ["empty-body"]

[tool.basedpyright]
typeCheckingMode = "standard"
pythonVersion = "3.11"
extraPaths = ["{ROOT}"]
include = ["."]
reportReturnType = "warning"
"""


def test_there_is_something_to_check() -> None:
    assert len(blocks()) > 10


def test_mypy_accepts_what_the_documents_show(pages: Path) -> None:
    told = subprocess.run([sys.executable, "-m", "mypy", "."], cwd=pages, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_pyright_accepts_what_the_documents_show(pages: Path) -> None:
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    told = subprocess.run(command, cwd=pages, capture_output=True, text=True, check=False)
    found = json.loads(told.stdout)
    assert found["summary"]["filesAnalyzed"] > 10, told.stdout + told.stderr
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    assert not errors, "\n".join(
        f"{Path(one['file']).name}:{one['range']['start']['line']} {one['message']}" for one in errors
    )
