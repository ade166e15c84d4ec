"""What is secret is stored, reaches whoever needs it, and is shown by nothing."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

import aft
from aft.cli.commands.dispatcher import write_log
from aft.cli.root import root
from aft.cli.show.output import print_json
from aft.runs.states import Status
from aft.telemetry import log_event
from tests.setups import Setup, eventually, run_to

CARD = "4111111111111111"


@dataclasses.dataclass
class Payment:
    card: aft.Secret[str]
    amount: int


class Login(BaseModel):
    user: str
    pin: aft.Secret[int]


undone: list[str] = []


def refund(payment: Payment, login: Login, result: aft.Secret[dict[str, str]]) -> None:
    undone.append(result.reveal()["receipt"])
    raise aft.Unrecoverable(f"no refund for card {payment.card.reveal()}, {payment}, {login}")


@aft.compensate_with(refund)
@aft.activity(name="hidden_pay")
def pay(payment: Payment, login: Login) -> aft.Secret[dict[str, str]]:
    assert payment.card.reveal() == CARD
    return aft.Secret({"receipt": f"r-{login.pin.reveal()}-{payment.card.reveal()}"})


@aft.flow(name="hidden_order")
def ordering(order: str, card: aft.Secret[str], any_value: Any, password: str) -> aft.Secret[str]:
    payment = Payment(card, 3)
    receipt = pay(payment, Login(user="ann", pin=aft.Secret(998877)))
    aft.sleep("20ms")
    word: aft.Secret[str] = aft.wait_for("word", aft.Secret[str])
    assert word.reveal() == "sesame-open"
    if any_value["fails"]:
        raise aft.Unrecoverable(f"{order}: card {card.reveal()} with token=abcdefgh {receipt} {word}")
    return aft.Secret(receipt.reveal()["receipt"])


SHOWN = ["aft.Secret", CARD, "998877", "sesame-open", "hunter2", "abcdefgh"]


def show_all(setup: Setup, app: aft.Aft, run: aft.Run[Any]) -> str:
    words = [
        ["runs", "list"],
        ["runs", "list", "--json"],
        ["runs", "show", run.id, "--all"],
        ["runs", "show", run.id, "--json"],
        ["stack", run.id],
        ["stack", run.id, "--json"],
        ["faults", "list"],
        ["faults", "list", "--json"],
        ["doctor"],
        *(["faults", "show", fault.id] for fault in app.faults()),
        *(["faults", "show", fault.id, "--json"] for fault in app.faults()),
    ]
    shown = [CliRunner().invoke(root, each, env=setup.environ()) for each in words]
    assert all(one.exception is None or isinstance(one.exception, SystemExit) for one in shown)
    return "\n".join(one.output for one in shown)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_that_is_secret_is_shown_or_logged(setup: Setup, fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aft")
    app = setup.app()
    app.telemetry.subscribe(log_event)
    order = secrets.token_hex(4)
    given: dict[str, Any] = {"fails": fails, "inside": aft.Secret("sesame-open"), "api_key": "hunter2"}
    with run_to(app, ordering, order, aft.Secret(CARD), given, "hunter2", status=Status.WAITING) as run:
        run.signal("word", aft.Secret("sesame-open"))
        if fails:
            eventually(lambda: run.status is Status.PARKED)
        else:
            assert run.result(60).reveal() == f"r-998877-{CARD}"
    told = show_all(setup, app, run) + caplog.text
    assert [secret for secret in SHOWN if secret in told.replace(" ", "")] == []
    assert "***" in told
    assert undone[-1:] == ([f"r-998877-{CARD}"] if fails else undone[-1:])


def test_a_secret_tells_nothing_of_itself() -> None:
    secret = aft.Secret(CARD)
    assert f"{secret} {secret!r} {[secret]} {Payment(secret, 1)}".count(CARD) == 0
    assert secret == aft.Secret(CARD) != aft.Secret("other")
    assert hash(secret) == hash(aft.Secret(CARD))


def test_what_does_not_fit_a_secret_is_not_told(setup: Setup) -> None:
    app = setup.app()
    given: Any = Login.model_construct(user="ann", pin="sesame-open")
    with pytest.raises(aft.CodecError) as refused:
        app.submit(logging_in, given)
    assert "sesame-open" not in f"{refused.value} {refused.value.__cause__!r} {refused.value.__context__!r}"


@aft.flow(name="hidden_login")
def logging_in(login: Login) -> None:
    """Do nothing."""


def test_a_secret_may_be_given_as_it_is_where_one_is_declared(setup: Setup) -> None:
    app = setup.app()
    given: Any = CARD
    run = app.start(echo, given)
    assert run.result().reveal() == CARD
    assert CARD not in CliRunner().invoke(root, ["runs", "show", run.id], env=setup.environ()).output


@aft.flow(name="hidden_echo")
def echo(card: aft.Secret[str]) -> aft.Secret[str]:
    return card


def test_a_signal_is_a_secret_once_the_flow_has_taken_it_as_one(setup: Setup) -> None:
    app = setup.app()
    with run_to(app, opening, status=Status.WAITING) as run:
        sent = CliRunner().invoke(root, ["runs", "signal", run.id, "word", "sesame-open"], env=setup.environ())
        assert sent.exit_code == 0, sent.output
        assert run.result(60) == 11
    assert "sesame-open" not in show_all(setup, app, run)


@aft.flow(name="hidden_opening")
def opening() -> int:
    return len(aft.wait_for("word", aft.Secret[str]).reveal())


def test_what_does_not_fit_as_a_whole_is_not_shown(setup: Setup) -> None:
    app = setup.app()
    given: Any = {"card": "sesame-open"}
    with pytest.raises(aft.CodecError, match=r"payment\.amount: .* missing in a dict with 'card'") as refused:
        app.submit(paying, given)
    assert "sesame-open" not in f"{refused.value} {refused.value.__cause__!r} {refused.value.__context__!r}"


@aft.flow(name="hidden_paying")
def paying(payment: Payment) -> None:
    """Do nothing."""


def test_json_hides_what_its_name_says_is_secret(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"facts": {"password": "sesame-open", "passwords": ["sesame-open"], "user": "ann"}}])
    shown = capsys.readouterr().out
    assert "sesame-open" not in shown
    assert "ann" in shown


def test_tracebacks_in_the_log_are_redacted(capfd: pytest.CaptureFixture[str]) -> None:
    shown = logged(ValueError("token=sesame-open \x1b[2J"), capfd)
    assert "ValueError: token=***********" in shown
    assert "\x1b" not in shown


def test_no_line_of_a_traceback_in_the_log_looks_like_an_event(capfd: pytest.CaptureFixture[str]) -> None:
    event, *traceback = logged(
        ValueError("no\n2026-11-19T04:59:00.000Z INFO    aft  run completed"), capfd
    ).splitlines()
    assert event.endswith("hidden  it failed")
    assert all(line.startswith("  | ") for line in traceback)
    assert "run completed" in traceback[-1]


def logged(error: Exception, capfd: pytest.CaptureFixture[str]) -> str:
    """What a dispatcher's log says about an exception."""
    before = logging.root.handlers[:], logging.root.level
    logging.root.handlers.clear()
    try:
        write_log("info")
        try:
            raise error
        except type(error):
            logging.getLogger("hidden").exception("it failed")
    finally:
        logging.root.handlers[:], level = before
        logging.root.setLevel(level)
    return capfd.readouterr().err
