"""What runs held can be erased: afterwards no table has it any more, and what is left can still be looked at."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select, update

import aft
from aft import do
from aft.cli.root import root
from aft.runs.states import Status
from aft.store.tables import audit, faults, metadata, runs
from tests.setups import Setup, eventually, run_to


def give_back(customer: str, amount: int) -> None:
    """Undo a payment."""


@aft.compensate_with(give_back)
@aft.activity(name="forget_pay", levels=["20ms*3"])
def pay(customer: str, amount: int) -> str:
    if aft.current().attempt == 1:
        raise aft.Recoverable(f"{customer} was not found")
    return f"receipt for {customer}"


class Odd(Exception):
    """A failure that carries what it is about."""

    def __init__(self, customer: str) -> None:
        super().__init__(f"no such customer: {customer}")
        self.customer = customer


@aft.activity(name="forget_check")
def check(customer: str) -> None:
    raise Odd(customer)


@aft.flow(name="forget_part")
def part(customer: str) -> str:
    return pay(customer, 2)


@aft.flow(name="forget_order")
def ordering(customer: str) -> str:
    pay(customer, 1)
    try:
        check(customer)
    except Odd as error:
        part(error.customer)
    return f"{aft.wait_for('word')} for {customer}"


def cli(setup: Setup, *words: str) -> Result:
    return CliRunner().invoke(root, list(words), env=setup.environ())


def find(app: aft.Aft, secret: str) -> list[str]:
    """Where a text is in the database; what people did, and why, is kept."""
    found = []
    with app.store.read() as connection:
        for table in metadata.sorted_tables:
            for row in connection.execute(select(table)) if table is not audit else ():
                found += [f"{table.name}.{name}" for name, value in row._mapping.items() if secret in str(value)]
    return found


def order_of(app: aft.Aft, customer: str, key: str | None = None) -> aft.Run[str]:
    with app.dispatcher():
        run = app.submit(ordering.options(tags={"customer": customer}, key=key), customer)
        eventually(lambda: run.status is Status.WAITING)
        run.signal("word", f"yes, {customer}", key=customer)
        assert customer in run.result(60)
    return run


@pytest.fixture
def customer() -> str:
    return f"ann{secrets.token_hex(8)}"


def test_nothing_of_a_forgotten_run_is_left_in_any_table(setup: Setup, customer: str) -> None:
    app = setup.app()
    run = order_of(app, customer)
    assert {place.partition(".")[0] for place in find(app, customer)} >= {"aft_runs", "aft_journal", "aft_faults"}
    assert len(run.forget(note="she asked for it", by="ben")) == 2
    assert find(app, customer) == []
    with pytest.raises(aft.OrderRefused, match="was forgotten since: its result is gone"):
        run.result()
    with pytest.raises(aft.OrderRefused, match="was forgotten: what would be undone is not known"):
        run.compensate()
    assert len(run.forget()) == 2, "also again: something may have come since"


def test_what_a_run_and_its_failures_named_is_forgotten(setup: Setup, customer: str) -> None:
    app = setup.app()
    run = order_of(app, customer)
    with app.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run.id).values(resources=f'["{customer}"]'))
        connection.execute(update(faults).where(faults.c.run_id == run.id).values(signal=customer, resource=customer))
    run.forget()
    assert find(app, customer) == []


def test_what_is_left_can_be_looked_at(setup: Setup, customer: str) -> None:
    app = setup.app()
    run = order_of(app, customer)
    run.forget(note="she asked for it", by="ben")
    for words in (
        ["runs", "show", run.id, "--all"],
        ["runs", "show", run.id, "--json"],
        ["runs", "list"],
        ["runs", "list", "--json"],
        ["stack", run.id],
        ["faults", "list"],
        ["doctor"],
        ["flows", "list"],
    ):
        shown = cli(setup, *words)
        assert shown.exception is None or isinstance(shown.exception, SystemExit), words
        assert customer not in shown.output
    told = cli(setup, "runs", "show", run.id).output
    assert "forget_check" in told
    assert "forget  by ben: she asked for it" in told
    for fault in app.faults():
        assert cli(setup, "faults", "show", fault.id).exit_code == 0


def test_runs_are_forgotten_by_their_key(setup: Setup, customer: str) -> None:
    app = setup.app()
    run = order_of(app, customer, key=f"order-{secrets.token_hex(4)}")
    key = str(run.row.key)
    assert cli(setup, "runs", "forget", "--key", key).exit_code == 2, "it asks first"
    assert cli(setup, "runs", "forget", "--key", key, "--flow", "other", "--yes").exit_code == 1
    done = cli(setup, "runs", "forget", "--key", key, "--yes")
    assert (done.exit_code, "2 runs forgotten." in done.output) == (0, True)
    assert find(app, customer) == []
    again = app.submit(ordering.options(key=key), customer)
    assert again.id == run.id, "it was executed, and is not executed again"


def test_a_run_that_goes_on_and_a_child_are_not_forgotten(setup: Setup, customer: str) -> None:
    app = setup.app()
    with run_to(app, ordering, customer, status=Status.WAITING) as run:
        with pytest.raises(aft.OrderRefused, match="a run is forgotten once it and all below it have ended"):
            run.forget()
        child = next(one for one in app.runs(flow="forget_part"))
        with pytest.raises(aft.OrderRefused, match=f"name run {run.id}"):
            app.run(child.id).forget()
        run.signal("word", "yes")
        assert customer in run.result(60)


def test_what_rules_made_of_a_run_is_forgotten(setup: Setup, customer: str) -> None:
    app = setup.app()
    app.rules.add_exlet(aft.Exlet("tell_it", [do.set(tags={"seen": True}), do.retry()]))
    run = order_of(app, customer)
    run.forget()
    assert find(app, customer) == []


def test_values_of_the_story_are_gone_in_json(setup: Setup, customer: str) -> None:
    app = setup.app()
    run = order_of(app, customer)
    run.forget()
    told: Any = json.loads(cli(setup, "runs", "show", run.id, "--json").output)
    assert told["status"] == "completed"
    assert customer not in json.dumps(told)


def test_nothing_of_a_forgotten_run_is_left_in_sqlites_files(tmp_path: Path) -> None:
    customer = secrets.token_hex(8)
    app = aft.Aft(f"sqlite:///{tmp_path}/shop.db")
    run = order_of(app, customer)
    run.forget()
    left = [
        path.name for path in tmp_path.glob("shop.db*") if path.is_file() and customer.encode() in path.read_bytes()
    ]
    app.close()
    assert left == []
