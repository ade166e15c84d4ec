"""Stories are told on the two set-ups that people have: nothing to set up, and production.

PostgreSQL with the embedded broker has the core loop, the contract of the brokers and the integration tests.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aft.rules.cases import sources
from tests import world
from tests.acceptance.terminal import Terminal
from tests.conftest import make_setup
from tests.setups import ENDS, Setup


@pytest.fixture(params=ENDS)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """Both in turn, in a namespace of the test's own."""
    made = make_setup(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Setup]:
    """A SQLite file that nobody has made yet, and the embedded broker in it."""
    made = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded")
    yield made
    made.close()


@pytest.fixture
def terminal(embedded: Setup) -> Terminal:
    """Commands on a SQLite file of the test's own."""
    return Terminal(embedded)


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those that a command is given, and a name to be known by."""
    for name in list(os.environ):
        if name.startswith("AFT_") and not name.startswith("AFT_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LOGNAME", "night-watch")


@pytest.fixture
def show() -> Iterator[str]:
    """An order, by the name that theatres have for it."""
    yield from world.new_order()


@pytest.fixture
def family() -> Iterator[str]:
    """An order, by the name of those whom it concerns."""
    yield from world.new_order()


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook on this machine, and what it has heard."""
    heard: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", heard
        server.shutdown()
        thread.join()


@pytest.fixture
def known_sources() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    before = dict(sources.declared)
    yield
    sources.declared.clear()
    sources.declared.update(before)
