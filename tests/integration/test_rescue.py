"""Claims about rescuing: runs of workers that are gone are taken away, once, as aborts; nobody else's are touched."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, select, text, update

from aft import names
from aft.errors import OrderRefused, StoreError
from aft.fault import FaultKind, FaultState, Recoverability
from aft.ids import RunId, StepPath, WorkerId
from aft.recovery import takeover as takeover_module
from aft.recovery.takeover import Takeover
from aft.runs.orders import by_hand
from aft.runs.ownership.claims import claim, find_due
from aft.runs.ownership.executing_runs import ExecutingRuns, Expect
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_writes import NO_PROGRESS
from aft.runs.ownership.rescue import MOST_LAPSES, WARM_UP, rescue_expired, rescue_orphans
from aft.runs.records import audit
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.store.leases import Lease, end_leases
from aft.store.tables import outbox, runs, workers
from aft.telemetry import RunRescued, WorkerDied
from tests.setups import eventually
from tests.storing import KNOWN, Stage, actor, at_once, recording


def rescue(stage: Stage, limit: int = 100) -> list[RunId]:
    with stage.store.write() as connection:
        events, _ = rescue_expired(connection, stage.namespace, stage.clock.now(), limit)
    return [RunId(event.run) for event in events]


def nothing(connection: Any, seq: int) -> None:
    """Write nothing more."""


def test_the_run_of_a_worker_that_is_gone_is_taken_away(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    assert owner.worker is not None
    stage.expire(owner.worker)
    with stage.store.write() as connection:
        events, written = rescue_expired(connection, stage.namespace, stage.clock.now(), 10)
    row = stage.row(owner.run_id)
    assert events == [
        RunRescued(run=owner.run_id, flow="order", worker=owner.worker, fault=stage.faults(owner.run_id)[0].id)
    ]
    assert (row.worker_id, row.epoch, row.wake_id, row.status) == (None, owner.epoch + 1, None, Status.RECOVERING)
    assert row.deaths == 1
    assert [message.queue for message in written] == [names.faults(stage.namespace)] == stage.posted()


def test_what_is_left_is_an_abort_that_counts_deaths_and_no_failure(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    assert owner.worker is not None
    stage.expire(owner.worker)
    rescue(stage)
    (fault,) = stage.faults(owner.run_id)
    assert (fault.kind, fault.state, fault.attempt, fault.path) == (FaultKind.ABORT, FaultState.OPEN, 1, None)
    assert (fault.epoch, fault.own_answer) == (owner.epoch + 1, Recoverability.RECOVERABLE)


def test_its_message_is_held_for_the_rescuer_to_publish(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    assert owner.worker is not None
    stage.expire(owner.worker)
    rescue(stage)
    with stage.store.read() as connection:
        taken = connection.execute(select(outbox.c.taken_until).where(outbox.c.namespace == stage.namespace)).scalar()
    assert taken is not None
    assert taken > stage.clock.now()


def test_the_run_of_a_worker_that_lives_is_left_alone(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    before = stage.row(owner.run_id)
    assert rescue(stage) == []
    assert stage.row(owner.run_id) == before


def test_a_run_without_owner_is_left_alone(stage: Stage) -> None:
    run = stage.queued()
    stage.expire(stage.lease().worker)
    assert rescue(stage) == []
    assert stage.row(run.id) == run


def test_runs_of_another_namespace_are_left_alone(stage: Stage) -> None:
    owner = stage.owned(stage.lease(), namespace=stage.namespace + "x")
    assert owner.worker is not None
    stage.expire(owner.worker)
    assert rescue(stage) == []


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        ("running", "recovering"),
        ("waiting", "recovering"),
        ("compensating", "compensating"),
        ("completed", "completed"),
        ("compensated", "compensated"),
        ("failed", "failed"),
    ],
)
def test_what_was_being_undone_or_had_ended_stays_so(stage: Stage, status: str, kept: str) -> None:
    owner = stage.owned(stage.lease())
    assert owner.worker is not None
    stage.change(owner.run_id, status=status)
    stage.expire(owner.worker)
    rescue(stage)
    assert stage.row(owner.run_id).status.value == kept


def test_no_more_are_rescued_than_one_round_may(stage: Stage) -> None:
    lease = stage.lease()
    made = {stage.owned(lease).run_id for _ in range(5)}
    stage.expire(lease.worker)
    first = rescue(stage, limit=3)
    assert len(first) == 3
    assert {*first, *rescue(stage)} == made


def test_of_many_sweepers_that_come_at_once_one_rescues(stage: Stage) -> None:
    lease = stage.lease()
    made = {stage.owned(lease).run_id for _ in range(6)}
    stage.expire(lease.worker)
    found = at_once([lambda: rescue(stage)] * 4)
    taken = [run_id for ids in found for run_id in ids]
    assert len(taken) == len(set(taken))
    assert {*taken, *rescue(stage)} == made
    assert {stage.row(run_id).epoch for run_id in made} == {2}
    assert all(len(stage.faults(run_id)) == 1 for run_id in made)


def test_an_owner_that_was_not_dead_after_all_writes_nothing_more(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    assert owner.worker is not None
    owner.write(nothing)
    stage.expire(owner.worker)
    rescue(stage)
    with pytest.raises(Fenced):
        owner.write(nothing)


def test_the_run_of_a_worker_that_nobody_knows_any_more_is_rescued_too(stage: Stage) -> None:
    """A process slept so long that its row was pruned; it wakes and starts a run before its heart beats again."""
    lease = stage.lease()
    with stage.store.write() as connection:
        connection.execute(delete(workers).where(workers.c.id == lease.worker))
    owner, waiting = stage.owned(lease), stage.queued(timedelta(0))
    with stage.store.write() as connection:
        due = find_due(connection, stage.namespace, KNOWN, 1)
        assert claim(connection, stage.namespace, lease.worker, due, KNOWN) == []
    assert rescue(stage) == [owner.run_id]
    assert stage.row(waiting.id).worker_id is None


# --- orphans of a living worker ---


def orphans(stage: Stage, holdings: ExecutingRuns, worker: WorkerId) -> list[RunId]:
    with stage.store.read() as connection:
        return [run_id for run_id, _ in holdings.orphans(connection, worker)]


def claim_one(stage: Stage, holdings: ExecutingRuns, lease: Lease) -> RunRow:
    """Claim a new run as a worker does: expected before the claim commits."""

    def claim(expect: Expect) -> list[RunRow]:
        row = stage.owned(lease).run
        expect([row.id])
        return [row]

    (row,) = holdings.claim(claim)
    return row


def test_a_run_that_is_owned_and_executed_is_no_orphan(stage: Stage) -> None:
    lease, holdings = stage.lease(), ExecutingRuns()
    row = claim_one(stage, holdings, lease)
    assert orphans(stage, holdings, lease.worker) == []
    holdings.unregister(row.id)
    assert orphans(stage, holdings, lease.worker) == [row.id]


def test_a_claim_whose_commit_had_no_answer_leaves_an_orphan(stage: Stage) -> None:
    lease, holdings = stage.lease(), ExecutingRuns()

    def claim_and_hear_nothing(expect: Expect) -> Any:
        expect([stage.owned(lease).run_id])
        raise ConnectionError

    with pytest.raises(ConnectionError):
        holdings.claim(claim_and_hear_nothing)
    assert len(orphans(stage, holdings, lease.worker)) == 1


def test_orphans_are_rescued_and_what_others_own_is_not(stage: Stage) -> None:
    lease, other = stage.lease(), stage.lease()
    orphan, theirs = stage.owned(lease), stage.owned(other)
    with stage.store.write() as connection:
        events = rescue_orphans(
            connection,
            stage.namespace,
            stage.clock.now(),
            lease.worker,
            [(orphan.run_id, orphan.epoch), (theirs.run_id, theirs.epoch)],
        )
    assert [event.run for event in events] == [orphan.run_id]
    assert stage.row(theirs.run_id).worker_id == other.worker


def test_a_run_that_comes_back_before_its_thread_has_ended_is_no_orphan(stage: Stage) -> None:
    """Its first execution has raised a fault and let the run go; the run is claimed again, by this very process, and
    only then does the first execution's thread say that it is through."""
    lease, holdings = stage.lease(), ExecutingRuns()
    row = claim_one(stage, holdings, lease)
    stage.change(row.id, worker_id=None, wake_id="again")

    def again(expect: Expect) -> Any:
        expect([row.id])
        with stage.store.write() as connection:
            return claim(connection, stage.namespace, lease.worker, [(row.id, "again")], KNOWN)

    assert holdings.claim(again)
    holdings.unregister(row.id)
    assert orphans(stage, holdings, lease.worker) == []


# --- deaths ---


def lose(stage: Stage, row: RunRow, rescue: Callable[[], object]) -> RunRow:
    """Let a worker take the run, alone if it must be, and lose its lease; returns the run as its next one finds it."""
    lease = stage.lease()
    with stage.store.write() as connection:
        (claimed,) = claim(
            connection, stage.namespace, lease.worker, [(row.id, row.wake_id or "")], KNOWN, alone=row.deaths >= 2
        )
    stage.expire(lease.worker)
    rescue()
    stage.change(claimed.id, wake_id="again")
    return stage.row(claimed.id)


def die(stage: Stage, row: RunRow) -> RunRow:
    """Let a worker die on the run."""
    return lose(stage, row, lambda: rescue(stage))


def test_two_deaths_are_shared_and_those_after_it_died_on_alone(stage: Stage) -> None:
    row = stage.queued()
    seen = []
    for _ in range(4):
        row = die(stage, row)
        seen.append(row.deaths)
    assert seen == [1, 2, 2, 2]
    assert [fault.attempt for fault in stage.faults(row.id)] == [1, 2, 3, 4]


@pytest.mark.parametrize("deaths", [0, 1, 2, 3])
def test_a_run_that_must_be_alone_is_claimed_by_nobody_who_is_not(stage: Stage, deaths: int) -> None:
    row = stage.queued(timedelta(0))
    stage.change(row.id, deaths=deaths)
    lease, wakes = stage.lease(), [(row.id, row.wake_id or "")]
    with stage.store.write() as connection:
        assert bool(find_due(connection, stage.namespace, KNOWN, 5)) == (deaths < 2)
        assert bool(find_due(connection, stage.namespace, KNOWN, 5, alone=True)) == (deaths >= 2)
        claimed = claim(connection, stage.namespace, lease.worker, wakes, KNOWN, alone=deaths < 2)
        assert claimed == []
        assert len(claim(connection, stage.namespace, lease.worker, wakes, KNOWN, alone=deaths >= 2)) == 1


def test_whoever_has_written_anything_has_no_deaths_behind_it(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    stage.change(owner.run_id, deaths=2, deaths_alone=2)
    owner.write(nothing)
    assert stage.row(owner.run_id).deaths == 0


def test_a_run_taken_away_by_hand_is_an_abort_without_a_death_and_on_record(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    with stage.store.write() as connection:
        by_hand.take_from_worker(connection, stage.row(owner.run_id), actor("ann", "it hangs"))
    row = stage.row(owner.run_id)
    assert (row.worker_id, row.epoch, row.deaths) == (None, owner.epoch + 1, 0)
    (fault,) = stage.faults(owner.run_id)
    assert (fault.kind, fault.attempt) == (FaultKind.ABORT, 0)
    assert fault.message == f"ann took it away from its worker {owner.worker}"
    with stage.store.read() as connection:
        assert [(deed.actor, deed.action, deed.note) for deed in audit.of_run(connection, owner.run_id)] == [
            ("ann", "release", "it hangs")
        ]
    with pytest.raises(Fenced):
        owner.write(nothing)
    with stage.store.write() as connection, pytest.raises(OrderRefused, match="has no worker"):
        by_hand.take_from_worker(connection, row, actor("bob"))


def test_the_end_of_a_lease_by_hand_takes_all_its_runs_away(stage: Stage) -> None:
    lease, other = stage.lease(), stage.lease()
    owners, spared = [stage.owned(lease) for _ in range(3)], stage.owned(other)
    with stage.store.write() as connection:
        taken = by_hand.take_all_from_worker(connection, stage.namespace, lease.worker, actor("ann", "old"))
    assert set(taken) == {owner.run_id for owner in owners}
    assert stage.row(spared.run_id).worker_id == other.worker
    before = lease.worker
    lease.renew()
    assert lease.worker != before


def test_a_lease_that_ran_out_is_no_death_of_a_worker_that_is_seen_to_live(stage: Stage) -> None:
    lease = stage.lease()
    owner = stage.owned(lease)
    stage.expire(lease.worker)
    taker = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    assert taker.rescue() == 1
    (fault,) = stage.faults(owner.run_id)
    assert (stage.row(owner.run_id).deaths, fault.attempt) == (0, 0)
    assert fault.message == f"the lease of worker {owner.worker} ran out while it executed this run"


def lapse(stage: Stage, row: RunRow) -> RunRow:
    """Let a worker lose the run though it lives."""
    taker = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    return lose(stage, row, taker.rescue)


def test_but_again_and_again_without_progress_it_counts(stage: Stage) -> None:
    """It may be the run that keeps its workers from their heartbeats: it must not go round for ever."""
    row = stage.queued()
    seen = [(row := lapse(stage, row)).deaths for _ in range(MOST_LAPSES + 3)]
    assert seen == [0] * MOST_LAPSES + [1, 2, 2]
    assert [fault.attempt for fault in stage.faults(row.id)] == [0] * MOST_LAPSES + [1, 2, 3]


def test_and_what_was_before_an_outcome_counts_no_more(stage: Stage) -> None:
    row = stage.queued()
    for _ in range(MOST_LAPSES):
        row = lapse(stage, row)
    lease = stage.lease()
    with stage.store.write() as connection:
        (row,) = claim(connection, stage.namespace, lease.worker, [(row.id, "again")], KNOWN)
    owner = Owner(stage.store, lease, row)
    entry = Entry(StepPath("1"), "", EntryKind.ACTIVITY, "charge", Outcome.OK, stage.clock.now())
    owner.write(recording(owner, entry))
    stage.change(row.id, worker_id=None, wake_id="again")
    assert lapse(stage, stage.row(row.id)).deaths == 0


def test_whoever_buries_a_dead_worker_leaves_the_runs_of_others_to_those_who_look_whether_they_live(
    stage: Stage,
) -> None:
    dead, lapsed = stage.lease(), stage.lease()
    of_the_dead, of_the_lapsed = stage.owned(dead), stage.owned(lapsed)
    stage.expire(lapsed.worker)
    taker = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    taker._rescue_from({dead.worker: "its sign"}, "its lock is free")
    assert (stage.row(of_the_dead.run_id).deaths, stage.row(of_the_lapsed.run_id).worker_id) == (1, lapsed.worker)
    assert taker.rescue() == 1
    assert stage.row(of_the_lapsed.run_id).deaths == 0


def test_nor_of_one_that_has_gone_on_under_another_name(stage: Stage) -> None:
    lease = stage.lease(30)
    owner = stage.owned(lease)
    stage.clock.passed = 31
    lease.renew()
    assert lease.worker != owner.worker
    taker = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    for _ in range(3):
        taker.check_locks()
    assert taker.rescue() == 1
    assert stage.row(owner.run_id).deaths == 0
    assert not any(isinstance(event, WorkerDied) for event in stage.events)


def test_a_worker_whose_lease_was_ended_claims_nothing_and_hears_of_it(stage: Stage) -> None:
    lease, row = stage.lease(), stage.queued()
    before = lease.worker
    assert lease.check()
    with stage.store.write() as connection:
        end_leases(connection, stage.namespace, [before])
        assert claim(connection, stage.namespace, before, [(row.id, row.wake_id or "")], KNOWN) == []
    assert lease.is_valid(before)
    assert not lease.check()
    assert not lease.is_valid(before)
    eventually(lambda: lease.worker != before)  # its heart beats at once
    assert lease.is_valid(lease.worker)


def test_giving_a_run_back_is_no_progress(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    stage.change(owner.run_id, deaths=2, deaths_alone=1)
    owner.write(nothing, worker_id=None, **NO_PROGRESS)
    assert stage.row(owner.run_id).deaths == 2


def test_a_rescuer_who_comes_second_does_not_take_the_run_from_its_next_owner(postgres_stage: Stage) -> None:
    """PostgreSQL re-checks a row that changed meanwhile against the rest of the query as it was before."""
    stage = postgres_stage
    owner, other = stage.owned(stage.lease()), stage.lease()
    assert owner.worker is not None
    stage.expire(owner.worker)
    with ThreadPoolExecutor(1) as pool:
        with stage.store.write() as first:
            first.execute(text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
            first.execute(text("SELECT id FROM aft_runs WHERE id = :id FOR UPDATE"), {"id": owner.run_id})
            # It has found the run of a dead owner, and waits for its row, as if that had been locked a moment later.
            event.listen(stage.store.engine, "before_cursor_execute", wait_for_locks, retval=True)
            rescued = pool.submit(rescue, stage)
            eventually(lambda: someone_waits_for_a_row(stage))
            first.execute(update(runs).where(runs.c.id == owner.run_id).values(worker_id=other.worker, epoch=5))
        assert rescued.result(60) == []
    assert stage.row(owner.run_id).worker_id == other.worker


def wait_for_locks(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
    return statement.replace(" SKIP LOCKED", ""), parameters


def someone_waits_for_a_row(stage: Stage) -> bool:
    with stage.store.read() as connection:
        return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def test_a_rehearsal_leaves_nothing(stage: Stage) -> None:
    takeover = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    takeover.warm_up()
    with stage.store.read() as connection:
        assert connection.execute(select(runs.c.id).where(runs.c.namespace == WARM_UP)).all() == []
    assert (stage.posted(), stage.events) == ([], [])


@pytest.mark.parametrize("transient", [True, False])
def test_a_rehearsal_that_fails_by_chance_keeps_nobody_from_beginning(
    stage: Stage, transient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise StoreError("refused", transient=transient)

    monkeypatch.setattr(takeover_module, "rescue_for_warm_up", refuse)
    takeover = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    with nullcontext() if transient else pytest.raises(StoreError):
        takeover.warm_up()
