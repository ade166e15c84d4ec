"""What is in arguments, and what is in URLs, is not told to whoever reads logs, faults and terminals."""

from __future__ import annotations

import secrets

import pytest
from click.testing import CliRunner
from sqlalchemy import text

import aft
from aft.cli.root import root
from aft.store import Store
from tests.setups import Setup

CARD = "4111 1111 1111 1111"


@aft.activity(name="secrets_charge", transactional=True, levels=[])
def charge(order: str, card: str) -> None:
    row = {"id": order, "card": card}
    aft.session().execute(text("INSERT INTO secrets_shown_cards (id, card, missing) VALUES (:id, :card, 1)"), row)


@aft.flow(name="secrets_charging")
def charging(order: str, card: str) -> None:
    charge(order, card)


@pytest.fixture
def order() -> str:
    return secrets.token_hex(4)


def test_no_parameter_of_a_statement_is_in_the_fault_that_it_raises(setup: Setup, order: str) -> None:
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS secrets_shown_cards (id VARCHAR(20), card VARCHAR(30))"))
    with app.dispatcher(), pytest.raises(aft.FlowCompensated) as raised:
        app.submit(charging, order, CARD).result(60)
    fault = raised.value.fault
    assert fault is not None
    assert "missing" in (fault.message or "")
    assert CARD not in f"{fault.message} {fault.traceback} {raised.value}"
    shown = CliRunner().invoke(root, ["faults", "show", fault.id], env=setup.environ())
    assert (shown.exit_code, CARD in shown.output) == (0, False)


@pytest.mark.parametrize("name", ["password", "sslpassword", "PassWord", "api_key", "passfile"])
def test_a_password_in_the_options_of_a_url_is_not_shown(name: str) -> None:
    store = Store(f"postgresql://me:hunter2@host/shop?{name}=hunter3&sslmode=require")
    assert "hunter" not in store.url
    assert "sslmode=require" in store.url
    assert "me:***@host/shop" in store.url
