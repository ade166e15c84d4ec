"""What is in arguments, and what is in URLs, is not told to whoever reads logs, faults and terminals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from sqlalchemy import text

import aft
from aft.app.views.story import read_story
from aft.cli.root import root
from aft.compensation import stack
from aft.runs.records import inbox, journal, notices, parked_runs
from aft.runs.states import Status
from aft.store import Store
from tests.setups import Setup, eventually, run_to

CARD = "4111 1111 1111 1111"


@aft.activity(name="secrets_charge", transactional=True, levels=[])
def charge(order: str, card: str) -> None:
    row = {"id": order, "card": card}
    aft.session().execute(text("INSERT INTO secrets_shown_cards (id, card, missing) VALUES (:id, :card, 1)"), row)


@aft.flow(name="secrets_charging")
def charging(order: str, card: str) -> None:
    charge(order, card)


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


@aft.activity(name="secrets_refuse", levels=["1h"])
def refuse(person: dict[str, object]) -> None:
    raise aft.Recoverable("not now")


@aft.flow(name="secrets_refused")
def refused(person: dict[str, object]) -> None:
    refuse(person)


def test_what_has_a_hidden_name_is_not_among_the_facts_that_a_condition_asks(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        app.submit(refused, {"name": order, "pin": ["hunter2"], "account": {"password": {"now": "hunter3"}}})
        eventually(lambda: any(fault.due_at for fault in app.faults()))
    (fault,) = app.faults()
    for more in ([], ["--json"]):
        command = ["rules", "test", fault.id, "--if", f"activity.args.person.name == '{order}'", *more]
        shown = CliRunner().invoke(root, command, env=setup.environ())
        assert shown.exit_code == 0, shown.output
        assert order in shown.output
        assert "hunter" not in shown.output


def test_a_url_leads_to_where_it_says_by_itself() -> None:
    with pytest.raises(aft.ConfigError, match="conninfo") as refused:
        Store("postgresql://me@/shop?conninfo=host%3Dfar.example%20password%3Dhunter2")
    assert "hunter" not in str(refused.value)


#: Secrets in ordinary texts.
TEXTS = [
    f"Card:\n{CARD}",
    f"Card:\t{CARD.replace(' ', '')}",
    "x\npassword=hunter2",
    "x\npwd=hunter2",
    "x\nBearer hunter2secret",
    "x\neyJhbGciOiJIUzI1NiJ9.eyJzdWIi.hunter2secret",
    "postgresql://u:hunter2/secret@h/d",
    json.dumps({"Message": json.dumps({"detail": json.dumps({"password": "hunter2"})})}),
]
#: All of them, as values and as names.
VALUE: Any = {"texts": TEXTS, **{text: number for number, text in enumerate(TEXTS)}}
HELD = ("4111", "hunter2", "eyJzdWIi")


@aft.activity(name="secrets_keep")
def keep(value: Any) -> Any:
    return value


@aft.activity(name="secrets_lose", levels=[])
def lose(value: Any) -> None:
    raise ValueError(str(value), value)


@aft.flow(name="secrets_held")
def held(value: Any) -> Any:
    keep(value)
    heard = aft.wait_for("go")
    try:
        lose(value)
    except ValueError:
        return heard
    return None


@aft.flow(name="secrets_mistaken")
def mistaken(value: Any) -> None:
    raise NameError(f"{'x' * 1980} {value}")


def _show(setup: Setup, *words: str, columns: int = 80) -> str:
    shown = CliRunner().invoke(root, words, env={**setup.environ(), "COLUMNS": str(columns)})
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_no_text_within_a_value_gets_round_redaction(setup: Setup) -> None:
    app = setup.app()
    with run_to(app, held.options(tags={"of": VALUE}), VALUE, status=Status.WAITING) as run:
        run.signal("later", VALUE, by=f"ann {CARD}")
        waiting = _show(setup, "runs", "show", run.id)
        run.signal("go", VALUE, by=f"ann {CARD}")
        run.result(60)
    shown = [_show(setup, "runs", "show", run.id, "--all", columns=columns) for columns in range(40, 84, 4)]
    shown += [
        _show(setup, *words) for words in (["runs", "list"], ["faults", "list"], ["runs", "show", run.id, "--json"])
    ]
    shown += [_show(setup, "runs", "list", "--json"), _show(setup, "faults", "list", "--json"), waiting]
    (fault,) = app.faults()
    shown += [_show(setup, "faults", "show", fault.id, *more) for more in ([], ["--json"])]
    assert [(part, text) for text in shown for part in HELD if part in text] == []


@pytest.mark.parametrize("words", [[], ["--wait", "60"]])
def test_a_result_that_is_printed_at_once_is_redacted(setup: Setup, words: list[str]) -> None:
    setup.app().check()
    shown = _show(setup, "runs", "start", f"{__name__}:echoed", "-m", __name__, "--here", json.dumps(TEXTS), *words)
    assert [part for part in HELD if part in shown] == []


@aft.flow(name="secrets_echoed")
def echoed(value: Any) -> Any:
    return value


def test_a_notice_of_a_parked_run_is_redacted(setup: Setup) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(mistaken.options(key=CARD, owner="password=hunter2"), CARD)
        eventually(lambda: run.status is Status.PARKED)
    with app.store.write() as connection:
        assert parked_runs.report(connection, app.namespace, run.id, "https://hooks.example/")
        (notice,) = notices.of_run(connection, run.id)
    body = json.loads(notice.body)
    assert [part for part in HELD if part in notice.body] == []
    assert body["key"] == "**** **** **** 1111"
    assert (body["owner"], body["reason"][-3:]) == ("password=*******", "**…")


class Login(BaseModel):
    user: str
    pin: aft.Secret[int]


@aft.activity(name="secrets_sign_in", levels=[])
def sign_in(pin: Any) -> None:
    try:
        Login.model_validate({"user": "ann", "pin": pin})
    except ValueError as error:
        raise RuntimeError([error]) from error


@aft.activity(name="secrets_validated", levels=[])
def validated(pin: Any) -> None:
    Login.model_validate({"user": "ann", "pin": pin})


@aft.flow(name="secrets_signing_in")
def signing_in(pin: aft.Secret[str], chained: bool) -> None:
    (sign_in if chained else validated)(pin)


@pytest.mark.parametrize("chained", [False, True])
def test_what_pydantic_shows_of_a_secret_is_neither_kept_nor_shown(setup: Setup, chained: bool) -> None:
    app = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated) as raised:
        app.submit(signing_in, aft.Secret("hunter2"), chained).result(60)
    fault = raised.value.fault
    assert fault is not None
    assert "hunter2" not in f"{raised.value} {fault.message} {fault.args} {fault.attributes}"
    assert "hunter2" not in (fault.traceback or "")
    assert "input_value=***, input_type=" in (fault.traceback or "")
    assert "hunter2" not in _show(setup, "faults", "show", fault.id)


@aft.activity(name="secrets_take")
def take(cards: list[aft.Secret[str]], password: str) -> None: ...


@aft.activity(name="secrets_give", levels=[])
def give() -> list[aft.Secret[str]]:
    given: Any = "hunter2secret"
    return given  # type: ignore[no-any-return]


@aft.flow(name="secrets_unfit")
def unfit(how: str) -> None:
    wrong: Any = b"hunter2secret"
    if how == "type":
        take([wrong], "x")
    elif how == "name":
        take([], wrong)
    else:
        give()


@pytest.mark.parametrize("how", ["type", "name", "result"])
def test_the_reason_why_a_run_is_parked_shows_no_secret_that_was_refused(setup: Setup, how: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(unfit, how)
        eventually(lambda: run.status is Status.PARKED)
    assert "hunter2" not in f"{run.row.reason} {[(fault.message, fault.traceback) for fault in app.faults()]}"
    assert "***" in (run.row.reason or "")


@aft.flow(name="secrets_asking")
def asking() -> int:
    return len(aft.wait_for("pins", list[aft.Secret[int]]))


def test_a_signal_that_was_refused_is_a_secret_where_one_is_declared(setup: Setup) -> None:
    with run_to(setup.app(), asking, status=Status.WAITING) as run:
        for value in ('["hunter2"]', '"hunter2"', "hunter2"):
            _show(setup, "runs", "signal", run.id, "pins", value)
        eventually(lambda: _show(setup, "runs", "show", run.id).count("refused") == 3)
        shown = _show(setup, "runs", "show", run.id, "--json") + _show(setup, "runs", "show", run.id)
        assert "hunter2" not in shown
        run.signal("pins", [7])
        assert run.result(60) == 1


@aft.activity(name="secrets_again")
def again(credentials: dict[str, str], count: int) -> None: ...


first: list[bool] = []


@aft.flow(name="secrets_diverging")
def diverging() -> None:
    first.append(not first)
    again({"user": "ann", "cvv": f"hunter2{first[-1]}"}, 1)
    aft.wait_for("go")


def test_a_replay_that_diverges_shows_no_argument_whose_name_says_that_it_is_secret(setup: Setup) -> None:
    first.clear()
    with run_to(setup.app(), diverging, status=Status.WAITING) as run:
        run.signal("go")
        eventually(lambda: run.status is Status.PARKED)
    assert "credentials=***" in (run.row.reason or "")
    assert "hunter2" not in (run.row.reason or "")


@aft.flow(name="secrets_named")
def named() -> int:
    aft.wait_for("otp", int)
    return len(aft.wait_for("password", str))


def test_a_signal_whose_name_says_that_it_is_secret_is_not_shown(setup: Setup) -> None:
    with run_to(setup.app(), named, status=Status.WAITING) as run:
        _show(setup, "runs", "signal", run.id, "otp", "hunter2")
        _show(setup, "runs", "signal", run.id, "password", json.dumps("hunter2"))
        eventually(lambda: run.row.waits and "refused" in _show(setup, "runs", "show", run.id))
        shown = _show(setup, "runs", "show", run.id) + _show(setup, "runs", "show", run.id, "--json")
        run.signal("otp", 7)
        eventually(lambda: run.status is Status.COMPLETED)
    shown += _show(setup, "runs", "show", run.id) + _show(setup, "runs", "show", run.id, "--json")
    assert "hunter2" not in shown


#: What no pattern knows as a secret: only what is never shown is safe.
PLAIN = "plain-text-of-a-customer"


def unwrap(what: str) -> None:
    pass


@aft.activity(name="secrets_buy", levels=[])
@aft.compensate_with(unwrap)
def buy(what: str) -> str:
    return f"bought {what}"


@aft.activity(name="secrets_fail", levels=[])
def fail(what: str) -> None:
    raise ValueError(f"no: {what}", what)


@aft.flow(name="secrets_represented")
def represented(what: str) -> str:
    aft.wait_for("secrets_go")
    buy(what)
    if what.startswith("fail"):
        fail(what)
    return what


def test_no_repr_shows_what_is_stored(setup: Setup) -> None:
    app = setup.app()
    with app.dispatcher():
        good = app.submit(represented.options(tags={"who": PLAIN}), PLAIN)
        bad = app.submit(represented, f"fail {PLAIN}")
        for run in (good, bad):
            run.signal("secrets_go", PLAIN)
        assert good.result(60) == PLAIN
        eventually(lambda: bad.status is Status.COMPENSATED)
    with app.store.read() as connection:
        stories = [read_story(connection, app.namespace, run.id) for run in (good, bad)]
        recorded = [
            read(connection, run.id) for run in (good, bad) for read in (journal.load, stack.of_run, inbox.of_run)
        ]
    shown = repr([*(run.row for run in (good, bad)), app.faults(), good.compensate(dry_run=True), stories, recorded])
    assert f"{good.id}" in shown
    assert "secrets_buy" in shown
    assert PLAIN not in shown


def test_no_repr_of_rules_shows_the_values_of_the_cases_that_they_were_made_for(setup: Setup) -> None:
    app = setup.app()
    with run_to(app, represented, f"fail {PLAIN}", status="waiting") as run:
        run.signal("secrets_go", PLAIN)
        eventually(lambda: run.status is Status.COMPENSATED)
    exlet = aft.Exlet("secrets_set", [aft.do.set(args={"what": PLAIN}), aft.do.complete(PLAIN)])
    app.rules.save_all([], [exlet])
    (fault,) = [fault for fault in app.faults() if fault.name == "secrets_fail"]
    proposal = app.rules.propose(fault.id, "fault.name != ''", exlet.name)
    app.rules.add(proposal, accept=True)
    assert proposal.node.cornerstone
    key = (proposal.tree.flow, proposal.tree.on, proposal.tree.activity)
    seen = [exlet, proposal, app.rules.trees(), app.rules.history(), app.rules.exlet_history(exlet.name)]
    shown = repr([*seen, app.rules.tree_at(key, 1), app.rules.explain(fault.id), app.rules.preview(proposal.tree)])
    assert "secrets_set" in shown
    assert PLAIN not in shown


CARD_TEXT = f"the card {CARD} was refused"


@aft.activity(name="secrets_refuse_card", levels=[])
def refuse_card() -> None:
    raise ValueError(CARD_TEXT)


def refuse_undo() -> None:
    raise aft.Unrecoverable(CARD_TEXT)


@aft.compensate_with(refuse_undo)
@aft.activity(name="secrets_reserve", levels=[])
def reserve() -> None:
    pass


@aft.flow(name="secrets_card_refused")
def card_refused(undo: bool) -> None:
    if undo:
        reserve()
    refuse_card()


def test_an_error_that_repeats_a_reason_is_redacted(setup: Setup) -> None:
    app = setup.app()
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match="was refused") as ended:
            app.submit(card_refused, False).result(60)
        parked = app.submit(card_refused, True)
        eventually(lambda: parked.status is Status.PARKED)
        with pytest.warns(aft.ParkedWarning, match="was refused") as warned, pytest.raises(TimeoutError) as late:
            parked.result(3)
    (obstacle,) = {undo.obstacle for undo in parked.compensate(dry_run=True) if undo.obstacle}
    with pytest.raises(aft.OrderRefused) as refused_order:
        parked.resume()
    for text_shown in (*map(str, (ended.value, late.value, refused_order.value, obstacle)), str(warned[0].message)):
        assert CARD not in text_shown
