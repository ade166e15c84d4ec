"""Claims about journal and stack: outcomes in order of completion, undos from the top, each exactly once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert

from aft.compensation import stack
from aft.compensation.stack import PENDING, Frame, FrameState
from aft.errors import StoreError
from aft.flows.session import run_records
from aft.flows.steps.unwind import any_skipped
from aft.ids import FaultId, RunId, StepPath
from aft.runs.ownership.owner import Owner
from aft.runs.records import journal
from aft.runs.records.journal import RESTARTED, Entry, EntryKind, Outcome
from aft.store import tables
from tests.storing import Stage, journal_in, recording

AT = datetime(2024, 5, 17, 12, 30, 15, 123456, tzinfo=UTC)


def an_entry(path: str, **changes: Any) -> Entry:
    values: dict[str, Any] = {
        "path": StepPath(path),
        "scope": path.rpartition(".")[0],
        "kind": EntryKind.ACTIVITY,
        "name": "charge",
        "outcome": Outcome.OK,
        "recorded_at": AT,
        "args": '{"n": 1}',
        "value": "1",
    }
    return Entry(**(values | changes))


def write_entry(owner: Owner, entry: Entry) -> None:
    owner.write(recording(owner, entry))


def push(stage: Stage, owner: Owner, path: str, *, journaled: bool = True, **options: Any) -> None:
    """Record a step and push its frame, in one write."""

    def then(connection: Connection, seq: int) -> None:
        if journaled:
            journal_in(connection, owner, seq, an_entry(path))
        scope = path.rpartition(".")[0]
        frame = stack.fields(StepPath(path), scope, "charge", "refund", at=AT, **options)
        stack.push(connection, owner.run_id, seq, frame)

    owner.write(then)


def top(stage: Stage, owner: Owner, scope: str = "", *, late: bool = False) -> Frame | None:
    with stage.store.read() as connection:
        return next(iter(stack.owed(connection, owner.run_id, scope, generation=0 if scope else None, late=late)), None)


def paths(stage: Stage, owner: Owner, scope: str = "", *, late: bool = False) -> list[str]:
    """Take everything off from the top; tells in which order."""
    found = []
    while (frame := top(stage, owner, scope, late=late)) is not None:
        found.append(str(frame.path))
        with stage.store.write() as connection:
            stack.pop_child_frame(connection, owner.run_id, frame.seq, FrameState.UNDONE)
    return found


@pytest.fixture
def owner(stage: Stage) -> Owner:
    return stage.owned(stage.lease())


# --- the journal ---


def test_outcomes_are_read_as_they_were_written_in_order_of_completion(stage: Stage, owner: Owner) -> None:
    made = [
        an_entry("2"),
        an_entry("1", outcome=Outcome.FAILED, value=None, fault_id=FaultId("f1"), attempts=4),
        an_entry("3.1", kind=EntryKind.SAVEPOINT, outcome=Outcome.UNDONE, args=None, key_generation=2),
    ]
    for entry in made:
        write_entry(owner, entry)
    with stage.store.read() as connection:
        assert [replace(entry, seq=0) for entry in journal.load(connection, owner.run_id)] == made


def test_a_step_has_one_outcome(stage: Stage, owner: Owner) -> None:
    write_entry(owner, an_entry("1", value="1"))
    with pytest.raises(StoreError):
        write_entry(owner, an_entry("1", value="2"))
    with stage.store.read() as connection:
        assert [entry.value for entry in journal.load(connection, owner.run_id)] == ["1"]


def test_a_run_without_outcomes_has_an_empty_journal(stage: Stage, owner: Owner) -> None:
    with stage.store.read() as connection:
        assert journal.load(connection, owner.run_id) == []


# --- the stack ---


def test_the_last_pushed_is_the_first_undone(stage: Stage, owner: Owner) -> None:
    for path in ("1", "2", "3", "10"):
        push(stage, owner, path)
    assert paths(stage, owner) == ["10", "3", "2", "1"]


def test_a_stack_belongs_to_one_run(stage: Stage, owner: Owner) -> None:
    other = stage.owned(owner.lease)
    push(stage, owner, "1")
    assert top(stage, other) is None


def test_a_frame_takes_arguments_and_result_from_the_journal(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1")
    frame = top(stage, owner)
    assert frame is not None
    assert (frame.args, frame.value, frame.state, frame.pushed_at) == ('{"n": 1}', "1", FrameState.OWED, AT)


def test_a_frame_of_its_own_keeps_its_own(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1", state=FrameState.LATE, args='{"n": 2}', value="2")
    frame = top(stage, owner)
    assert frame is not None
    assert (frame.args, frame.value) == ('{"n": 2}', "2")


def test_a_savepoint_has_only_what_was_pushed_under_it(stage: Stage, owner: Owner) -> None:
    for path in ("1", "2.1", "2.2.1", "20.1", "2.3", "3"):
        push(stage, owner, path)
    assert paths(stage, owner, "2") == ["2.3", "2.2.1", "2.1"]
    assert paths(stage, owner) == ["3", "20.1", "1"]


def test_a_savepoint_of_a_generation_has_only_what_that_one_pushed(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "2.1", journaled=False, args="{}", value="1")
    push(stage, owner, "2.2", journaled=False, args="{}", value="1", key_generation=1)
    push(stage, owner, "2.1", journaled=False, args="{}", value="1", key_generation=RESTARTED + 1)
    with stage.store.read() as connection:
        found = stack.owed(connection, owner.run_id, "2", generation=1, limit=9)
    assert [(frame.path, frame.key_generation) for frame in found] == [("2.1", RESTARTED + 1), ("2.2", 1)]


def test_a_frame_takes_nothing_from_another_generations_outcome(stage: Stage, owner: Owner) -> None:
    """An armed frame whose result nobody knows must not be undone with the result of a later generation."""
    push(stage, owner, "1", journaled=False, state=FrameState.ARMED, args="{}")
    write_entry(owner, an_entry("1", value="42", key_generation=1))
    for frame in (top(stage, owner), stack.read_frame(owner.query([(stack.OWED, f'["{owner.run_id}"]')])[0][0])):
        assert frame is not None
        assert frame.value is None
    owner.write(lambda connection, seq: stack.copy_from_journal(connection, owner.run_id))
    carried = top(stage, owner)
    assert carried is not None
    assert carried.value is None


def test_an_outcome_completes_the_frame_of_its_own_generation(stage: Stage, owner: Owner) -> None:
    for generation in (0, 1):
        push(stage, owner, "1", journaled=False, state=FrameState.ARMED, args="{}", key_generation=generation)
    owner.write(lambda connection, seq: stack.store_result(connection, owner.run_id, StepPath("1"), 1, "42"))
    owner.write(lambda connection, seq: stack.complete(connection, owner.run_id, StepPath("1"), 1, seq))
    with stage.store.read() as connection:
        found = stack.of_run(connection, owner.run_id)
    assert [(frame.key_generation, frame.state, frame.value) for frame in found] == [
        (1, FrameState.OWED, "42"),
        (0, FrameState.ARMED, None),
    ]


def test_a_person_settles_the_frame_of_the_generation_that_is_undone(stage: Stage, owner: Owner) -> None:
    for generation in (0, 1):
        push(stage, owner, "1", journaled=False, args="{}", value="1", key_generation=generation)
    with stage.store.write() as connection:
        stack.pop_step(connection, owner.run_id, "1", 1, FrameState.SKIPPED, "lost")
        stack.pop_step(connection, owner.run_id, "1", 1, FrameState.SKIPPED, "lost again")
        frames = stack.of_run(connection, owner.run_id)
    assert [(frame.key_generation, frame.note) for frame in frames] == [(1, "lost"), (0, None)]


def test_a_childs_frame_stands_where_the_child_ended(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1")
    ended = owner.seq
    push(stage, owner, "2")
    for _ in range(2):  # the second one finds it there

        def then(connection: Connection, seq: int) -> None:
            stack.push_child(
                *(connection, owner.run_id, seq, StepPath("3"), "", "order", RunId("child")),
                at=AT,
                key_generation=0,
                after=(ended, 0),
            )

        owner.write(then)
    assert paths(stage, owner) == ["2", "3", "1"]


def test_late_effects_are_undone_alone_where_only_they_are_asked_for(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1")
    push(stage, owner, "2", state=FrameState.LATE, value="2")
    push(stage, owner, "3")
    assert paths(stage, owner, late=True) == ["2"]
    assert paths(stage, owner) == ["3", "1"]


@pytest.mark.parametrize("state", FrameState)
def test_what_is_owed_armed_or_late_is_pending_and_nothing_else(stage: Stage, owner: Owner, state: FrameState) -> None:
    push(stage, owner, "1", state=state)
    assert (top(stage, owner) is not None) == (state in PENDING)


def armed(stage: Stage, owner: Owner) -> set[str]:
    return {*run_records.load(stage.store, [stage.row(owner.run_id)])[owner.run_id].armed}


def test_an_armed_frame_does_not_know_a_result(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1", journaled=False, state=FrameState.ARMED, args='{"n": 1}')
    frame = top(stage, owner)
    assert frame is not None
    assert (frame.state, frame.args, frame.value) == (FrameState.ARMED, '{"n": 1}', None)
    assert armed(stage, owner) == {"1"}


def test_an_armed_frame_is_owed_on_top_once_its_activity_completed(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1", journaled=False, state=FrameState.ARMED, args='{"n": 1}')
    push(stage, owner, "2")

    def complete(connection: Connection, seq: int) -> None:
        journal_in(connection, owner, seq, an_entry("1", value="42"))
        stack.complete(connection, owner.run_id, StepPath("1"), 0, seq)

    owner.write(complete)
    frame = top(stage, owner)
    assert frame is not None
    assert (frame.path, frame.state, frame.value) == ("1", FrameState.OWED, "42")
    assert armed(stage, owner) == set()
    assert paths(stage, owner) == ["1", "2"]


def test_completing_touches_no_frame_that_was_settled(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1", state=FrameState.UNDONE)
    owner.write(lambda connection, seq: stack.complete(connection, owner.run_id, StepPath("1"), 0, seq))
    assert top(stage, owner) is None


def test_a_settled_frame_keeps_its_note_and_its_time(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1")
    push(stage, owner, "2")
    with stage.store.write() as connection:
        stack.pop_step(connection, owner.run_id, "1", None, FrameState.DONE, "by phone")
        frames = stack.of_run(connection, owner.run_id)
    assert not any_skipped(owner)
    assert [(frame.path, frame.state, frame.note) for frame in frames] == [
        ("2", FrameState.OWED, None),
        ("1", FrameState.DONE, "by phone"),
    ]
    assert frames[1].settled_at is not None


def test_a_frame_that_a_person_let_go_is_remembered(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1")
    with stage.store.write() as connection:
        stack.pop_step(connection, owner.run_id, "1", None, FrameState.SKIPPED, "lost")
    assert any_skipped(owner)
    assert top(stage, owner) is None


def test_settling_a_step_by_hand_leaves_what_was_undone(stage: Stage, owner: Owner) -> None:
    push(stage, owner, "1", state=FrameState.UNDONE)
    with stage.store.write() as connection:
        stack.pop_step(connection, owner.run_id, "1", None, FrameState.SKIPPED, "late")
    assert not any_skipped(owner)


def test_which_undos_are_owed_is_found_without_looking_at_what_has_ended(stage: Stage) -> None:
    """A dispatcher asks when it begins, and there may be millions of ended runs. Of few, PostgreSQL reads all."""
    live, family = stage.owned(stage.lease()), stage.owned(stage.lease())
    for owner in (live, family):
        push(stage, owner, "1")
    stage.change(family.run_id, root_id=live.run_id, parent_id=live.run_id, status="completed", ended_as="completed")
    ended = [stage.new() for _ in range(10_000)]
    over = {"status": "completed", "ended_as": "completed", "created_at": AT, "updated_at": AT}
    rows = [{"id": new.id, "namespace": new.namespace, "flow": new.flow, "version": 1, "args": "{}"} for new in ended]
    frame = {**stack.fields(StepPath("1"), "", "charge", "refund", at=AT), "seq": 1}
    with stage.store.write() as connection:
        connection.execute(insert(tables.runs), [{**row, **over, "root_id": row["id"]} for row in rows])
        connection.execute(insert(tables.frames), [{**frame, "run_id": row["id"]} for row in rows])
        connection.exec_driver_sql("ANALYZE")
    asked: list[tuple[str, Any]] = []

    def keep(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        asked.append((statement, parameters))

    event.listen(stage.store.engine, "before_cursor_execute", keep)
    with stage.store.read() as connection:
        # The completed child of a run that goes on is undone with it.
        assert stack.compensators_in_use(connection, stage.namespace, [("order", 1)]) == [("charge", "refund", 2)]
    event.remove(stage.store.engine, "before_cursor_execute", keep)
    assert examined(stage, *asked[-1]) < 100


def examined(stage: Stage, statement: str, parameters: Any) -> float:
    """How many rows a statement goes through; infinitely many if it goes through a whole table."""
    if stage.store.dialect == "sqlite":
        with stage.store.read() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        return float("inf") if any(str(row[-1]).startswith("SCAN aft_") for row in plan) else 0.0
    with stage.store.read() as connection:
        found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
    return _rows(found[0]["Plan"])


def _rows(node: dict[str, Any]) -> float:
    here = sum(node.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"))
    return float(here * node["Actual Loops"]) + sum(map(_rows, node.get("Plans", ())))
