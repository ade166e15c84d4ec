"""Claims about outcomes that are held back: each is written in time, once, and shares the commit of the run's end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select

from aft.errors import StoreError
from aft.ids import StepPath
from aft.runs.ownership import held_writes
from aft.runs.ownership.held_writes import HeldWrite, HeldWrites
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_writes import NO_OWNER, OwnerWrite, Recording
from aft.runs.records import journal
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status
from aft.store import Store
from aft.store.batch.statements import PreparedQuery
from aft.store.tables import runs
from aft.telemetry import logger
from tests.integration.test_owner import lose_by_claim, lose_by_rescue
from tests.setups import eventually
from tests.storing import Stage, recording


@dataclass
class Held:
    """An outcome that is held back, and what became of it."""

    owner: Owner
    told: list[str] = field(default_factory=list)

    def hold(self, path: str = "1") -> HeldWrite:
        write = self.make(path)
        self.owner.hold(write)
        return write

    def make(self, path: str = "1") -> HeldWrite:
        entry = Entry(StepPath(path), "", EntryKind.ACTIVITY, "charge", Outcome.OK, datetime.now(UTC), value="1")
        return HeldWrite(
            recording(self.owner, entry).write,
            lambda: self.told.append(f"{path} committed"),
            lambda: self.told.append(f"{path} refused"),
        )


COUNTED = PreparedQuery.about("SELECT seq FROM aft_journal WHERE run_id {among}")
END = OwnerWrite(changes={**NO_OWNER, "status": Status.COMPLETED, "result": "1"}, ends=True)


def nothing(connection: Connection, seq: int) -> None:
    """Write nothing."""


def paths(stage: Stage, owner: Owner) -> list[str]:
    """The outcomes that are committed."""
    with stage.store.read() as connection:
        return [str(entry.path) for entry in journal.load(connection, owner.run_id)]


def committed(stage: Stage, owner: Owner) -> int:
    """How many writes of the owner are committed."""
    with stage.store.read() as connection:
        return int(connection.execute(select(runs.c.seq).where(runs.c.id == owner.run_id)).scalar_one())


def share_end(owner: Owner) -> None:
    assert owner.share(END, read_to=0) is not None


def write_end(owner: Owner) -> None:
    owner.write(Recording(END, nothing))


@pytest.mark.parametrize("end", [share_end, write_end])
def test_the_end_takes_the_outcome_along_in_one_commit(stage: Stage, end: Callable[[Owner], None]) -> None:
    held = Held(stage.owned(stage.lease()))
    held.hold()
    before = committed(stage, held.owner)
    assert paths(stage, held.owner) == []
    assert held.told == []
    end(held.owner)
    assert paths(stage, held.owner) == ["1"]
    assert committed(stage, held.owner) == before + 1
    assert stage.row(held.owner.run_id).status is Status.COMPLETED
    assert held.told == ["1 committed"]


WRITES: dict[str, Callable[[Owner], Any]] = {
    "a write in a transaction": lambda owner: owner.write(nothing),
    "a write that may share": lambda owner: owner.share(OwnerWrite(changes={"status": Status.RECOVERING})),
    "a read": lambda owner: owner.read(lambda connection: None),
    "the end of its execution": Owner.finish,
}


@pytest.mark.parametrize("what", WRITES)
def test_whatever_the_owner_does_next_comes_after_the_outcome(stage: Stage, what: str) -> None:
    held = Held(stage.owned(stage.lease()))
    held.hold()
    WRITES[what](held.owner)
    assert paths(stage, held.owner) == ["1"]
    assert held.told == ["1 committed"]
    held.hold("2")
    held.hold("3")
    assert paths(stage, held.owner) == ["1", "2"]


def test_an_outcome_that_nothing_follows_is_written_in_a_moment(stage: Stage) -> None:
    writes = HeldWrites()
    for _ in range(2):  # its thread has gone to sleep before the second time
        held = [Held(stage.owned(stage.lease())) for _ in range(3)]
        for each in held:
            writes.watch(each.owner, each.hold())
        eventually(partial(_all_written, stage, held))


def _all_written(stage: Stage, held: list[Held]) -> bool:
    return all(paths(stage, each.owner) == ["1"] for each in held)


@pytest.mark.parametrize("lose", [lose_by_claim, lose_by_rescue])
def test_an_outcome_of_an_owner_that_has_lost_the_run_is_refused_once(stage: Stage, lose: Any) -> None:
    held = Held(stage.owned(stage.lease()))
    held.hold()
    lose(stage, held.owner)
    with pytest.raises(Fenced):
        write_end(held.owner)
    assert held.told == ["1 refused"]
    with pytest.raises(Fenced):
        write_end(held.owner)
    held.owner.finish()
    assert held.told == ["1 refused"]
    assert paths(stage, held.owner) == []


def test_an_outcome_stays_held_back_while_the_end_has_to_be_tried_again(stage: Stage) -> None:
    """An inbox that has grown refuses the end; the next pass over the flow's code reads the outcome."""
    held = Held(stage.owned(stage.lease()))
    held.hold()
    stage.change(held.owner.run_id, inbox_seq=1)
    assert held.owner.share(END, read_to=0) is None

    def refuse(connection: Connection, seq: int) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        held.owner.write(Recording(END, refuse))
    assert held.told == []
    assert held.owner.read(lambda connection: len(journal.load(connection, held.owner.run_id))) == 1
    assert held.told == ["1 committed"]


def test_an_end_whose_answer_was_lost_is_looked_up_with_its_outcome(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(stage.owned(stage.lease()))
    held.hold()
    real = stage.store.commit

    def lose_answer(*given: Any) -> Any:
        real(*given)
        raise StoreError("away", transient=True)

    monkeypatch.setattr(stage.store, "commit", lose_answer)
    assert held.owner.share(END, read_to=0) is None
    write_end(held.owner)
    assert paths(stage, held.owner) == ["1"]
    assert stage.row(held.owner.run_id).status is Status.COMPLETED
    assert held.told == ["1 committed"]


def test_an_end_that_cannot_be_written_leaves_the_outcome(stage: Stage) -> None:
    held = Held(stage.owned(stage.lease()))
    held.hold()

    def refuse(connection: Connection, seq: int) -> None:
        raise StoreError("too large", transient=False)

    with pytest.raises(StoreError, match="too large"):
        held.owner.write(Recording(END, refuse))
    assert held.told == ["1 committed"]
    assert paths(stage, held.owner) == ["1"]
    assert stage.row(held.owner.run_id).status is Status.RUNNING


def test_a_refusal_on_another_thread_is_left_to_the_run_s_own(stage: Stage) -> None:
    held = Held(stage.owned(stage.lease()))
    write = held.hold()
    lose_by_rescue(stage, held.owner)
    write_overdue((held.owner, write))
    assert held.told == []
    with pytest.raises(Fenced):
        held.owner.read(lambda connection: None)
    assert held.told == ["1 refused"]


@dataclass
class Away:
    """A database that does not answer commits, before or after it has committed them."""

    store: Store
    monkeypatch: pytest.MonkeyPatch
    loses_answers: bool = False

    def __enter__(self) -> None:
        self.monkeypatch.setattr(self.store, "write_now", partial(self._commit, self.store.write_now))

    def __exit__(self, *error: object) -> None:
        self.monkeypatch.undo()

    def _commit(self, real: Callable[..., Any], *given: Any) -> Any:
        if self.loses_answers:
            real(*given)
        raise StoreError("away", transient=True)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("end", [share_end, write_end])
def test_an_end_after_a_write_of_unknown_outcome_is_not_taken_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, end: Callable[[Owner], None], lost: bool
) -> None:
    held = Held(stage.owned(stage.lease()))
    write = held.hold()
    with Away(stage.store, monkeypatch, lost):
        write_overdue((held.owner, write))
    end(held.owner)
    assert paths(stage, held.owner) == ["1"]
    assert stage.row(held.owner.run_id).status is Status.COMPLETED
    assert held.told == ["1 committed"]


def test_what_another_thread_could_not_write_it_tries_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(stage.owned(stage.lease()))
    tried = threading.Event()
    real = stage.store.write_now

    def fail_once(*given: Any) -> Any:
        if not tried.is_set():
            tried.set()
            raise StoreError("away", transient=True)
        return real(*given)

    monkeypatch.setattr(stage.store, "write_now", fail_once)
    HeldWrites().watch(held.owner, held.hold())
    assert tried.wait(20)
    eventually(lambda: paths(stage, held.owner) == ["1"])


@dataclass
class Slow:
    """A commit of outcomes that are overdue, which goes on when it is let."""

    store: Store
    began: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def write(self, real: Callable[..., Any], *given: Any) -> Any:
        self.began.set()
        assert self.may_end.wait(20)
        return real(*given)


@pytest.fixture
def slow(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Slow:
    found = Slow(stage.store)
    monkeypatch.setattr(stage.store, "write_now", partial(found.write, stage.store.write_now))
    return found


def write_overdue(*owed: tuple[Owner, HeldWrite]) -> None:
    """Write what is overdue, as the thread that does so for all runs."""
    held_writes.write_overdue([held_writes.Try(*each) for each in owed])


def _write_held(owner: Owner) -> int:
    owner.write_held()
    return 1


READS: dict[str, Callable[[Owner], Any]] = {
    "read": lambda owner: owner.read(lambda connection: len(journal.load(connection, owner.run_id))),
    "query": lambda owner: len(owner.query([(COUNTED, json.dumps([owner.run_id]))])[0]),
    "write": _write_held,
}


@pytest.mark.parametrize("what", READS)
def test_who_reads_while_another_thread_writes_the_outcome_finds_it(stage: Stage, slow: Slow, what: str) -> None:
    held = Held(stage.owned(stage.lease()))
    writer = threading.Thread(target=write_overdue, args=[(held.owner, held.hold())])
    writer.start()
    assert slow.began.wait(20)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(READS[what], held.owner)
        with pytest.raises(TimeoutError):
            found.result(0.05)
        slow.may_end.set()
        assert found.result(20) == 1
    writer.join()
    assert paths(stage, held.owner) == ["1"]


def test_another_thread_does_not_wait_for_the_run_s_own(stage: Stage) -> None:
    held = Held(stage.owned(stage.lease()))
    write = held.hold()
    with held.owner.lock, ThreadPoolExecutor(1) as pool:
        pool.submit(write_overdue, (held.owner, write)).result(20)
    assert not write.is_over
    write_overdue((held.owner, write))
    assert paths(stage, held.owner) == ["1"]


def test_what_waits_for_an_outcome_is_called_by_the_run_s_own_thread_without_its_lock(stage: Stage) -> None:
    owner, called = stage.owned(stage.lease()), list[tuple[int, bool]]()

    def note() -> None:
        with ThreadPoolExecutor(1) as pool:
            called.append((threading.get_ident(), pool.submit(_is_free, owner.lock).result(20)))

    held = replace(Held(owner).make(), committed=note)
    owner.hold(held)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_overdue, (owner, held)).result(20)
    assert called == []
    owner.write(nothing)
    assert called == [(threading.get_ident(), True)]


def _is_free(lock: Any) -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return True
    return False


def test_what_is_overdue_shares_one_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Held(stage.owned(stage.lease())) for _ in range(5)]
    commits: list[int] = []
    real = stage.store.write_now

    def count(kind: Any, items: list[Any]) -> Any:
        commits.append(len(items))
        return real(kind, items)

    monkeypatch.setattr(stage.store, "write_now", count)
    write_overdue(*((each.owner, each.hold()) for each in held))
    assert commits == [5]
    assert _all_written(stage, held)


def test_a_run_that_is_locked_does_not_hold_up_the_others(stage: Stage) -> None:
    if stage.store.file is not None:
        return  # SQLite locks no rows
    locked, *others = [Held(stage.owned(stage.lease())) for _ in range(3)]
    owed = [(each.owner, each.hold()) for each in (locked, *others)]
    with stage.store.write() as connection:
        connection.execute(select(runs.c.id).where(runs.c.id == locked.owner.run_id).with_for_update())
        write_overdue(*owed)
        assert _all_written(stage, others)
        assert paths(stage, locked.owner) == []
    write_overdue(*owed)
    assert paths(stage, locked.owner) == ["1"]


def test_one_that_cannot_be_written_does_not_spoil_the_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt, *others = [Held(stage.owned(stage.lease())) for _ in range(3)]
    real = stage.store.write_now

    def refuse(kind: Any, items: list[Any]) -> Any:
        if any(item.run_id == spoilt.owner.run_id for item in items):
            raise StoreError("a trigger says no", transient=False)
        return real(kind, items)

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "write_now", refuse)
        write_overdue(*((each.owner, each.hold()) for each in (spoilt, *others)))
    assert _all_written(stage, others)
    assert paths(stage, spoilt.owner) == []
    share_end(spoilt.owner)
    assert paths(stage, spoilt.owner) == ["1"]


def test_an_end_whose_answer_was_lost_is_left_to_the_run_s_own_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(stage.owned(stage.lease()))
    write, real = held.hold(), stage.store.commit

    def lose_answer(*given: Any) -> Any:
        real(*given)
        raise StoreError("away", transient=True)

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "commit", lose_answer)
        assert held.owner.share(END, read_to=0) is None
    write_overdue((held.owner, write))
    write_end(held.owner)
    assert stage.row(held.owner.run_id).status is Status.COMPLETED
    assert held.told == ["1 committed"]


def test_the_thread_ends_when_nothing_is_held_back_and_begins_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_writes, "IDLE", 0.01)
    before, writes = set(threading.enumerate()), HeldWrites()
    for _ in range(2):
        held = Held(stage.owned(stage.lease()))
        writes.watch(held.owner, held.hold())
        eventually(partial(_all_written, stage, [held]))
        eventually(lambda: not [one for one in set(threading.enumerate()) - before if one.name == "aft-held-writes"])


class Raises(logging.Filter):
    """A filter of the user's that fails."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError(record.getMessage())


def test_a_failure_of_the_user_s_logging_leaves_no_lock_and_the_next_outcome_is_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda *given: None)
    held, writes = [Held(stage.owned(stage.lease())) for _ in range(2)], HeldWrites()
    failed = threading.Event()

    def fail(*given: Any) -> Any:
        failed.set()
        raise RuntimeError("a defect")

    fails = Raises()
    logger.addFilter(fails)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(stage.store, "write_now", fail)
            writes.watch(held[0].owner, held[0].hold())
            assert failed.wait(20)
            eventually(lambda: writes._thread is None)
    finally:
        logger.removeFilter(fails)
    held[0].owner.write_held()
    writes.watch(held[1].owner, held[1].hold())
    eventually(partial(_all_written, stage, held))
