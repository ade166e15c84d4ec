"""Output for people and programs: tables at any width, and JSON with stable keys.

Data goes to stdout, everything said about it to stderr. On a terminal a table fits its width, with ``…`` where
something was cut; in a pipe nothing is cut, and nothing is coloured. Times are UTC.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aft.cli.errors import one_line, printable
from aft.security.redaction import redact, redact_all

#: Characters of a shortened id: its last ones, which differ soonest. Commands accept them as the id.
SHORT_ID = 12
#: Width of a pipe, which has none: nothing is cut.
_ENDLESS = 100_000
_GAP = 2
#: Characters of a text inside a value that is too long for its line.
MOST_INNER = 40
#: Replacements for signs that a poorer terminal lacks.
_PLAIN = str.maketrans({"…": "~", "→": "->", "×": "x", "·": "-"})

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead, with stable keys.")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; a ``flexible`` one is cut first where the terminal is narrow."""

    title: str
    flexible: bool = False
    right: bool = False


def console() -> Console:
    """Return a console on stdout; without colours unless it is a terminal."""
    return Console(highlight=False, markup=False, emoji=False)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table; cells are shown on one line each."""
    out = console()
    if not out.is_terminal:
        out.width = _ENDLESS
    cells = [[_cell(value) for value in row] for row in rows]
    widths = _widths(columns, cells, out.width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title,
            no_wrap=True,
            overflow="ellipsis",
            max_width=width,
            justify="right" if column.right else "left",
        )
    for row in cells:
        table.add_row(*row)
    with out.capture() as drawn:
        out.print(table)
    for line in drawn.get().splitlines():
        click.echo(_encodable(line.rstrip()))


def _cell(value: str | Text) -> Text:
    return tame(value) if isinstance(value, Text) else Text(one_line(value))


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], total: int) -> list[int]:
    """Give each column the width it needs; the flexible ones share what is left."""
    natural = [
        max([cell_len(column.title), *(row[index].cell_len for row in rows)]) for index, column in enumerate(columns)
    ]
    excess = sum(natural) + _GAP * len(columns) - total
    while excess > 0:
        cut = {i: natural[i] for i, one in enumerate(columns) if one.flexible and natural[i] > len(one.title)}
        if not cut:
            break
        # The widest gives way until it is as wide as the next; then both do.
        natural[max(cut, key=lambda index: cut[index])] -= 1
        excess -= 1
    return natural


def print_fields(fields: dict[str, str], *, err: bool = False) -> None:
    """Print names and values, one per line; empty values are left out."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if value:
            click.echo(_encodable(f"{name:<{width}}  {one_line(value)}"), err=err)


def print_text(out: Console, text: Text) -> None:
    """Print a text as it is: the terminal wraps long lines."""
    out.print(showable(out, text), highlight=False, soft_wrap=True)


def tame(text: Text) -> Text:
    """Escape what a terminal would interpret instead of showing, and redact secrets; styles are kept."""
    if (hidden := redact(text.plain)) != text.plain:
        text = Text(hidden, style=text.style, spans=text.spans)
    tamed, done = Text(), 0
    for place, sign in enumerate(text.plain):
        if not (sign.isprintable() or sign == "\n"):
            tamed.append_text(text[done:place]).append(printable(sign))
            done = place + 1
    return tamed.append_text(text[done:]) if done else text


def showable(out: Console, text: Text) -> Text:
    """Replace what the terminal's encoding lacks, and escape what the terminal would interpret."""
    text = tame(text)
    if not out.options.ascii_only:
        return text
    plain = text.plain.translate(_PLAIN).encode(out.encoding, "replace").decode(out.encoding)
    return Text(plain, spans=text.spans if len(plain) == len(text.plain) else [])


def _encodable(line: str) -> str:
    if _speaks_unicode():
        return line
    encoding = sys.stdout.encoding or "ascii"
    return line.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def print_json(value: Any) -> None:
    """Print a value as JSON, redacted, in ASCII: a terminal would interpret some other characters."""
    click.echo(json.dumps(redact_all(value), indent=2, default=_describe))


def _describe(value: object) -> str:
    """Return the text of what is no JSON: SQLite may have bytes where a number should be."""
    return redact(repr(value))


def print_message(text: str) -> None:
    """Print a message for people, on stderr."""
    click.echo(printable(text), err=True)


def short_id(value: str) -> str:
    """Return the end of an id, which is enough to name it."""
    return value[-SHORT_ID:]


def shorten(text: str, most: int) -> str:
    """Cut a text to ``most`` characters."""
    text = one_line(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def moment(at: datetime | None) -> str:
    """Format a time in UTC: the time of day if it is today, else the date as well."""
    if at is None:
        return ""
    today = at.date() == datetime.now(UTC).date()
    return f"{at:%H:%M:%S}" if today else f"{at:%Y-%m-%d %H:%M}"


def exactly(at: datetime | None) -> str:
    """Format a time in UTC to the millisecond, labelled."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def iso(at: datetime | None) -> str | None:
    """Format a time for programs: ISO 8601."""
    return None if at is None else at.isoformat()


def format_data(value: Any, most: int) -> str:
    """Format JSON data on one line of at most that many characters; long texts inside it are cut first."""
    value = redact_all(value)  # before it is JSON, whose escapes would hide where a secret begins
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > most:
        text = json.dumps(_cut_texts(value), ensure_ascii=False)
    return shorten(text, most)


def format_named(value: Any, most: int) -> str:
    """Format JSON data on one line, an object as ``name="value", …``, like :func:`format_data`."""
    if not isinstance(value, dict):
        return format_data(value, most)
    value = redact_all(value)
    text = _join_named(value)
    return shorten(text if len(text) <= most else _join_named(_cut_texts(value)), most)


def _join_named(value: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(part, ensure_ascii=False)}" for name, part in value.items())


def _cut_texts(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MOST_INNER else value[: MOST_INNER - 1] + "…"
    if isinstance(value, list):
        return [_cut_texts(item) for item in value]
    return {key: _cut_texts(item) for key, item in value.items()} if isinstance(value, dict) else value


def format_trend(counts: Sequence[int]) -> str:
    """Draw counts as bars, the highest for the greatest; without Unicode, write them down."""
    if not _speaks_unicode():
        return " ".join(map(str, counts))
    most = max((*counts, 1))
    return "".join(" ▁▂▃▄▅▆▇█"[math.ceil(8 * count / most)] for count in counts)


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def confirm(text: str, yes: bool) -> None:
    """Ask before data is lost, and abort if the answer is no; without a terminal, ``yes`` must be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{text}. Add --yes if that is what you want")
    click.confirm(f"{text}. Go on?", abort=True, err=True)
