"""A dispatcher that is killed in the middle of an exlet: another one goes on there, and everything happens once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, select

import aft
from aft import do
from aft.rules.exlets import plans
from aft.rules.exlets.plans import Plan, PlanState
from aft.rules.exlets.primitives import Primitive
from aft.runs.records import inbox, notices
from aft.runs.records.inbox import InboxVerb
from aft.runs.states import Status
from aft.store import tables
from tests.acceptance import theatre
from tests.acceptance.commands import PATIENCE
from tests.acceptance.dying import WHERE
from tests.acceptance.theatre import stops, teach
from tests.setups import Setup, eventually
from tests.world import Refused, keys, ledger, trouble

NOBODY = "http://127.0.0.1:9/"
DECIDES = ["intake", "relay", "sweep"]


def die(setup: Setup, where: str) -> None:
    """Let a dispatcher decide until it dies there."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.acceptance.dying"],
        env={**os.environ, **setup.environ(), WHERE: where, "PYTHONPATH": str(Path.cwd())},
        timeout=PATIENCE,
        check=False,
        capture_output=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()


def orders(app: aft.Aft, run: aft.Run) -> list[InboxVerb]:
    """What an exlet has asked of a run, and of its owner."""
    with app.store.read() as connection:
        items = inbox.of_run(connection, run.id)
    return [item.verb for item in items if item.actor.startswith("exlet ")]


def audited(app: aft.Aft, run: aft.Run) -> list[str]:
    with app.store.read() as connection:
        statement = select(tables.audit.c.action).where(tables.audit.c.run_id == run.id)
        return sorted(connection.execute(statement.where(tables.audit.c.actor.startswith("exlet "))).scalars())


def ends(app: aft.Aft, run: aft.Run) -> Plan:
    """Wait until the one plan for a run is done."""

    def plan() -> Plan:
        with app.store.read() as connection:
            (found,) = plans.of_run(connection, run.id)
        return found

    eventually(lambda: plan().state is PlanState.DONE)
    return plan()


def left_held(app: aft.Aft) -> int:
    with app.store.read() as connection:
        return connection.execute(select(func.count()).select_from(tables.holds)).scalar_one()


def places(steps: list[Primitive]) -> list[str]:
    """Before every commit of an exlet's plan, and after the last, that of its end.

    After one, the database is as it is before the next; ``AFT_TEST_BOTH_SIDES`` has a process die on either side.
    """
    last = len(steps) + 1
    before, after = ([f"{side} {number}" for number in range(1, last + 1)] for side in ("before", "after"))
    return [*before, *after] if os.environ.get("AFT_TEST_BOTH_SIDES") else [*before, after[-1]]


ALL: list[Primitive] = [
    do.suspend("flow"),
    do.set(tags={"seen": True}, computed={"tags.what": "activity.args.what"}),
    do.notify(NOBODY),
    do.complete(5),
    do.resume("flow"),
]
AGAIN: list[Primitive] = [
    do.suspend("run"),
    do.set(args={"seats": 2}),
    do.restart(),
    do.resume("run"),
    do.notify(NOBODY),
]


@pytest.mark.parametrize("where", places(ALL))
def test_many_runs_are_suspended_and_continued_once_and_the_step_is_decided_once(setup: Setup, where: str) -> None:
    app, show = setup.app(), secrets.token_hex(4)
    teach(app, theatre.premiere, "fault", "true", *ALL)
    trouble[show, "tickets"] = [Refused("no")]
    with app.dispatcher(only=["work"]):
        beside = [app.submit(theatre.premiere, f"{show}-{number}") for number in range(2)]
        run = app.submit(theatre.premiere, show)
        for one in (run, *beside):
            stops(one, Status.WAITING)
        run.signal("word")
        die(setup, where)
        with app.dispatcher(only=DECIDES):
            assert run.result(60) == [10, 5]
            ends(app, run)
            for one in beside:
                one.signal("word")
                assert one.result(60) == [10, 10]
    plan = ends(app, run)
    assert (plan.position, plan.note) == (len(ALL), None)
    with app.store.read() as connection:
        assert len(notices.of_run(connection, run.id)) == 1
    for one in (run, *beside):
        assert audited(app, one) == ["resume", "suspend"]
    assert orders(app, run).count(InboxVerb.RULING) == 1
    assert run.row.tags == {"seen": True, "what": "tickets"}
    assert ledger[show] == ["hall 1", "tickets 1!"]


@pytest.mark.parametrize("where", places(AGAIN))
def test_what_is_begun_anew_is_undone_and_executed_once(setup: Setup, where: str) -> None:
    app, show = setup.app(), secrets.token_hex(4)
    teach(app, theatre.premiere, "activity_post", "activity.args.what == 'hall' && activity.args.seats == 1", *AGAIN)
    with app.dispatcher(only=["work"]):
        run = app.submit(theatre.premiere, show)
        stops(run, Status.RECOVERING)
        die(setup, where)
        with app.dispatcher(only=DECIDES):
            stops(run, Status.WAITING)
            run.signal("word")
            assert run.result(60) == [20, 10]
            ends(app, run)
    with app.store.read() as connection:
        assert len(notices.of_run(connection, run.id)) == 1
    assert audited(app, run) == ["resume", "suspend"]
    assert orders(app, run).count(InboxVerb.RULING) == 1
    assert ledger[show] == ["hall 1", "unhall 1 for 10", "hall 2", "tickets 1"]
    assert len(set(keys[show, "hall"])) == 2
    assert left_held(app) == 0


@pytest.mark.parametrize("where", ["before 1", "before 2"])
def test_all_runs_of_a_flow_are_removed_once(setup: Setup, where: str) -> None:
    app, show = setup.app(), secrets.token_hex(4)
    teach(app, theatre.premiere, "fault", "true", do.remove("flow", undo=True))
    trouble[show, "tickets"] = [Refused("no")]
    with app.dispatcher(only=["work"]):
        beside = app.submit(theatre.premiere, f"{show}-2")
        run = app.submit(theatre.premiere, show)
        for one in (run, beside):
            stops(one, Status.WAITING)
        run.signal("word")
        die(setup, where)
        with app.dispatcher(only=DECIDES):
            for one in (run, beside):
                theatre.undone(one)
    for one in (run, beside):
        assert orders(app, one).count(InboxVerb.CANCEL) == 1
    assert ledger[show] == ["hall 1", "tickets 1!", "unhall 1 for 10"]
    assert ledger[f"{show}-2"] == ["hall 1", "unhall 1 for 10"]
