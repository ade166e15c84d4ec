"""A person at the command line, in this process, and the application that the commands are about."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from aft.cli.root import root
from tests.setups import Setup


class Terminal:
    """Types commands; a traceback is a failure of any test."""

    def __init__(self, setup: Setup, *, check: bool = True, **settings: Any) -> None:
        self._setup = setup
        self.app = setup.app(**settings)
        if check:
            self.app.check()  # a new SQLite file is made here

    def call(self, *arguments: str, typed: str | None = None) -> Result:
        place = ["--database", self._setup.database, "--broker", self._setup.broker, "--namespace", self.app.namespace]
        result = CliRunner().invoke(root, [*place, *arguments], input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return result

    def good(self, *arguments: str, typed: str | None = None) -> Result:
        result = self.call(*arguments, typed=typed)
        assert result.exit_code == 0, result.output
        return result

    def refused(self, *arguments: str, status: int = 1) -> str:
        """Run a command that fails, and return the one line that says why."""
        result = self.call(*arguments)
        assert result.exit_code == status, result.output
        first, *more = result.stderr.splitlines()
        assert first.startswith("aft: "), result.output
        assert status == 2 or not more, result.output
        return first

    def data(self, *arguments: str) -> Any:
        return json.loads(self.good(*arguments, "--json").stdout)
