"""``aft db audit``: lists the actions of people, and verifies that no record was removed or changed."""

from __future__ import annotations

import click

from aft.cli.application import open_for_reading
from aft.cli.errors import Failure
from aft.cli.options import ConnectionOptions
from aft.cli.show.documents import document
from aft.cli.show.output import Column, json_option, moment, print_json, print_message, print_table, short_id
from aft.runs.records import audit, audit_chain
from aft.runs.records.audit import AuditEntry
from aft.runs.records.audit_chain import ChainCheck, Position

#: What ``--json`` prints of an action.
KEYS = "record=seq hash at by=actor os_user db_user action run=run_id note"


@click.command("audit")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many of the newest.")
@click.option("--verify", "is_verified", is_flag=True, help="Verify the whole chain instead.")
@click.option("--known", metavar="NUMBER:HASH", help="With --verify: the position that it printed last time.")
@json_option
@click.pass_obj
def show_audit(given: ConnectionOptions, limit: int, is_verified: bool, known: str | None, as_json: bool) -> None:
    """List the actions of people, or verify that no record of them is gone or changed.

    Each record covers the one before. Keep what `--verify` says last, outside of this database: with it, `--known`
    tells later whether the end was cut off.
    """
    if known is not None and not is_verified:
        raise click.UsageError("--known goes with --verify")
    link = None if known is None else _read_position(known)
    with open_for_reading(given) as app, app.store.read() as connection:
        if is_verified:
            verdict = audit_chain.verify(connection, link)
        else:
            found = audit.newest(connection, limit)
    if is_verified:
        _print_check(verdict, as_json)
    elif as_json:
        print_json([document(entry, KEYS) for entry in found])
    elif not found:
        print_message("No action by hand is recorded.")
    else:
        _print(found)


def _read_position(known: str) -> Position:
    seq, _, digest = known.partition(":")
    if not seq.isdecimal() or len(digest) != 64:
        raise click.BadParameter(f"{known!r} is not a position that --verify prints: NUMBER:HASH", param_hint="--known")
    return Position(int(seq), digest)


def _print(found: list[AuditEntry]) -> None:
    columns = [
        Column("RECORD", right=True),
        Column("AT UTC"),
        Column("BY", flexible=True),
        Column("OS USER", flexible=True),
        Column("DB USER", flexible=True),
        Column("DID"),
        Column("RUN"),
        Column("NOTE", flexible=True),
    ]
    cells = [
        [
            "" if entry.seq is None else str(entry.seq),
            moment(entry.at),
            entry.actor,
            entry.os_user or "",
            entry.db_user or "",
            entry.action,
            short_id(entry.run_id),
            entry.note or "",
        ]
        for entry in found
    ]
    print_table(columns, cells)


def _print_check(verdict: ChainCheck, as_json: bool) -> None:
    if as_json:
        last = None if verdict.last is None else str(verdict.last)
        summary = {
            "records": verdict.count,
            "not_chained_yet": verdict.loose,
            "last": last,
            "problems": verdict.problems,
        }
        print_json({"ok": not verdict.problems, **summary})
    loose = f"; {verdict.loose} not chained yet; a dispatcher does that" if verdict.loose else ""
    if verdict.problems:
        raise Failure(f"the audit was tampered with: {'; '.join(verdict.problems)}")
    if not as_json:
        print_message(f"{verdict.count} records, none is gone or changed{loose}")
        if verdict.last is not None:
            print_message(f"The last one is {verdict.last}")
