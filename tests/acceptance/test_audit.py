"""Who did what by hand is recorded by those who know; no record can be changed or go without being noticed."""

from __future__ import annotations

import json
import os
import pwd
import secrets
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import delete, insert, update

import aft
from aft.app.actors import current_user
from aft.cli.root import root
from aft.config import Settings
from aft.ids import RunId, new_id
from aft.runs.records import audit, audit_chain, quarantine
from aft.runs.states import Status
from aft.store import Store
from aft.store.db_time import later, now
from aft.store.tables import audit as table
from aft.store.tables import runs
from tests.acceptance.commands import REPOSITORY
from tests.servers import PrivatePostgres
from tests.setups import Setup, eventually, migrate

ROLES = REPOSITORY / "deploy" / "postgresql" / "roles.sql"


def refund(order: str) -> None:
    """Give it back."""


@aft.compensate_with(refund)
@aft.activity(name="audited_pay", levels=["50ms*2"])
def pay(order: str) -> str:
    if aft.current().attempt == 1:
        raise aft.Recoverable("once")
    return order


@aft.flow(name="audited_part")
def part(order: str) -> str:
    return pay(order)


@aft.flow(name="audited_order")
def ordering(order: str) -> str:
    with aft.savepoint("all"):
        pay(order)
        aft.map(part, [f"{order}-1", f"{order}-2"])
    return str(aft.wait_for("go", timeout="10m"))


def cli(setup: Setup, *words: str) -> Result:
    return CliRunner().invoke(root, ["db", "audit", *words], env=setup.environ())


@pytest.fixture
def setup(setup: Setup) -> Setup:
    """A database of the test's own would be dear: the records of others are taken out of the shared one before."""
    if setup.name != "sqlite":
        with setup.app().store.write() as connection:
            connection.execute(delete(table))
    return setup


def do_much(setup: Setup) -> aft.Aft:
    """Let people do five things, and have them chained."""
    app = setup.app()
    with app.dispatcher():
        run = app.submit(ordering, secrets.token_hex(4))
        eventually(lambda: run.status is Status.WAITING)
        for number in range(2):
            run.suspend("wait", by=f"ann {number}")
            eventually(lambda: run.status is Status.SUSPENDED)
            run.resume(by="ben")
            eventually(lambda: run.status is Status.WAITING)
        run.signal("go", "on", by="ann")
        assert run.result(60) == "on"
        eventually(lambda: not is_loose(app))
    return app


def is_loose(app: aft.Aft) -> bool:
    with app.store.read() as connection:
        return audit_chain.any_loose(connection)


def test_a_record_names_the_users_whatever_the_environment_says(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody else")
    app = do_much(setup)
    with app.store.read() as connection:
        first, *_ = reversed(audit.newest(connection, 10))
    assert (first.actor, first.action, first.note) == ("ann 0", "suspend", "wait")
    assert first.os_user == pwd.getpwuid(os.getuid()).pw_name
    assert (first.db_user is None) is (setup.name == "sqlite")


def test_an_unbroken_chain_is_told_with_its_end(setup: Setup) -> None:
    do_much(setup)
    told = cli(setup, "--verify")
    assert told.exit_code == 0, told.output
    assert "5 records, none is gone or changed" in told.output
    known = told.output.rpartition("The last one is ")[2].strip()
    assert known.startswith("5:")
    assert cli(setup, "--verify", "--known", known).exit_code == 0
    shown = json.loads(cli(setup, "--verify", "--json").output)
    assert shown == {"ok": True, "records": 5, "not_chained_yet": 0, "last": known, "problems": []}
    listed = json.loads(cli(setup, "--json").output)
    assert [(one["record"], one["by"], one["action"]) for one in listed] == [
        (5, "ann", "signal"),
        (4, "ben", "resume"),
        (3, "ann 1", "suspend"),
        (2, "ben", "resume"),
        (1, "ann 0", "suspend"),
    ]


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_record_that_is_gone_shows(setup: Setup, gone: int) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        connection.execute(delete(table).where(table.c.seq == gone))
    told = cli(setup, "--verify")
    assert told.exit_code == 1
    assert f"record {gone} is gone" in told.output


def test_a_gap_that_was_closed_shows(setup: Setup) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        connection.execute(delete(table).where(table.c.seq == 2))
        connection.execute(update(table).where(table.c.seq == 3).values(seq=2))
        connection.execute(update(table).where(table.c.seq == 4).values(seq=3))
    told = cli(setup, "--verify")
    assert told.exit_code == 1
    assert "record 2 was changed" in told.output


@pytest.mark.parametrize("column", ["actor", "note", "os_user", "db_user", "action", "run_id"])
def test_a_record_that_was_changed_shows(setup: Setup, column: str) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        connection.execute(update(table).where(table.c.seq == 3).values({column: "other"}))
    told = cli(setup, "--verify")
    assert told.exit_code == 1
    assert "record 3 was changed" in told.output


@pytest.mark.parametrize("order", [[5, 4, 3, 2, 1], [1, 2, 3, 5, 4], [2, 3, 4, 5, 1]], ids=str)
def test_records_that_were_chained_anew_in_another_order_show(setup: Setup, order: list[int]) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        entries = {entry.seq: entry for entry in audit.newest(connection, 9)}
        connection.execute(update(table).values(seq=None, hash=None))
        before = audit_chain.NONE
        for place, former in enumerate(order, start=1):
            entry = entries[former]
            before = audit_chain.hash_of(entry, before)
            connection.execute(update(table).where(table.c.id == entry.id).values(seq=place, hash=before))
    told = cli(setup, "--verify")
    assert told.exit_code == 1, told.output
    moved = next(place for place in range(2, 6) if order[place - 1] < order[place - 2])
    assert f"record {moved} was added before record {moved - 1}" in " ".join(told.output.split())


@pytest.mark.parametrize("is_undone", [False, True], ids=["committed", "rolled back"])
def test_a_record_whose_transaction_takes_long_is_chained_in_its_place(production: Setup, is_undone: bool) -> None:
    store = production.app().store
    with store.write() as connection:
        connection.execute(delete(table))
    with closing(store.engine.connect()) as slow, slow.begin() as transaction:
        audit.write_about(slow, "ann", "schedule pause", "first")
        with store.write() as connection:
            audit.write_about(connection, "ben", "schedule pause", "second")
        with store.write() as connection:
            assert audit_chain.extend(connection, 9) == 0
        if is_undone:
            transaction.rollback()
    eventually(lambda: chain(store) == 0)
    with store.read() as connection:
        actors = [entry.actor for entry in reversed(audit.newest(connection, 9)) if entry.seq]
        assert actors == (["ben"] if is_undone else ["ann", "ben"])
        assert not audit_chain.verify(connection).problems


def chain(store: Store) -> int:
    """Chain all records that can be chained; returns how many are left."""
    with store.write() as connection:
        audit_chain.extend(connection, 9)
    with store.read() as connection:
        return audit_chain.verify(connection).loose


def test_a_record_that_was_taken_out_of_the_chain_shows(setup: Setup) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        connection.execute(update(table).where(table.c.seq == 4).values(seq=-4))
    told = cli(setup, "--verify")
    assert told.exit_code == 1
    assert "1 records were taken out of the chain" in told.output


def test_an_end_that_was_cut_off_shows_to_whoever_knows_it(setup: Setup) -> None:
    app = do_much(setup)
    known = json.loads(cli(setup, "--verify", "--json").output)["last"]
    with app.store.write() as connection:
        connection.execute(delete(table).where(table.c.seq > 2))
    assert cli(setup, "--verify").exit_code == 0
    told = cli(setup, "--verify", "--known", known)
    assert told.exit_code == 1
    assert "record 5 is gone" in told.output
    assert cli(setup, "--verify", "--known", "4").exit_code == 2


def test_a_record_outlives_its_run(setup: Setup) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        connection.execute(delete(runs).where(runs.c.namespace == setup.namespace))
    assert "5 records, none is gone" in cli(setup, "--verify").output


@pytest.mark.parametrize("places", [[2**63 - 1], [2**53], [2**53, 2**53 - 1], [2**53 + 1, 2**53], [9]], ids=str)
def test_a_position_far_beyond_the_others_stops_no_numbering(setup: Setup, places: list[int]) -> None:
    app = do_much(setup)
    with app.store.write() as connection:
        for before, place in enumerate(places, start=4):
            connection.execute(update(table).where(table.c.seq == before).values(seq=place))
    for _ in range(3):
        with app.store.write() as connection:
            for _ in range(5):
                audit.write_about(connection, "ann", "schedule pause", "nightly")
        while is_loose(app):
            with app.store.write() as connection:
                audit_chain.extend(connection, 3)
    told = cli(setup, "--verify")
    assert (told.exit_code, " gone" in told.output or "was changed" in told.output) == (1, True), told.output


def test_what_people_do_to_anything_else_is_recorded_without_values(setup: Setup) -> None:
    app, value = setup.app(), secrets.token_hex(8)
    schedule = app.schedule("nightly", ordering.call(value), every="1d")
    app.schedule("nightly", ordering.call(value), every="1d")
    schedule.pause(by="ann")
    schedule.resume(by="ben")
    app.schedule("nightly", ordering.call(value), every="2d")
    schedule.remove(by="ann")
    app.rules.add_exlet(aft.Exlet("give_up", [aft.do.unwind()], about=value), by="ben")
    tree = app.rules.tree("audited_order", "fault")
    app.rules.save_all([tree], [], by="ann", note=value)
    with app.store.write() as connection:
        quarantine.add(connection, app.namespace, [(f"{app.namespace}.q", value.encode(), value)] * 2)
        for refusal in quarantine.listing(connection, app.namespace):
            quarantine.discard(connection, app.namespace, refusal, "ben", value)
    with app.store.read() as connection:
        found = audit.newest(connection, 20)
    assert [(one.actor, one.action) for one in reversed(found)] == [
        (current_user(), "schedule add"),
        ("ann", "schedule pause"),
        ("ben", "schedule resume"),
        (current_user(), "schedule change"),
        ("ann", "schedule remove"),
        ("ben", "exlet change"),
        ("ann", "rule change"),
        ("ben", "message discard"),
        ("ben", "message discard"),
    ]
    assert value not in str(found)
    shown = cli(setup).output
    assert "nightly" in shown
    assert "audited_order" in shown


def test_records_are_in_the_order_in_which_they_were_added_whatever_they_say_of_themselves(setup: Setup) -> None:
    app = setup.app()
    given: list[dict[str, object]] = [{}, {"id": "zzz", "at": later(9e6)}, {"id": "000", "at": later(-9e6)}, {}]
    with app.store.write() as connection:
        for number, chosen in enumerate(given):
            values = {"id": new_id(), "run_id": "one", "actor": f"ann {number}", "action": "x", "at": now(), **chosen}
            connection.execute(insert(table).values(**values))
    with app.store.read() as connection:
        assert [one.actor for one in audit.newest(connection, 3)] == ["ann 3", "ann 2", "ann 1"]
        assert [one.actor for one in audit.of_run(connection, RunId("one"))] == [f"ann {number}" for number in range(4)]
    eventually(lambda: chain(app.store) == 0)
    with app.store.read() as connection:
        assert [(one.seq, one.actor) for one in audit.newest(connection, 2)] == [(4, "ann 3"), (3, "ann 2")]


# With the roles that are shipped ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server whose tables belong to one user, and are used by another."""
    with PrivatePostgres(fsync=False) as server:
        migrate(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            for _ in range(2):
                connection.execute(ROLES.read_bytes())
            connection.execute("CREATE ROLE shop LOGIN IN ROLE aft_app")
            connection.execute("CREATE ROLE looker LOGIN IN ROLE aft_reader")
        yield server.url.replace("aft@", "shop@")


def test_everything_works_with_the_rights_of_the_role(guarded: str) -> None:
    app = aft.Aft(settings=Settings.load(database_url=guarded, namespace="guarded", grace=1.0, levels="50ms*2"))
    try:
        with app.dispatcher():
            run = app.submit(ordering, "guarded")
            eventually(lambda: run.status is Status.WAITING)
            run.suspend(by="ann")
            eventually(lambda: run.status is Status.SUSPENDED)
            run.resume(by="ann")
            run.signal("go", "on")
            assert run.result(60) == "on"
            run.compensate(by="ann")
            eventually(lambda: run.status is Status.COMPENSATED)
            eventually(lambda: not is_loose(app))
        with app.store.read() as connection:
            assert {deed.db_user for deed in audit.newest(connection, 10)} == {"shop"}
            assert not audit_chain.verify(connection).problems
    finally:
        app.close()


@pytest.mark.parametrize(
    "words",
    [
        "DELETE FROM aft_audit",
        "UPDATE aft_audit SET actor = 'other'",
        "UPDATE aft_audit SET at = now()",
        "UPDATE aft_audit SET number = 1",
        "SELECT setval('aft_audit_number_seq', 1)",
        "TRUNCATE aft_audit",
        "INSERT INTO aft_audit (id, run_id, actor, action, at, db_user) VALUES ('a', 'b', 'c', 'd', now(), 'other')",
        "INSERT INTO aft_audit (id, run_id, actor, action, at, seq) VALUES ('a', 'b', 'c', 'd', now(), 1)",
        "INSERT INTO aft_audit (id, run_id, actor, action, at, number) VALUES ('a', 'b', 'c', 'd', now(), 1)",
        "DROP TABLE aft_audit",
        "UPDATE aft_schema_version SET version_num = 'x'",
    ],
)
def test_the_role_cannot_rewrite_history(guarded: str, words: str) -> None:
    with psycopg.connect(guarded) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(words.encode())


def test_who_only_looks_changes_nothing(guarded: str) -> None:
    with psycopg.connect(guarded.replace("shop@", "looker@"), autocommit=True) as connection:
        connection.execute("SELECT * FROM aft_runs")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM aft_runs")
