"""Installs the peers, each in its own virtual environment under ``.bench``, from its requirements."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from bench.jobs import ROOT

HOME = ROOT / ".bench"
PEERS = ("celery", "dbos", "dramatiq", "procrastinate")
#: What pip says of a failure that is shown.
SHOWN = 500


class NotInstalled(Exception):
    """Raised when an environment cannot be created; says why."""


def install(name: str, requirements: Path) -> Path:
    """Return the interpreter of an environment, which is created again if its requirements have changed."""
    place = HOME / name
    python, mark = place / "bin" / "python", place / ".installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not (python.exists() and mark.exists() and mark.read_text() == wanted):
        # Without pip, by that of this environment: where venv is split off, none can be put into a new one.
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(place))
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
        _run(*pip, "--quiet", "-r", str(requirements))
        mark.write_text(wanted)
    return python


def install_peer(name: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return install(name, ROOT / "bench" / "peers" / f"{name}.txt")


def version(name: str) -> str:
    """Return the version of an installed peer."""
    found = (HOME / name).glob(f"lib/python*/site-packages/{name}-*.dist-info")
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in found), "?")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[:6])} …: {done.stderr.strip()[-SHOWN:]}")
