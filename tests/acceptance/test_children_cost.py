"""What many children cost their parent; counted, not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import aft
from aft.runs.ownership.owner import Owner
from aft.runs.states import Status
from tests.acceptance.observe import children_of, recorded
from tests.setups import Setup, eventually


@aft.flow(name="costs_child")
def child(number: int) -> int:
    """Wait for a word."""
    aft.wait_for("word")
    return number


@aft.flow(name="costs_parent")
def parent(count: int) -> list[int]:
    """So many children side by side."""
    return aft.map(child, range(count), concurrency=100)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the owner of each run asked the database something, or wrote to it."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        real: Callable[..., Any] = getattr(Owner, name)

        def counted(owner: Owner, *args: Any, **kwargs: Any) -> Any:
            counts[owner.run_id] += 1
            return real(owner, *args, **kwargs)

        monkeypatch.setattr(Owner, name, counted)

    for name in ("read", "query", "write", "share"):
        count(name)
    return counts


def end_one_by_one(app: aft.Aft, count: int) -> aft.Run:
    """Let children end one after the other, each when their parent waits for it."""

    def waits(after: int) -> bool:
        return run.status is Status.WAITING and len(recorded(app, run)) == after

    with app.dispatcher():
        run = app.submit(parent, count)
        eventually(lambda: len(children_of(app, run)) == count)
        for ended, one in enumerate(children_of(app, run)):
            eventually(partial(waits, ended))
            app.run(one.id).signal("word", "go")
        assert run.result(60) == list(range(count))
    return run


def test_twice_the_children_are_twice_the_statements(setup: Setup, statements: Counter[str]) -> None:
    app = setup.app()
    few, many = (statements[end_one_by_one(app, count).id] for count in (8, 16))
    assert many <= 2.5 * few
