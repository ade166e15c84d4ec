"""What somebody else has typed is shown on a terminal, and never obeyed by it.

Texts that hold such signs are refused where they are given. Whoever has the database, or an older aft, may have stored
them all the same: so they are put there behind aft's back.
"""

from __future__ import annotations

import json
import secrets

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Table, select, update

import aft
from aft.cli.root import root
from aft.store import tables
from tests.setups import Setup, eventually

#: Clears the screen, in two ways; writes from right to left; hides; rings.
HOSTILE = "\x1b[2J\x9b2J\u202egnp.exe\u2066\u200b\x07\x85\u2028evil"
#: Columns that people read, by table.
COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": ("owner", "reason", "key"),
    "faults": ("message", "type", "traceback", "why", "resource"),
    "inbox": ("actor", "note"),
    "audit": ("actor", "note"),
    "workers": ("host",),
}
COMMANDS = [
    ("runs", "list"),
    ("runs", "show", "RUN"),
    ("stack", "RUN"),
    ("runs", "show", "RUN", "--follow"),
    ("faults", "list"),
    ("faults", "show", "FAULT"),
    ("workers", "list"),
    ("schedules", "list"),
    ("flows", "list"),
    ("doctor",),
]


@aft.activity(name="hostile_fail", levels=[])
def fail(order: str) -> str:
    raise aft.Unrecoverable(f"no {order}")


@aft.activity(name="hostile_spoil", levels=[])
def spoil(order: str) -> int:
    return HOSTILE  # type: ignore[return-value]


@aft.flow(name="hostile_failing")
def failing(order: str) -> str:
    return fail(order)


@aft.flow(name="hostile_parked")
def parked(order: str) -> int:
    return spoil(order)


def call(setup: Setup, *words: str) -> Result:
    return CliRunner().invoke(root, list(words), env=setup.environ(), catch_exceptions=False)


def spoil_texts(app: aft.Aft) -> list[str]:
    """Put hostile texts into every column of that kind; returns those that there are."""
    found = []
    with app.store.write() as connection:
        for name, columns in COLUMNS.items():
            table: Table = getattr(tables, name)
            ours = tables.runs.c.namespace == app.namespace
            if "namespace" in table.c:
                here = table.c.namespace == app.namespace
            else:
                here = table.c.run_id.in_(select(tables.runs.c.id).where(ours))
            for column in columns:
                found.append(f"{name}.{column}")
                connection.execute(update(table).where(here).values({column: HOSTILE}))
    return found


def obeyed(text: str) -> set[str]:
    return {sign for sign in text if not (sign.isprintable() or sign == "\n")}


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_no_command_lets_a_terminal_obey_what_is_stored(setup: Setup, as_json: bool) -> None:
    app, order = setup.app(), secrets.token_hex(4)
    with app.dispatcher():
        failed, stopped = app.submit(failing, order), app.submit(parked, order)
        eventually(lambda: failed.status.ended and stopped.status == "parked")
    (fault, *_) = app.faults()
    assert len(spoil_texts(app)) >= 8
    shown = ""
    for words in COMMANDS:
        named = [stopped.id if word == "RUN" else fault.id if word == "FAULT" else word for word in words]
        if "--follow" in named and as_json:
            continue
        result = call(setup, *named, *(["--json"] if as_json else []))
        assert result.exit_code in (0, 1), (words, result.output)
        assert obeyed(result.stdout + result.stderr) == set(), words
        shown += result.stdout
    assert "evil" in shown, "it is shown, and not left out"
    if as_json:
        assert shown.isascii()
        assert json.loads(call(setup, "runs", "list", "--json").stdout)
