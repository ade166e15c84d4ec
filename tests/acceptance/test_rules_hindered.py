"""Rules that cannot be asked, or only late, harm nobody: other runs go on, and so does the worker."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select, update

import aft
from aft import do
from aft.flows.steps.constraints import Constraints
from aft.rules.rule_types import RuleType
from aft.runs.states import Status
from aft.store import tables
from tests.acceptance import theatre
from tests.acceptance.revue import WORKS, refuse, revue
from tests.acceptance.theatre import stops, teach
from tests.setups import Setup, eventually
from tests.world import gates

#: On one set-up: these are about what is decided, not about where it is kept.
pytestmark = pytest.mark.parametrize("setup", ["sqlite"], indirect=True)


@pytest.mark.usefixtures("known_sources")
def test_a_source_may_have_a_default_that_json_does_not_know(setup: Setup, show: str) -> None:
    @aft.source(default=Decimal("7.5"), name="revue_price")
    def price() -> Any:
        raise RuntimeError("nobody knows")

    app = setup.app()
    teach(app, theatre.evening, "fault", "source.revue_price > 5.0", do.complete(computed="int(source.revue_price)"))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 7, 10]


def test_a_fault_that_cannot_be_read_parks_its_run_and_holds_up_no_other(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "activity.args.what == 'tickets'", do.complete(1))
    shows = [f"{show}-{nth}" for nth in range(3)]
    for one in shows:
        refuse(one)
    with app.dispatcher(only=WORKS):
        found = [app.submit(theatre.evening, one) for one in shows]
        for run in found:
            stops(run, Status.RECOVERING)
    with app.store.write() as connection:
        table = tables.faults
        connection.execute(update(table).where(table.c.run_id == found[1].id).values(step_snapshot="no JSON"))
    with app.dispatcher():
        assert [found[nth].result(60) for nth in (0, 2)] == [[10, 1, 10]] * 2
        stops(found[1], Status.PARKED)
        assert "step_snapshot" in str(found[1].row.reason)
        found[1].retry()
        assert found[1].result(60)[0] == 10


def test_a_watch_that_cannot_be_asked_leaves_the_others_watched(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    teach(app, revue, "violated", "activity.elapsed > 0.1", do.complete(9))
    ask, raised = Constraints.find_objection, threading.Event()

    def ask_or_raise(self: Constraints, on: RuleType, step: Any) -> Any:
        if on is RuleType.VIOLATED and f"{show}-1" in (step.args or ""):
            raised.set()
            raise RuntimeError("no way to ask")
        return ask(self, on, step)

    monkeypatch.setattr(Constraints, "find_objection", ask_or_raise)
    for nth in (1, 2):
        gates[f"{show}-{nth}", "number 1"] = threading.Event()
    with app.dispatcher():
        one = app.submit(revue, f"{show}-1")
        eventually(raised.is_set)
        assert app.submit(revue, f"{show}-2").result(60) == 9
        gates[f"{show}-1", "number 1"].set()
        assert one.result(60) == 1
        gates[f"{show}-2", "number 1"].set()


def test_a_worker_whose_rules_take_long_to_answer_keeps_its_lease(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    teach(app, revue, "violated", "activity.elapsed > 100.0", do.complete(9))
    asked, answer, ask = threading.Event(), threading.Event(), Constraints.find_objection

    def ask_slowly(self: Constraints, on: RuleType, step: Any) -> Any:
        if on is RuleType.VIOLATED:
            asked.set()
            assert answer.wait(60)
        return ask(self, on, step)

    def lease() -> Any:
        with app.store.read() as connection:
            return connection.execute(
                select(tables.workers.c.expires_at).where(tables.workers.c.id == run.row.worker_id)
            ).scalar()

    monkeypatch.setattr(Constraints, "find_objection", ask_slowly)
    gate = gates[show, "number 1"] = threading.Event()
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(asked.is_set)
        before = lease()
        eventually(lambda: lease() != before)
        gate.set()
        assert run.result(60) == 1
        answer.set()
    assert run.row.epoch == 1
