"""A row that the database refuses stops nothing but itself: the others of its batch are written, it is parked or told.

A trigger stands for whatever a database may refuse: a text, a constraint that an administrator added, a number.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

import aft
from aft import do
from aft.ids import RunId, StepPath, new_id
from aft.runs.records import late_effects
from aft.runs.records.late_effects import LateEffect
from aft.runs.states import Status
from aft.store import Store
from aft.store.db_time import later
from aft.telemetry import Event, ServiceFailed
from tests.acceptance import theatre
from tests.acceptance.theatre import listen, stops, teach, undone
from tests.setups import Setup, eventually
from tests.storing import Stage
from tests.world import Refused, ledger, trouble

POISON = "poison"


@contextmanager
def refusing(store: Store, table: str, what: str, condition: str) -> Iterator[None]:
    """Let the database refuse to ``INSERT`` or ``UPDATE`` rows of a table, where a condition about NEW holds."""
    name = f"refuse_{secrets.token_hex(4)}"
    if store.dialect == "sqlite":
        begin = [
            f"CREATE TRIGGER {name} BEFORE {what} ON {table} WHEN {condition} "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        ]
        end = [f"DROP TRIGGER {name}"]
    else:
        begin = [
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'not this one'; END$$",
            f"CREATE TRIGGER {name} BEFORE {what} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()",
        ]
        end = [f"DROP TRIGGER {name} ON {table}", f"DROP FUNCTION {name}()"]
    _execute(store, begin)
    try:
        yield
    finally:
        _execute(store, end)


def refusals(heard: list[Event]) -> list[Event]:
    """Return the services that failed of a refusal; a slow dial to the broker may be told beside, on a busy machine."""
    return [event for event in heard if isinstance(event, ServiceFailed) and "not this one" in event.why]


def _execute(store: Store, statements: list[str]) -> None:
    with store.write() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.parametrize(
    "poisoned",
    [(do.park(POISON),), (do.fail(POISON),), (do.notify("http://localhost:9/", POISON), do.park("look"))],
    ids=["plain", "ruling", "plan"],
)
def test_a_decision_that_the_database_refuses_parks_its_run_and_the_others_are_decided(
    setup: Setup, show: str, poisoned: tuple[aft.Primitive, ...]
) -> None:
    app = setup.app()
    heard = listen(app)
    teach(app, theatre.evening, "fault", f"run.args.show == '{show}-bad'", *poisoned)
    shows = [f"{show}-{name}" for name in ("1", "bad", "2", "3")]
    for one in shows:
        trouble[one, "tickets"] = [Refused("no")]
    ours = f"NEW.namespace = '{app.namespace}'"
    tainted = f"{ours} AND (NEW.why LIKE '%{POISON}%' OR NEW.ruling LIKE '%{POISON}%')"
    tainted_plan = f"{ours} AND NEW.exlet LIKE '%{POISON}%'"
    with (
        refusing(app.store, "aft_faults", "UPDATE", tainted),
        refusing(app.store, "aft_plans", "INSERT", tainted_plan),
    ):
        runs = [app.submit(theatre.evening, one) for one in shows]
        with app.dispatcher():
            for run in (runs[0], *runs[2:]):
                undone(run)
            stops(runs[1], Status.PARKED)
            reason = runs[1].row.reason or ""
            assert reason.startswith("its decision cannot be written")
            assert "not this one" in reason
            assert not refusals(heard)
            runs[1].retry()
            assert runs[1].result(60) == [10, 10, 10]


def test_a_decision_that_cannot_even_be_parked_stays_open_and_stops_nobody_else(setup: Setup, show: str) -> None:
    app = setup.app(grace=0.3)
    times: list[float] = []
    app.telemetry.subscribe(lambda event: times.extend([time.monotonic()] * len(refusals([event]))))
    shows = [f"{show}-{name}" for name in ("bad", "1", "2")]
    for one in shows:
        trouble[one, "hall"] = [Refused("no")]
    runs = [app.submit(theatre.evening, one) for one in shows]
    with refusing(app.store, "aft_faults", "UPDATE", f"NEW.run_id = '{runs[0].id}'"), app.dispatcher():
        for run in runs[1:]:
            undone(run)
        eventually(lambda: len(times) >= 5)
    # By its message, of which a busy machine may have a second one; the sweeper waits one second before it tries again,
    # then two.
    assert times[4] - times[0] >= 2.9
    with app.dispatcher():
        undone(runs[0])


def test_a_late_effect_that_the_database_refuses_parks_its_run_and_the_others_are_undone(
    setup: Setup, show: str
) -> None:
    app = setup.app()
    runs = []
    for number in range(3):
        trouble[f"{show}-{number}", "hall"] = [Refused("no")]
        with app.dispatcher():
            runs.append(app.submit(theatre.evening, f"{show}-{number}"))
            undone(runs[-1])
    with app.store.write() as connection:
        for number, run in enumerate(runs):
            args = f'{{"show":"{show}-{number}","what":"hall","seats":1}}'
            late_effects.write(connection, new_id(), effect_of(app, run.id, args))
    condition = f"NEW.run_id = '{runs[1].id}'"
    with refusing(app.store, "aft_frames", "INSERT", condition), app.dispatcher():
        stops(runs[1], Status.PARKED)
        eventually(lambda: all("unhall 1 for 10" in ledger[f"{show}-{number}"] for number in (0, 2)))
    assert "cannot be undone" in (runs[1].row.reason or "")
    assert not ledger[f"{show}-1"].count("unhall 1 for 10")


def effect_of(app: aft.Aft, run_id: RunId, args: str) -> LateEffect:
    return LateEffect(
        run_id=run_id,
        namespace=app.namespace,
        path=StepPath("1"),
        scope="",
        activity="theatre_sell",
        key=f"{run_id}/0/1",
        key_generation=0,
        compensator="give_back",
        epoch=1,
        args=args,
        value="10",
    )


def test_a_run_that_cannot_be_rescued_keeps_no_other_from_it(setup: Setup, show: str) -> None:
    app = setup.app()
    stage = Stage(app.store, app.namespace)
    runs = [app.submit(theatre.evening, f"{show}-{number}") for number in range(3)]
    for run in runs:
        stage.change(run.id, worker_id=f"dead-{show}", epoch=1, wake_id=None, due_at=None, sweep_at=None)
    condition = f"NEW.run_id = '{runs[1].id}'"
    with refusing(app.store, "aft_faults", "INSERT", condition), app.dispatcher():
        for run in (runs[0], runs[2]):
            assert run.result(60) == [10, 10, 10]
    assert runs[1].row.worker_id == f"dead-{show}"
    with app.dispatcher():
        assert runs[1].result(60) == [10, 10, 10]


def test_a_run_that_cannot_be_claimed_keeps_no_other_from_it(setup: Setup, show: str) -> None:
    app = setup.app(grace=0.3)
    runs = [app.submit(theatre.evening, f"{show}-{number}") for number in range(4)]
    condition = f"NEW.id = '{runs[0].id}' AND NEW.worker_id IS NOT NULL"
    with refusing(app.store, "aft_runs", "UPDATE", condition), app.dispatcher(concurrency=1):
        for run in runs[1:]:
            assert run.result(60) == [10, 10, 10]
        # Neither by message nor by the timer, which finds it first each time.
        more = app.submit(theatre.evening.options(after="400ms"), f"{show}-more")
        assert more.result(60) == [10, 10, 10]
    with app.dispatcher():
        assert runs[0].result(60) == [10, 10, 10]


def test_a_run_whose_row_cannot_be_read_keeps_no_other_from_being_executed(setup: Setup, show: str) -> None:
    app = setup.app(grace=0.3)
    runs = [app.submit(theatre.evening, f"{show}-{number}") for number in range(3)]
    Stage(app.store, app.namespace).change(runs[0].id, waits="no JSON", sweep_at=later(-5))
    with app.dispatcher(concurrency=1):
        for run in runs[1:]:
            assert run.result(60) == [10, 10, 10]


def test_a_schedule_whose_run_the_database_refuses_is_told_and_stops_no_other(setup: Setup, show: str) -> None:
    app = setup.app()
    for name in ("bad", "good"):
        app.schedule(f"{show}-{name}", theatre.evening.call(f"{show}-{name}"), every="1s")
    condition = f"NEW.namespace = '{app.namespace}' AND NEW.key LIKE '%{show}-bad%'"
    with refusing(app.store, "aft_runs", "INSERT", condition), app.dispatcher():
        eventually(lambda: "bar 1" in ledger[f"{show}-good"])
        broken = eventually(lambda: aft.Schedule(app, f"{show}-bad").row.broken)
    assert "not this one" in broken
