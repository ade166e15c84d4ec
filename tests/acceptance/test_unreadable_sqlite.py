"""SQLite keeps whatever somebody writes to a column: a value of the wrong type spoils nothing but its own row."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import aft
from aft.cli.root import root
from aft.runs.records import audit, audit_chain
from aft.store.tables import metadata
from tests.setups import eventually


@aft.activity(name="unreadable_sqlite_pay", levels=["1h"])
def pay(order: str) -> str:
    if order == "bad":
        raise aft.Recoverable("no")
    return order


@aft.flow(name="unreadable_sqlite_order")
def ordering(order: str) -> str:
    return pay(order)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two runs, a fault, a schedule, a record and an exlet."""
    path = tmp_path_factory.mktemp("world") / "aft.db"
    app = aft.Aft(f"sqlite:///{path}")
    with app.dispatcher():
        good, bad = app.submit(ordering, "good"), app.submit(ordering, "bad")
        good.result(60)
        eventually(lambda: any(fault.due_at for fault in app.faults()))
        bad.suspend("look at it")
        eventually(lambda: bad.status == "suspended")
    app.schedule("nightly", ordering.call("good"), every="1h")
    app.rules.save_all([], [aft.Exlet("give_up", [aft.do.unwind()])])
    app.rules.add(app.rules.propose(app.faults()[0].id, "run.args.order == 'bad'", "give_up"), accept=True)
    with app.store.write() as connection:
        assert audit_chain.extend(connection, 10)
    app.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        named = "SELECT 'feed', 'aft', 'aft.resume', 'why', 1, 'x', at, 'held' FROM aft_audit LIMIT 1"
        connection.execute(f"INSERT INTO aft_quarantine (id, namespace, queue, reason, size, body, at, state) {named}")
        died = "UPDATE aft_workers SET stopped_at = NULL, expires_at = 1e12"
        connection.execute(died)
    return path


def spoil(world: Path, folder: Path, table: str, column: str, value: str) -> Path:
    """Copy the world, and spoil a column of all rows of a table in it."""
    path = Path(shutil.copy(world, folder / "aft.db"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        changed = connection.execute(
            f"UPDATE {table} SET {column} = {value} WHERE rowid = (SELECT max(rowid) FROM {table})"
        )
        assert changed.rowcount == 1
    return path


def call(database: Path, *words: str) -> Result:
    result = CliRunner().invoke(root, ["--database", f"sqlite:///{database}", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


LISTS = {
    "aft_runs": (
        "flow",
        ["runs", "list"],
        ["status", "owner", "flow", "reason", "args", "tags", "created_at", "deadline_at"],
    ),
    "aft_faults": ("name", ["faults", "list"], ["message", "name", "raised_at", "fate", "run_status"]),
    "aft_workers": ("host", ["workers", "list"], ["host", "liveness_lock", "roles", "started_at"]),
    "aft_schedules": (
        "name",
        ["schedules", "list"],
        ["args", "flow", "cron", "zone", "next_at", "skipped_why", "since"],
    ),
    "aft_quarantine": ("reason", ["faults", "list", "--quarantined"], ["queue", "reason", "at", "body"]),
    "aft_audit": ("note", ["db", "audit"], ["note", "actor", "at", "os_user", "run_id"]),
    "aft_exlets": ("name", ["exlets", "list"], ["exlet", "note", "made_at"]),
}
VALUES = {"no UTF-8": "CAST(x'ff41' AS TEXT)", "a blob": "x'ff41'", "a text": "'soon'"}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize("table", LISTS)
def test_a_value_of_the_wrong_type_ends_no_list(world: Path, tmp_path: Path, table: str, value: str) -> None:
    _, command, columns = LISTS[table]
    known = {column.name for column in metadata.tables[table].columns}
    for column in [column for column in columns if column in known]:
        database = spoil(world, tmp_path, table, column, value)
        assert call(database, *command).exit_code == 0, (column, call(database, *command).output)
        if table != "aft_exlets":
            assert "database's own log" not in call(database, "doctor").output, column


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize("column", ["at", "note"])
def test_a_record_that_cannot_be_read_is_told_as_a_problem(
    world: Path, tmp_path: Path, column: str, value: str
) -> None:
    database = spoil(world, tmp_path, "aft_audit", column, value)
    verified = call(database, "db", "audit", "--verify")
    assert verified.exit_code == 1
    assert "was changed" in verified.output


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_a_number_of_changes_that_is_none_stops_no_run_and_hides_no_rule(
    world: Path, tmp_path: Path, value: str
) -> None:
    app = aft.Aft(f"sqlite:///{spoil(world, tmp_path, 'aft_rule_books', 'version', value)}")
    with app, app.dispatcher():
        assert app.submit(ordering, "another").result(30) == "another"
        app.rules.save_all([], [aft.Exlet("keep", [aft.do.park(reason="look")])])
        assert app.rules.exlet("keep").name == "keep"


@pytest.mark.parametrize("value", [*VALUES.values(), "1.5"], ids=[*VALUES, "a fraction"])
def test_a_position_that_is_none_stops_no_numbering_and_is_told_as_a_problem(
    world: Path, tmp_path: Path, value: str
) -> None:
    database = spoil(world, tmp_path, "aft_audit", "seq", value)
    app = aft.Aft(f"sqlite:///{database}")
    with app, app.store.write() as connection:
        audit.write_about(connection, "ann", "schedule pause", "nightly")
        assert audit_chain.extend(connection, 10) == 1
        assert not audit_chain.any_loose(connection)
    verified = call(database, "db", "audit", "--verify")
    assert verified.exit_code == 1
    assert "1 records were taken out of the chain" in verified.output


NUMBERS = [
    ("aft_runs", "version", ["runs", "list"]),
    ("aft_runs", "priority", ["runs", "list"]),
    ("aft_faults", "try_in_level", ["faults", "list"]),
    ("aft_schedules", "version", ["schedules", "list"]),
    ("aft_schedules", "every_seconds", ["schedules", "list"]),
    ("aft_rule_trees", "revision", ["rules", "history"]),
]


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize(
    ("table", "column", "command"), NUMBERS, ids=[f"{table}.{column}" for table, column, _ in NUMBERS]
)
def test_a_number_that_is_none_ends_no_list(
    world: Path, tmp_path: Path, table: str, column: str, command: list[str], value: str
) -> None:
    database = spoil(world, tmp_path, table, column, value)
    assert call(database, *command).exit_code == 0
    assert json.loads(call(database, *command, "--json").stdout)


@pytest.mark.parametrize(("column", "value"), [("body", "'text'"), ("state", "'x'"), ("state", "x'ff'")])
def test_a_refused_message_that_cannot_be_read_ends_no_list(
    world: Path, tmp_path: Path, column: str, value: str
) -> None:
    database = spoil(world, tmp_path, "aft_quarantine", column, value)
    for command in (["faults", "list", "--quarantined", "--all"], ["faults", "show", "feed"]):
        for more in ([], ["--json"]):
            shown = call(database, *command, *more)
            assert "why" in shown.output or "cannot be read" in shown.output
