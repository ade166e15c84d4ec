"""requirements.lock has all that pyproject.toml asks for, in its range, each with its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
#: One requirement of the lock file, with the lines that belong to it.
LOCKED = re.compile(r"^(?P<name>[\w.-]+)(\[[\w,]+\])?==(?P<version>\S+)(?P<rest>(?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)

found = {canonicalize_name(match["name"]): match for match in LOCKED.finditer((ROOT / "requirements.lock").read_text())}
project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
wanted = [
    *project["dependencies"],
    *project["optional-dependencies"]["dev"],
    *project["optional-dependencies"]["bench"],
]


@pytest.mark.parametrize("requirement", sorted(set(wanted)))
def test_what_is_asked_for_is_locked_in_its_range(requirement: str) -> None:
    asked = Requirement(requirement)
    match = found.get(canonicalize_name(asked.name))
    assert match is not None, f"{asked.name} is not in requirements.lock: make lock"
    assert asked.specifier.contains(match["version"]), f"{match['version']} is not in {asked}: make lock"


@pytest.mark.parametrize("name", sorted(found))
def test_everything_has_its_hashes(name: str) -> None:
    assert "--hash=sha256:" in found[canonicalize_name(name)]["rest"]


def test_nothing_says_where_it_comes_from() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=", ""), re.MULTILINE)
