"""Stories are told on the two set-ups that people have: nothing to set up, and production.

PostgreSQL with the embedded broker has the core loop, the contract of the brokers and the integration tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import make_setup
from tests.setups import ENDS, Setup


@pytest.fixture(params=ENDS)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """Both in turn, in a namespace of the test's own."""
    made = make_setup(request.param, request, tmp_path)
    yield made
    made.close()
