"""Refused messages, as a person meets them on the command line: seen, let in after a fix, or thrown away."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import select

import aft
from aft import names
from aft.brokers.base import Outgoing
from aft.cli.root import root
from aft.envelope import Message, MessageKind
from aft.ids import FaultId, RunId, new_id
from aft.runs.records import quarantine
from aft.store.tables import outbox
from tests.acceptance import shop
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually
from tests.world import ledger

pytestmark = pytest.mark.usefixtures("bare_environment")

KEYS = {"id", "queue", "state", "reason", "size", "body", "at", "settled_at", "settled_by", "note"}


class Faults(Terminal):
    def held(self) -> list[str]:
        return [one["id"] for one in self.data("faults", "list", "--quarantined")]

    def hold(self, body: bytes, reason: str = "it was wrong") -> str:
        """Put a message into quarantine; tells the short id that a listing shows."""
        before = set(self.held())
        with self.app.store.write() as connection:
            quarantine.add(connection, self.app.namespace, [(names.resume(self.app.namespace), body, reason)])
        (made,) = set(self.held()) - before
        return made[-12:]

    def hold_good(self) -> str:
        """Put a message into quarantine with which nothing is wrong any more."""
        return self.hold(message(self.app.submit(shop.buy, "cli").id))

    def sent(self) -> list[str]:
        with self.app.store.read() as connection:
            statement = select(outbox.c.body).where(outbox.c.namespace == self.app.namespace)
            return [body for body in connection.execute(statement).scalars() if "fault" in json.loads(body)]


@pytest.fixture
def terminal(setup: Setup) -> Faults:
    return Faults(setup, grace=600.0)  # what moves a run here is a message, never the sweeper


def message(run: RunId) -> bytes:
    return Message.about_fault(MessageKind.RESUME, run, FaultId(new_id()), datetime.now(UTC)).encode().encode()


# Looking --------------------------------------------------------------------------------------------------------


def test_a_listing_shows_what_is_held_and_on_request_what_became_of_the_rest(terminal: Faults) -> None:
    assert "No message is held" in terminal.good("faults", "list", "--quarantined").stderr
    held, released, discarded = terminal.hold(b"{", "not JSON"), terminal.hold_good(), terminal.hold(b"[")
    terminal.good("faults", "release", released, "--note", "deployed 1.2")
    terminal.good("faults", "discard", discarded, "--note", "a test of ours")
    lines = terminal.good("faults", "list", "--quarantined").stdout.splitlines()
    assert lines[0].split() == ["MESSAGE", "STATE", "QUEUE", "AT", "UTC", "BYTES", "REASON"]
    assert [line.split()[:3] for line in lines[1:]] == [[held, "held", names.resume(terminal.app.namespace)]]
    assert lines[1].endswith(" 1  not JSON")
    found = {one["id"][-12:]: one for one in terminal.data("faults", "list", "--quarantined", "--all")}
    assert all(set(one) == KEYS for one in found.values())
    assert {short: (one["state"], one["settled_by"], one["note"]) for short, one in found.items()} == {
        held: ("held", None, None),
        released: ("released", "night-watch", "deployed 1.2"),
        discarded: ("discarded", "night-watch", "a test of ours"),
    }
    shown = terminal.good("faults", "list", "--quarantined", "--all").stdout
    assert {line.split()[0]: line.split()[1] for line in shown.splitlines()[1:]} == {
        held: "held",
        released: "released",
        discarded: "discarded",
    }


def test_a_message_is_shown_with_its_reason_its_beginning_and_what_to_do(terminal: Faults) -> None:
    made = terminal.hold(b'{"v":1,\xff\x1b[31m\n' + b"x" * 20_000, "not UTF-8")
    shown = terminal.good("faults", "show", made)
    assert "not UTF-8" in shown.stdout
    assert '{"v":1,\\xff\\x1b[31m xxx' in shown.stdout
    assert "\x1b" not in shown.output
    assert len(shown.stdout) < 2_000
    assert "It cannot be released yet: only the first 16384 of its 20014 bytes were kept" in shown.stderr
    assert f"aft faults release {made}" in shown.stderr
    assert f"aft faults discard {made} --note" in shown.stderr
    assert set(terminal.data("faults", "show", made)) == KEYS


def test_a_message_that_was_dealt_with_is_shown_with_who_and_why(terminal: Faults) -> None:
    made = terminal.hold_good()
    assert "It can be released now." in terminal.good("faults", "show", made).stderr
    terminal.good("faults", "release", made, "--note", "deployed 1.2")
    shown = terminal.good("faults", "show", made)
    assert "night-watch" in shown.stdout
    assert "deployed 1.2" in shown.stdout
    assert shown.stderr == ""


# By hand --------------------------------------------------------------------------------------------------------


def test_a_message_is_released_once(terminal: Faults) -> None:
    made = terminal.hold_good()
    said = terminal.good("faults", "release", made).stderr
    assert f"goes to queue '{names.resume(terminal.app.namespace)}'" in said
    assert "note: no live dispatcher relays messages" in said
    assert len(terminal.sent()) == 1
    assert "released already, by night-watch" in terminal.refused("faults", "release", made)
    assert "released already, by night-watch" in terminal.refused("faults", "discard", made, "--note", "too late")
    assert len(terminal.sent()) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (message(RunId("r")).replace(b'"v":1', b'"v":2'), "version 2; this aft reads version 1"),
        (message(RunId("nobody")), "no run has the id 'nobody'"),
        (b"x" * 20_000, "only the first 16384 of its 20000 bytes"),
        (b"\xff\x1b[31m", "not UTF-8"),
    ],
)
def test_a_message_that_is_still_wrong_is_not_released(terminal: Faults, body: bytes, says: str) -> None:
    made = terminal.hold(body)
    line = terminal.refused("faults", "release", made)
    assert says in line
    assert "discard it with a note" in line
    assert terminal.held()[0].endswith(made)
    assert terminal.sent() == []


def test_discarding_needs_a_note_and_sends_nothing(terminal: Faults) -> None:
    made = terminal.hold_good()
    assert "--note" in terminal.refused("faults", "discard", made, status=2)
    assert "needs a note" in terminal.refused("faults", "discard", made, "--note", " ")
    assert "half a character" in terminal.refused(
        "faults", "discard", made, "--note", "nobody waits for it \udcff", status=2
    )
    terminal.good("faults", "discard", made, "--note", "nobody waits for it")
    assert terminal.held() == []
    assert terminal.sent() == []
    assert "discarded already" in terminal.refused("faults", "release", made)
    assert terminal.data("faults", "show", made)["note"] == "nobody waits for it"


@pytest.mark.parametrize("arguments", [("show", "beef"), ("release", "beef"), ("discard", "beef", "--note", "x")])
def test_a_message_that_nobody_knows_is_told_in_one_line(terminal: Faults, arguments: tuple[str, ...]) -> None:
    line = terminal.refused("faults", *arguments)
    assert "'beef'" in line
    assert "--quarantined" in line


def test_a_message_of_another_namespace_is_nobodys(terminal: Faults) -> None:
    with terminal.app.store.write() as connection:
        quarantine.add(connection, "elsewhere", [(names.resume("elsewhere"), b"{", secrets.token_hex(8))])
        theirs = quarantine.listing(connection, "elsewhere")[0].id
    assert theirs in terminal.refused("faults", "release", theirs)


def test_all_goes_with_quarantined(terminal: Faults) -> None:
    assert "--all goes with --quarantined" in terminal.refused("faults", "list", "--all", status=2)


@pytest.mark.parametrize("arguments", [("release", "x"), ("discard", "x", "--note", "y"), ("show", "x")])
def test_dealing_with_a_message_does_not_make_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(root, ["faults", *arguments])
    assert result.exit_code == 1
    assert "there is no database" in result.stderr
    assert list(tmp_path.iterdir()) == []


# From the queue and back ----------------------------------------------------------------------------------------


def test_a_person_finds_what_a_dispatcher_refused_and_the_queue_goes_on(terminal: Faults) -> None:
    order, app = secrets.token_hex(4), terminal.app
    with app.dispatcher():
        app.broker.publish([Outgoing(names.resume(app.namespace), b"{")])
        (held,) = eventually(lambda: terminal.data("faults", "list", "--quarantined"))
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
    assert held["reason"].startswith("not JSON")
    assert (held["queue"], held["body"]) == (names.resume(app.namespace), "{")


def test_a_released_message_sets_its_run_going(terminal: Faults) -> None:
    order, app = secrets.token_hex(4), terminal.app
    run = app.submit(shop.buy, order)
    held = quarantine_the_wake_of(app)
    with app.dispatcher():
        said = terminal.good("faults", "release", held, "--note", "the rule was wrong").stderr
        assert "no live dispatcher" not in said
        assert run.result(60) == f"parcel-{order}"
    assert ledger[order].count("ship") == 1


def quarantine_the_wake_of(app: aft.Aft) -> str:
    """Refuse the one message that waits in the outbox, as a door does that does not know better."""
    with app.store.write() as connection:
        mine = outbox.c.namespace == app.namespace
        row = connection.execute(select(outbox.c.id, outbox.c.queue, outbox.c.body).where(mine)).one()
        queue, _ = names.split(row.queue)
        quarantine.add(connection, app.namespace, [(queue, row.body.encode(), "it looked odd")])
        connection.execute(outbox.delete().where(outbox.c.id == row.id))
        return quarantine.listing(connection, app.namespace)[0].id
