"""A savepoint that is made and never entered undoes nothing: that is told where it was made."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import aft
from tests.setups import migrate


@aft.flow
def forgets_with() -> int:
    aft.savepoint("booking")
    return 1


@aft.flow
def enters() -> int:
    block = aft.savepoint("booking")
    with block, aft.savepoint():
        return 1


@pytest.fixture
def app(tmp_path: Path) -> aft.Aft:
    url = f"sqlite:///{tmp_path / 'aft.db'}"
    migrate(url)
    return aft.Aft(url)


def test_a_savepoint_without_with_is_told_at_its_line(app: aft.Aft) -> None:
    with pytest.warns(RuntimeWarning, match=r"write `with aft.savepoint\('booking'\):`") as told:
        assert app.start(forgets_with).result(60) == 1
    assert [Path(warning.filename).name for warning in told] == [Path(__file__).name]


def test_a_savepoint_without_with_is_told_where_the_flow_is_called_as_a_function_too() -> None:
    with pytest.warns(RuntimeWarning, match="was never entered"):
        aft.savepoint()


def test_one_that_is_entered_is_not(app: aft.Aft) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert app.start(enters).result(60) == 1
