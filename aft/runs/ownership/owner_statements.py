"""The statements of owners' writes, in the SQL of each database; ``owner_writes`` gives them their input.

PostgreSQL writes all parts of a write in one statement: one write with its values as parameters, several as JSON. A
statement has only the parts that its writes need: each opens its table and its indices, even for no rows. Rows are
selected by their keys besides the join: a plan that was made while a table was small must not scan it once it is large.
SQLite takes the writes one by one, each part of one as a statement of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby

from sqlalchemy import Table

from aft.fault import FaultState
from aft.runs.records.faults import UNRESOLVED
from aft.store.batch.row_format import as_record, insert_one, type_of
from aft.store.db_time import SQLITE_NOW, Moment
from aft.store.outbox import put_selected
from aft.store.tables import faults, frames, journal, runs

#: The columns that an owner writes in each table; the others have defaults, or are written later.
JOURNAL = tuple(column.name for column in journal.columns if column.name not in ("run_id", "seq"))
FRAME = ("path", "scope", "activity", "compensator", "state", "args", "value", "key_generation", "pushed_at")
_LATER = {"run_id", "level", "try_in_level", "wait_seconds", "queue", "due_at", "decided_at", "settled_at"}
_LATER |= {"run_status", "run_tags"}
FAULT = tuple(column.name for column in faults.columns if column.name not in _LATER)

#: What must be true of a run for its owner to write.
FENCE = "run.epoch = {epoch} AND run.worker_id = {worker} AND run.seq = {seq}"
#: An inbox that is not longer than the owner has read, if it matters.
_READ = "({read_to} IS NULL OR run.inbox_seq <= {read_to})"
#: A state from which the run may change to its new one; these are given between spaces.
_EDGE = "{sources} LIKE '% ' || run.status || ' %'"
#: Counts that any write resets, as it is progress: earlier deaths are no sign any more that the run kills its workers.
DEATHS = ("deaths", "deaths_alone")
#: Columns that keep the value that they have got first.
_ONCE = ("first_args", "pivoted_at")
#: Ends the name of a time that is given in seconds from now.
FROM_NOW = "_in"
_UNSETTLED = ", ".join(f"'{state}'" for state in UNRESOLVED)
_NOW, _LATER_BY = "statement_timestamp()", "statement_timestamp() + make_interval(secs => {})"
#: The names of parameters, in order: those of each part.
Names = tuple[tuple[str, tuple[str, ...]], ...]


def _guard(fence: str, given: Callable[[str], str], *more: str) -> str:
    """Format the conditions on a run's row; ``given`` returns the expression of a value by its name."""
    names = ("epoch", "worker", "seq", "read_to", *(["sources"] if more else []))
    return " AND ".join((fence, _READ, *more)).format(**{name: given(name) for name in names})


def _update_run(changed: Sequence[str], fence: str, given: Callable[[str], str], now: str, later: str) -> str:
    """Build the statement that checks the fence of one write and changes the run's row, without what it returns.

    Of ``changed``, a column whose name ends with ``FROM_NOW`` is given in seconds from now.
    """

    def change(name: str) -> str:
        column, value = name.removesuffix(FROM_NOW), given(name)
        value = later.format(value) if name.endswith(FROM_NOW) else value
        return f"{column} = coalesce(run.{column}, {value})" if column in _ONCE else f"{column} = {value}"

    kept = [name for name in DEATHS if name in changed]
    sets = ["seq = run.seq + 1", f"updated_at = {now}", *(f"{name} = 0" for name in DEATHS if name not in kept)]
    sets += [change(name) for name in changed if name not in kept]
    edge = [_EDGE] if "status" in changed else []
    return f"""
UPDATE aft_runs AS run SET {", ".join(sets)}
WHERE run.id = {given("run_id")} AND {_guard(fence, given, *edge)}
"""


# PostgreSQL -----------------------------------------------------------------------------------------------------
#
# Both forms return place, length of the inbox, and number of the message of each write that was not refused.

_TYPES = {"run_id": "text", "worker": "text", "epoch": "bigint", "seq": "bigint", "read_to": "bigint"}
_TYPES |= {"sources": "text", "undone": "bigint", "settled": "json", "hold": "double precision"}
#: The rows that are inserted: table and columns of each part, and whether they have the write's number.
_ROWS: dict[str, tuple[Table, Sequence[str], bool]] = {
    "entry": (journal, JOURNAL, True),
    "frame": (frames, FRAME, True),
    "fault": (faults, FAULT, False),
}
#: What the other parts write; ``{among}`` is the condition on a run to be one of theirs.
_WRITTEN = {
    "undone": f"""
    UPDATE aft_frames AS frame SET state = 'undone', note = NULL, settled_at = {_NOW}
    FROM ours
    WHERE frame.run_id {{among}} AND frame.run_id = ours.id AND frame.seq = {{undone}}
""",
    "settled": f"""
    UPDATE aft_faults AS fault SET state = settled.state, settled_at = {_NOW}
    FROM ours, json_to_recordset({{settled}}) AS settled(id text, state text)
    WHERE fault.id = ANY (ARRAY(SELECT each.id FROM {{of_ours}} json_to_recordset({{settled}}) AS each(id text)))
        AND fault.id = settled.id
""",
    "ends": f"""
    UPDATE aft_faults AS fault SET state = '{FaultState.RESOLVED.value}', settled_at = {_NOW}
    FROM ours
    WHERE fault.run_id {{among}} AND fault.run_id = ours.id AND fault.state IN ({_UNSETTLED})
""",
    "message": f"""
    {put_selected("{its_namespace}", "{queue}", "{body}", "{hold}")} FROM ours {{there}}
    RETURNING id, body
""",
}
#: The names of what these parts take.
_TAKEN = {"undone": ["undone"], "settled": ["settled"], "message": ["its_namespace", "queue", "body", "hold"]}


def _insert(part: str, values: Callable[[str], str], source: str = "") -> str:
    table, columns, numbered = _ROWS[part]
    seq, number = ("seq, ", "ours.number, ") if numbered else ("", "")
    return f"""
    INSERT INTO {table.name} (run_id, {seq}{", ".join(columns)})
    SELECT ours.id, {number}{", ".join(map(values, columns))} FROM ours{source}
"""


@cache
def for_one(parts: frozenset[str], changed: tuple[str, ...], fence: str) -> tuple[str, Names]:
    """Build the statement of one write, and name its parameters.

    Of ``changed``, a column whose name ends with ``FROM_NOW`` is given in seconds from now.
    """
    names: dict[tuple[str, str], str] = {}

    def given(part: str, name: str, kind: str) -> str:
        return names.setdefault((part, name), f"${len(names) + 1}::{kind}")

    def of_run(name: str) -> str:
        time = name.endswith(FROM_NOW)
        return given("run", name, "double precision" if time else _TYPES.get(name) or type_of(runs, name))

    update = _update_run(changed, fence, of_run, _NOW, _LATER_BY)
    written = []
    for part in (part for part in (*_ROWS, *_WRITTEN) if part in parts):
        if part in _ROWS:
            table, columns, _ = _ROWS[part]
            values = {name: given(part, name, type_of(table, name)) for name in columns}
            written.append(_insert(part, values.__getitem__))
        else:
            taken = {name: given("more", name, _TYPES.get(name, "text")) for name in _TAKEN.get(part, ())}
            among = f"= {of_run('run_id')}"
            written.append(_WRITTEN[part].format(among=among, of_ours="", there="", **taken))
    if not written:
        return f"{update} RETURNING 0, run.inbox_seq, NULL", _by_part(names)
    ours = f"{update} RETURNING run.id, run.seq AS number, run.inbox_seq"
    told, message = ("told.id", "LEFT JOIN told ON true") if "message" in parts else ("NULL", "")
    return f"WITH {_together(ours, parts, written)} SELECT 0, ours.inbox_seq, {told} FROM ours {message}", _by_part(
        names
    )


def _by_part(names: Iterable[tuple[str, str]]) -> Names:
    return tuple((part, tuple(name for _, name in each)) for part, each in groupby(names, lambda pair: pair[0]))


def _together(ours: str, parts: frozenset[str], written: Sequence[str]) -> str:
    """Format the CTEs: the update of the runs' rows, and what is written if those were found."""
    named = (("told" if part == "message" else f"its_{part}") for part in (*_ROWS, *_WRITTEN) if part in parts)
    more = "".join(f", {name} AS ({words})" for name, words in zip(named, written, strict=True))
    return f"ours AS ({ours}){more}"


@cache
def for_many(parts: frozenset[str], changed: tuple[str, ...], fence: str) -> str:
    """Build the statement of several writes, with one JSON array as its parameter."""
    written, inputs = [], []
    for part in (part for part in (*_ROWS, *_WRITTEN) if part in parts):
        if part in _ROWS:
            table, columns, _ = _ROWS[part]
            source = f", json_to_record(ours.{part}) AS {part}({as_record(table, columns)})"
            written.append(_insert(part, f"{part}.{{}}".format, f"{source} WHERE ours.{part} IS NOT NULL"))
            inputs.append(f"{part} json")
        else:
            taken = _TAKEN.get(part, ["ends"])
            among = f"= ANY (ARRAY(SELECT id FROM ours WHERE {taken[0]} IS NOT NULL))"
            theirs = {name: f"ours.{name}" for name in taken}
            there = "WHERE body IS NOT NULL"
            written.append(_WRITTEN[part].format(among=among, of_ours="ours,", there=there, **theirs))
            inputs += [f"{name} {_TYPES.get(name, 'boolean' if name == 'ends' else 'text')}" for name in taken]
    sets = ["seq = run.seq + 1", f"updated_at = {_NOW}", *(f"{name} = 0" for name in DEATHS if name not in changed)]
    sets += map(_set_if_changed, changed)
    edge = [f"(given.sources IS NULL OR {_EDGE})"] if "status" in changed else []
    kept = "".join(f", given.{name.split()[0]}" for name in inputs)
    given = ["place integer", *(f"{name} {_TYPES[name]}" for name in ("run_id", "worker", "epoch", "seq", "read_to"))]
    columns = ", ".join((*given, *inputs, *_changed_inputs(changed)))
    given_rows = f"given AS MATERIALIZED (SELECT * FROM json_to_recordset($1::json) AS given({columns}))"
    ours = f"""
    UPDATE aft_runs AS run SET {", ".join(sets)}
    FROM given
    WHERE run.id = ANY (ARRAY(SELECT run_id FROM given)) AND run.id = given.run_id
        AND {_guard(fence, "given.{}".format, *edge)}
    -- All that follows reads from here alone: joining what was given once more would cost its square.
    RETURNING given.place, run.id, run.seq AS number, run.inbox_seq{kept}
"""
    told, message = ("told.id", "LEFT JOIN told ON told.body = ours.body") if "message" in parts else ("NULL", "")
    ctes = f"{given_rows}, {_together(ours, parts, written)}"
    return f"WITH {ctes} SELECT ours.place, ours.inbox_seq, {told} FROM ours {message}"


def _set_if_changed(column: str) -> str:
    value = f"run.{column}" if column in DEATHS else f"given.{column}"
    if isinstance(runs.c[column].type, Moment):
        value = f"coalesce({value}, {_LATER_BY.format(value + FROM_NOW)})"
    if column in _ONCE:
        return f"{column} = coalesce(run.{column}, {value})"
    unchanged = "0" if column in DEATHS else f"run.{column}"
    return f"{column} = CASE WHEN '{column}' = ANY (given.changed) THEN {value} ELSE {unchanged} END"


def _changed_inputs(changed: Sequence[str]) -> list[str]:
    """Return the input columns of a run's changed columns."""
    columns = [name for name in changed if name not in DEATHS]
    times = [f"{name}{FROM_NOW} double precision" for name in columns if isinstance(runs.c[name].type, Moment)]
    return (
        ["changed text[]", "sources text", *([as_record(runs, columns)] if columns else []), *times] if changed else []
    )


# SQLite ---------------------------------------------------------------------------------------------------------


@cache
def for_sqlite(changed: tuple[str, ...], fence: str) -> str:
    """Build the statement that checks the fence and changes the run's row; it returns the length of the inbox.

    Of ``changed``, a column whose name ends with ``FROM_NOW`` is given in seconds from now.
    """
    update = _update_run(changed, fence, ":{}".format, SQLITE_NOW, f"{SQLITE_NOW} + {{}}")
    return f"{update} RETURNING inbox_seq"


ENTRY = insert_one(journal, ("run_id", "seq", *JOURNAL))
PUSHED = insert_one(frames, ("run_id", "seq", *FRAME))
RAISED = insert_one(faults, ("run_id", *FAULT))
UNDONE = f"UPDATE aft_frames SET state = 'undone', note = NULL, settled_at = {SQLITE_NOW} WHERE run_id = ? AND seq = ?"
SETTLED = f"UPDATE aft_faults SET state = ?, settled_at = {SQLITE_NOW} WHERE id = ?"
DROPPED = (
    f"UPDATE aft_faults SET state = '{FaultState.RESOLVED.value}', settled_at = {SQLITE_NOW} "
    f"WHERE run_id = ? AND state IN ({_UNSETTLED})"
)
