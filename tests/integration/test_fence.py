"""The fence: of an owner that writes and a rescuer that takes the run away, one is first, and the other knows.

The controls replace the fence by a check that reads a snapshot (``WHERE EXISTS (SELECT … epoch …)``), and show that the
same races then let a stale owner write into a run that was taken over: these tests can fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, text

from aft.ids import StepPath
from aft.runs.ownership import owner
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_writes import FencedWrite
from aft.runs.ownership.rescue import rescue_expired
from aft.runs.records import journal
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.store import Store
from tests.setups import eventually
from tests.storing import Stage, journal_in

PATIENCE = 60


@dataclass(frozen=True)
class Race:
    """How a race went: did the owner write, what had it recorded when it was taken over, and in the end."""

    written: bool
    at_takeover: list[str]
    at_the_end: list[str]
    epoch: int

    @property
    def stale_write(self) -> bool:
        """Something was recorded after the run had been taken over, which its new owner never saw."""
        return self.at_the_end != self.at_takeover


@pytest.fixture
def stage(migrated_url: str) -> Iterator[Stage]:
    made = Stage(Store(migrated_url))
    yield made
    made.close()


@pytest.fixture
def run(stage: Stage) -> Owner:
    """A run whose worker's lease is over, and which does not know it."""
    found = stage.owned(stage.lease())
    assert found.worker is not None
    stage.expire(found.worker)
    return found


@pytest.fixture
def naive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the epoch as one would at first: in a statement that locks nothing."""

    def execute(connection: Connection, item: FencedWrite) -> int:
        statement = text(
            "SELECT inbox_seq FROM aft_runs WHERE id = :id AND EXISTS "
            "(SELECT 1 FROM aft_runs WHERE id = :id AND epoch = :epoch AND worker_id = :worker)"
        )
        ours = {"id": item.run_id, "epoch": item.epoch, "worker": item.worker}
        row = connection.execute(statement, ours).one_or_none()
        if row is None:
            raise Fenced("no longer ours")
        return int(row.inbox_seq)

    monkeypatch.setattr(owner, "execute", execute)


def recorded(stage: Stage, run: Owner) -> list[str]:
    with stage.store.read() as connection:
        return [entry.path for entry in journal.load(connection, run.run_id)]


def write(run: Owner, between: Callable[[], object]) -> bool:
    """Record an outcome as the run's owner; ``between`` the check and the writing something else may happen."""
    entry = Entry(StepPath("1"), "", EntryKind.ACTIVITY, "charge", Outcome.OK, datetime.now(UTC), value="1")

    def then(connection: Connection, seq: int) -> None:
        between()
        journal_in(connection, run, seq, entry)

    try:
        run.write(then)
    except Fenced:
        return False
    return True


def rescue(stage: Stage, connection: Connection) -> bool:
    return bool(rescue_expired(connection, stage.namespace, stage.clock.now(), 10)[0])


def is_waiting(stage: Stage) -> bool:
    """Whether some transaction waits for another one's lock."""
    statement = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with stage.store.read() as connection:
        return bool(connection.execute(statement).scalar())


def owner_first(stage: Stage, run: Owner) -> Race:
    """The owner has passed the fence and pauses; meanwhile the rescuer comes."""
    inside, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        inside.set()
        assert go_on.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        writing: Future[bool] = pool.submit(write, run, pause)
        try:
            assert inside.wait(PATIENCE)
            with stage.store.write() as connection:
                taken = rescue(stage, connection)
            at_takeover = recorded(stage, run) if taken else None
        finally:
            go_on.set()
        written = writing.result(PATIENCE)
    if at_takeover is None:
        with stage.store.write() as connection:
            assert rescue(stage, connection)
        at_takeover = recorded(stage, run)
    return Race(written, at_takeover, recorded(stage, run), stage.row(run.run_id).epoch)


def rescuer_first(stage: Stage, run: Owner) -> Race:
    """The rescuer has taken the run and has not committed yet; meanwhile the owner checks, and then writes."""
    checked, taken = threading.Event(), threading.Event()

    def pause() -> None:
        checked.set()
        assert taken.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        with stage.store.write() as connection, stage.store.lend(connection):
            assert rescue(stage, connection)
            writing: Future[bool] = pool.submit(write, run, pause)
            eventually(lambda: checked.is_set() or is_waiting(stage), within=PATIENCE)
        at_takeover = recorded(stage, run)
        taken.set()
        written = writing.result(PATIENCE)
    return Race(written, at_takeover, recorded(stage, run), stage.row(run.run_id).epoch)


def test_an_owner_that_is_inside_finishes_before_the_run_is_taken_over(stage: Stage, run: Owner) -> None:
    assert owner_first(stage, run) == Race(written=True, at_takeover=["1"], at_the_end=["1"], epoch=run.epoch + 1)


def test_an_owner_that_comes_after_the_rescuer_writes_nothing(stage: Stage, run: Owner) -> None:
    assert rescuer_first(stage, run) == Race(written=False, at_takeover=[], at_the_end=[], epoch=run.epoch + 1)


def test_an_owner_that_was_taken_over_stays_out(stage: Stage, run: Owner) -> None:
    owner_first(stage, run)
    assert not write(run, lambda: None)
    assert recorded(stage, run) == ["1"]


@pytest.mark.usefixtures("naive")
@pytest.mark.parametrize("race", [owner_first, rescuer_first])
def test_control_without_the_lock_a_stale_owner_writes_into_a_run_that_was_taken_over(
    stage: Stage, run: Owner, race: Callable[[Stage, Owner], Race]
) -> None:
    found = race(stage, run)
    assert found.written
    assert found.stale_write
    assert found.epoch == run.epoch + 1


@pytest.mark.parametrize("race", [owner_first, rescuer_first])
def test_with_the_lock_the_same_races_leave_no_stale_write(
    stage: Stage, run: Owner, race: Callable[[Stage, Owner], Race]
) -> None:
    assert not race(stage, run).stale_write
