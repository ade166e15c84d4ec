"""A run whose row somebody has spoilt is parked with its reason; those that are read with it go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert, select, text, update

import aft
from aft.app.views.exlet_reports import plans_of
from aft.cli.root import root
from aft.store.db_time import later, now
from aft.store.tables import delays, exlets, faults, plans, runs, workers
from tests.setups import Setup, eventually


@aft.activity(name="unreadable_pay")
def pay(order: str) -> str:
    return order


@aft.flow(name="unreadable_order")
def ordering(order: str) -> str:
    return pay(order)


@aft.activity(name="unreadable_busy", levels=["1h"])
def be_busy(order: str) -> str:
    raise aft.Recoverable("no")


@aft.flow(name="unreadable_refusal")
def refused(order: str) -> str:
    return be_busy(order)


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def nested(depth: int) -> str:
    return '{"t":' + "[" * depth + "]" * depth + "}"


SPOILT = {
    "tags": ["{", "[1]", nested(100), nested(988), nested(100_000)],
    "waits": ["{", "[{}]", "5"],
    "resources": ["{", "5"],
    "savepoints": ["{", "[]"],
}


def spoil(app: aft.Aft, run: aft.Run[str], **values: Any) -> None:
    with app.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run.id).values(**values))


@pytest.mark.parametrize("depth", [65, 200, 900, 5_000])
def test_tags_that_are_nested_too_deep_are_refused(setup: Setup, order: str, depth: int) -> None:
    app = setup.app()
    with pytest.raises(aft.DefinitionError, match="tags"):
        app.submit(ordering.options(tags={"t": nest(depth)}), order)
    assert list(app.runs()) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [(column, value) for column, values in SPOILT.items() for value in values],
    ids=lambda value: str(value)[:12],
)
def test_a_spoilt_row_stops_only_its_own_run(setup: Setup, order: str, column: str, value: str) -> None:
    app = setup.app()
    made = [app.submit(ordering, f"{order}-{number}") for number in range(5)]
    bad, good = made[2], [run for run in made if run is not made[2]]
    spoil(app, bad, **{column: value})
    with app.dispatcher():
        assert [run.result(60) for run in good] == [f"{order}-{number}" for number in (0, 1, 3, 4)]
        eventually(lambda: bad.status == "parked" and bad.row.reason is not None)
        assert "cannot be read: " + column in (bad.row.reason or "")
        shown = CliRunner().invoke(root, ["runs", "list"], env=setup.environ())
        assert (shown.exit_code, shown.stdout.count("unreadable_order")) == (0, 5), shown.output
        assert CliRunner().invoke(root, ["runs", "show", bad.id], env=setup.environ()).exit_code == 0
        with app.store.read() as connection:
            kept = connection.execute(text(f"SELECT {column} FROM aft_runs WHERE id = :id"), {"id": bad.id}).scalar()
        assert kept == value, "it is left as it was, for a person to correct"
        spoil(app, bad, **{column: None})
        bad.retry()
        assert bad.result(60) == f"{order}-2"


TIMES = {
    "sqlite": ["'soon'", "1e300", "-1e300"],
    "postgresql+rabbitmq": ["'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'"],
}


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("column", ["deadline_at", "created_at", "updated_at"])
def test_a_time_that_is_none_stops_only_its_own_run(setup: Setup, order: str, column: str, which: int) -> None:
    app = setup.app()
    made = [app.submit(ordering, f"{order}-{number}") for number in range(5)]
    bad, good = made[2], [run for run in made if run is not made[2]]
    value = TIMES[setup.name][which % len(TIMES[setup.name])]
    with app.store.write() as connection:
        connection.execute(text(f"UPDATE aft_runs SET {column} = {value} WHERE id = :id"), {"id": bad.id})
    with app.dispatcher():
        assert [run.result(60) for run in good] == [f"{order}-{number}" for number in (0, 1, 3, 4)]
        # A time that is far away is one: a deadline of long ago has passed.
        eventually(lambda: bad.status in ("parked", "completed", "compensated"))
        shown = CliRunner().invoke(root, ["runs", "list"], env=setup.environ())
        assert (shown.exit_code, shown.stdout.count("unreadable_order@1")) == (0, 5), shown.output
        assert CliRunner().invoke(root, ["runs", "show", bad.id], env=setup.environ()).exit_code == 0


def test_a_status_that_is_none_stops_only_its_own_run(setup: Setup, order: str) -> None:
    app = setup.app()
    made = [app.submit(ordering, f"{order}-{number}") for number in range(3)]
    spoil(app, made[1], status="nonsense")
    with app.dispatcher():
        assert [run.result(60) for run in (made[0], made[2])] == [f"{order}-{number}" for number in (0, 2)]
        shown = CliRunner().invoke(root, ["runs", "list"], env=setup.environ())
        assert (shown.exit_code, shown.stdout.count("unreadable_order")) == (0, 3), shown.output
        assert CliRunner().invoke(root, ["runs", "show", made[1].id], env=setup.environ()).exit_code == 0


@aft.activity(name="unreadable_look", transactional=True, levels=[], unrecoverable=(Exception,))
def look(what: str) -> str:
    return str(aft.session().execute(text(f"SELECT CAST('{what}' AS timestamptz)")).scalar())


@aft.flow(name="unreadable_looking")
def looking(what: str) -> str:
    try:
        return look(what)
    except Exception as error:
        return type(error).__name__


def test_an_activity_reads_times_as_its_driver_does(production: Setup) -> None:
    app = production.app()
    with app.dispatcher():
        assert app.submit(looking, "infinity").result(60) == "DataError"
        assert app.submit(looking, "2026-11-17 12:00+00").result(60).startswith("2026-11-17")


@aft.flow(name="unreadable_waiting")
def waiting(order: str) -> str:
    return str(aft.wait_for("word", str))


def test_a_run_whose_waits_are_spoilt_is_parked_when_something_comes_for_it(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(waiting, order)
        eventually(lambda: run.status == "waiting" and run.row.worker_id is None)
        spoil(app, run, waits="{")
        run.signal("word", "now")
        eventually(lambda: run.status == "parked" and "waits" in (run.row.reason or ""))
        spoil(app, run, waits=None)
        run.retry()
        assert run.result(60) == "now"


def test_what_is_no_tag_any_more_is_shown_as_json(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.submit(ordering, order)
    spoil(app, run, tags=nested(988))
    shown = CliRunner().invoke(root, ["runs", "list", "--json"], env=setup.environ())
    assert shown.exit_code == 0
    assert [one["id"] for one in json.loads(shown.stdout)] == [run.id]


@aft.activity(name="unreadable_refuse", levels=[])
def refuse(order: str) -> str:
    raise aft.Unrecoverable("no")


@aft.flow(name="unreadable_handling")
def handling(order: str) -> str:
    try:
        return refuse(order)
    except aft.Unrecoverable:
        return str(aft.wait_for("word", str))


def test_a_run_whose_failure_somebody_has_deleted_is_parked_and_told_so(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(handling, order)
        eventually(lambda: run.status == "waiting" and run.row.worker_id is None)
        with app.store.write() as connection:
            connection.execute(text("DELETE FROM aft_faults WHERE run_id = :id"), {"id": run.id})
        run.signal("word", "now")
        eventually(lambda: run.status == "parked")
    assert "deleted from the database" in (run.row.reason or "")


@pytest.mark.parametrize("column", ["declared_answer", "lineage", "state", "kind"])
def test_a_fault_whose_row_is_spoilt_is_listed_with_the_others(setup: Setup, order: str, column: str) -> None:
    app = setup.app()
    with app.dispatcher():
        ids = [app.submit(refused, f"{order}{number}").id for number in range(2)]
        eventually(lambda: {fault.run_id for fault in app.faults()} == set(ids))
    with app.store.write() as connection:
        connection.execute(update(faults).where(faults.c.run_id == ids[0]).values({column: "x"}))
    told = {fault.run_id: fault.message or "" for fault in app.faults()}
    assert "cannot be read" in told[ids[0]]
    assert "no" in told[ids[1]]
    with app.store.write() as connection:
        fault = select(faults.c.id).where(faults.c.run_id == runs.c.id).scalar_subquery()
        connection.execute(update(runs).where(runs.c.id.in_(ids)).values(fault_id=fault))
    shown = call(setup, "runs", "list").stdout
    assert "cannot be read" in shown, shown
    assert "unreadable_busy: Recoverable: no" in shown, shown
    assert "its row in the database" in call(setup, "runs", "show", ids[0]).stdout
    assert "cannot be read" in call(setup, "faults", "show", ids[0]).stdout
    preview = call(setup, "rules", "preview", ids[1], "--if", "activity.attempts > 0", "--then", "park")
    assert preview.exit_code == 0, preview.output


VERSIONS = json.dumps([f"{ordering.name}@{version}" for version in ("", "y", "99999999999", "²", "-1")])


@pytest.mark.parametrize("spoilt", ["{", "5", '{"work": 1}', "[" * 5000, VERSIONS])
def test_a_worker_whose_row_is_spoilt_breaks_no_schedule_and_no_list(setup: Setup, order: str, spoilt: str) -> None:
    app = setup.app()
    row = {"id": f"spoilt-{order}", "namespace": app.namespace, "host": "h", "pid": 1}
    times = {"started_at": now(), "expires_at": later(600)}
    with app.store.write() as connection:
        told = {"roles": spoilt, "flows": spoilt, "sources": spoilt, "abandoned": spoilt}
        connection.execute(insert(workers).values(**row, **times, **told))
        serves = {**row, "id": f"flows-{order}", "roles": '["work"]', "flows": spoilt}
        connection.execute(insert(workers).values(**serves, **times))
    with app.dispatcher():
        schedule = app.schedule(f"spoilt-{order}", ordering.call(order), every="1s")
        eventually(lambda: schedule.last_run is not None)
        assert schedule.row.broken is None
    for command in (["workers", "list"], ["flows", "list"], ["doctor"]):
        result = CliRunner().invoke(root, command, env=setup.environ())
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception


@pytest.mark.parametrize("wait", [2**63 - 1, -1, 0])
def test_a_delay_that_no_queue_can_have_keeps_no_dispatcher_from_starting(setup: Setup, order: str, wait: int) -> None:
    app = setup.app()
    with app.store.write() as connection:
        connection.execute(insert(delays).values(namespace=app.namespace, wait_ms=wait, declared_at=now()))
    with app.dispatcher():
        assert app.start(ordering, order).result(30) == order


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_a_fault_that_waits_for_ever_is_listed_with_the_others(setup: Setup, order: str, seconds: float) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(refused, order)
        eventually(lambda: any(fault.due_at for fault in app.faults()))
    with app.store.write() as connection:
        connection.execute(update(faults).where(faults.c.run_id == run.id).values(after_seconds=seconds))
    assert [fault.run_id for fault in app.faults()] == [run.id]


@pytest.mark.parametrize("seconds", [1e308, None])
def test_a_run_that_is_expected_to_take_for_ever_keeps_no_other_from_being_told_of(
    setup: Setup, order: str, seconds: float | None
) -> None:
    app = setup.app()
    with app.dispatcher():
        spoilt, late = app.submit(refused, order), app.submit(refused, order)
        with app.store.write() as connection:
            for run, expected in ((spoilt, seconds), (late, 1.0)):
                changed = update(runs).where(runs.c.id == run.id)
                connection.execute(changed.values(expected_seconds=expected, overdue_at=later(-1)))
        ours = select(runs.c.overdue_at).where(runs.c.id.in_([spoilt.id, late.id]), runs.c.overdue_at.is_not(None))

        def told() -> bool:
            with app.store.read() as connection:
                return not connection.execute(ours).all()

        eventually(told)


def call(setup: Setup, *words: str) -> Result:
    result = CliRunner().invoke(root, [*words], env=setup.environ())
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


@pytest.mark.parametrize("deep", ["exlet", "facts"])
def test_a_plan_that_cannot_be_read_ends_no_list(setup: Setup, order: str, deep: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(refused, order)
        eventually(lambda: any(fault.due_at for fault in app.faults()))
    (fault,) = app.faults()
    with app.store.write() as connection:
        given = {"exlet": "{}", "facts": "{}", deep: "[" * 200_000}
        plan = {"id": f"plan-{order}", "namespace": app.namespace, "run_id": run.id, "fault_id": fault.id}
        connection.execute(insert(plans).values(**plan, **given, state="open", due_at=later(600), made_at=now()))
    for command in (["runs", "list"], ["runs", "show", run.id], ["faults", "list"]):
        shown = call(setup, *command)
        assert shown.exit_code == 0, shown.output
    with app.store.read() as connection:
        assert "cannot be read" in str(plans_of(connection, run.id)[fault.id].note)


@pytest.mark.parametrize("args", ["[" * 200_000, nested(200_000), "[" * 200_000 + "]" * 200_000])
def test_arguments_that_cannot_be_read_are_shown_as_they_are(setup: Setup, order: str, args: str) -> None:
    app = setup.app()
    run = app.submit(ordering, order)
    spoil(app, run, args=args)
    for command in (["runs", "list"], ["runs", "show", run.id], ["runs", "show", run.id, "--json"], ["doctor"]):
        call(setup, *command)


@pytest.mark.parametrize("text_of_it", ["{", "[" * 200_000, '{"name": "x", "steps": [' + "[" * 90_000])
def test_an_exlet_that_cannot_be_read_hides_no_other(setup: Setup, order: str, text_of_it: str) -> None:
    app = setup.app()
    app.rules.save_all([], [aft.Exlet(f"{name}_{order}", [aft.do.unwind()]) for name in ("good", "bad")])
    with app.store.write() as connection:
        connection.execute(update(exlets).where(exlets.c.name == f"bad_{order}").values(exlet=text_of_it))
    for command in (["exlets", "list"], ["exlets", "list", "--json"]):
        shown = call(setup, *command)
        assert (shown.exit_code, f"good_{order}" in shown.stdout) == (0, True), shown.output
        assert f"bad_{order}" in shown.stderr
    shown = call(setup, "rules", "tree")
    assert (shown.exit_code, "cannot be read" in shown.stderr) == (0, True)


def test_a_run_that_is_expected_to_take_no_number_of_seconds_hides_no_other_from_doctor(production: Setup) -> None:
    app = production.app()
    run = app.submit(ordering, "x")
    spoil(app, run, expected_seconds=float("nan"), overdue_at=later(-1))
    assert "out of range" not in call(production, "doctor").output
    assert call(production, "runs", "list", "--overdue").exit_code == 0
