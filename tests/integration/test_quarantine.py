"""Claims about quarantine: what was refused is kept, bounded, found again, and let in once, after what was wrong is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, func, select, text, update

import aft
from aft import envelope, names
from aft.brokers.base import Outgoing, Topology
from aft.envelope import Message, MessageKind
from aft.errors import OrderRefused, UnknownFault
from aft.ids import FaultId, RunId, new_id
from aft.runs.records import quarantine
from aft.runs.records.quarantine import QuarantineState, Refusal
from aft.store import Store
from aft.store.tables import outbox
from aft.store.tables import quarantine as table
from tests.acceptance import shop
from tests.setups import Setup, eventually, forget_queues
from tests.storing import Stage, at_once
from tests.world import ledger

#: A wait that nobody declares, so that its queue does not exist.
UNDECLARED = timedelta(milliseconds=70)


def message(run: RunId, /, **changes: Any) -> bytes:
    """A message about a run, as aft writes it but for the changes."""
    made = Message.about_fault(MessageKind.RESUME, run, FaultId(new_id()), datetime.now(UTC))
    return json.dumps(json.loads(made.encode()) | changes).encode()


def hold(stage: Stage, body: bytes, queue: str | None = None, reason: str = "it was wrong") -> Refusal:
    """Put a message into quarantine."""
    before = {one.id for one in listing(stage)}
    with stage.store.write() as connection:
        quarantine.add(connection, stage.namespace, [(queue or names.resume(stage.namespace), body, reason)])
    (made,) = [one for one in listing(stage) if one.id not in before]  # ids of one millisecond have no order
    return made


def hold_good(stage: Stage, queue: str | None = None) -> Refusal:
    """Put a message into quarantine with which nothing is wrong any more."""
    return hold(stage, message(stage.queued().id), queue)


def listing(stage: Stage, **options: Any) -> list[Refusal]:
    with stage.store.read() as connection:
        return quarantine.listing(connection, stage.namespace, 1000, **options)


def find(stage: Stage, part: str) -> Refusal:
    with stage.store.read() as connection:
        return quarantine.find_refusal(connection, stage.namespace, part)


def release(stage: Stage, refusal: Refusal, by: str = "anne", note: str | None = None) -> None:
    with stage.store.write() as connection:
        quarantine.requeue(connection, stage.namespace, refusal, by, note)


def discard(stage: Stage, refusal: Refusal, by: str = "bert", note: str = "a test of ours") -> None:
    with stage.store.write() as connection:
        quarantine.discard(connection, stage.namespace, refusal, by, note)


def sent(stage: Stage) -> list[tuple[str, str]]:
    """The messages in the outbox, but for those that announce new runs."""
    with stage.store.read() as connection:
        statement = select(outbox.c.queue, outbox.c.body).where(outbox.c.namespace == stage.namespace)
        return [(queue, body) for queue, body in connection.execute(statement) if "order" not in json.loads(body)]


def count(stage: Stage, namespace: str) -> int:
    with stage.store.read() as connection:
        statement = select(func.count()).select_from(table).where(table.c.namespace == namespace)
        return connection.execute(statement).scalar_one()


# Keeping --------------------------------------------------------------------------------------------------------


def test_what_is_refused_is_kept_with_its_reason(stage: Stage) -> None:
    made = hold(stage, b"\xff{", reason="not UTF-8")
    assert (made.body, made.size, made.reason, made.whole) == (b"\xff{", 2, "not UTF-8", True)
    assert (made.state, made.settled_at, made.settled_by, made.note) == (QuarantineState.HELD, None, None, None)
    assert find(stage, made.id) == made


def test_of_a_huge_message_and_a_huge_reason_the_beginning_is_kept(stage: Stage) -> None:
    made = hold(stage, b"x" * 1_000_000, reason="nul \x00, half a pair \udcff, " + "y" * 10_000)
    assert made.size == 1_000_000
    assert made.body == b"x" * quarantine.MOST_KEPT
    assert not made.whole
    assert made.reason.startswith("nul \\x00, half a pair \\udcff, yyy")
    assert len(made.reason) == quarantine.MOST_REASON


def test_a_flood_pushes_out_the_oldest_and_leaves_other_namespaces_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MOST_ROWS", 20)
    monkeypatch.setattr(quarantine, "PRUNE_ONE_IN", 5)
    neighbour = f"{stage.namespace}n"
    first = hold(stage, b"first")
    with stage.store.write() as connection:
        quarantine.add(connection, neighbour, [("a queue", b"theirs", "why")])
    flood(stage, 500)
    # The pruning is by chance: that none of 150 in a row does it happens once in 10 ** 14.
    assert 20 <= count(stage, stage.namespace) <= 170
    assert b"499" in {one.body for one in listing(stage)[:20]}
    with pytest.raises(UnknownFault):
        find(stage, first.id)
    assert count(stage, neighbour) == 1


def flood(stage: Stage, messages: int) -> None:
    for number in range(messages):
        with stage.store.write() as connection:
            quarantine.add(connection, stage.namespace, [("a queue", b"%d" % number, "why")])


def test_floods_and_people_at_the_same_time_neither_stop_each_other_nor_send_anything_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MOST_ROWS", 30)
    monkeypatch.setattr(quarantine, "PRUNE_ONE_IN", 2)
    held = [hold_good(stage) for _ in range(20)]

    def let_in() -> int:
        return sum(succeeds(partial(release, stage, one)) for one in held)

    def overflow() -> int:
        flood(stage, 40)
        return 0

    done = at_once([let_in, let_in, overflow, overflow, overflow])
    assert sum(done) == len(sent(stage)) <= 20
    assert len(set(sent(stage))) == len(sent(stage))


def test_pruning_does_not_wait_for_a_message_that_is_being_let_in(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MOST_ROWS", 1)
    # SQLite has one writer: there nobody is in the middle of anything.
    with closing(Stage(Store(migrated_url))) as stage:
        made = hold_good(stage)
        hold(stage, b"{")
        monkeypatch.setattr(quarantine, "PRUNE_ONE_IN", 1)
        with stage.store.write() as letting_in, stage.store.write() as pruning:
            quarantine.requeue(letting_in, stage.namespace, made, "anne")
            pruning.execute(text("SET LOCAL lock_timeout = '1s'"))
            quarantine.add(pruning, stage.namespace, [("a queue", b"[", "why")])
        assert find(stage, made.id).state is QuarantineState.RELEASED
        assert [one.body for one in listing(stage)] == [b"["]
        assert len(sent(stage)) == 1


def succeeds(act: Callable[[], None]) -> bool:
    try:
        act()
    except OrderRefused:
        return False
    return True


# Looking --------------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_the_beginning_or_the_end_of_its_id(stage: Stage) -> None:
    hold(stage, b"another")
    made = hold(stage, b"{")
    assert find(stage, made.id) == find(stage, made.id[-12:]) == find(stage, made.id[:-1]) == made


@pytest.mark.parametrize("part", ["", "x", "%", "_", "0" * 37, "\x00", "\udcff", "' OR 1=1 --"])
def test_a_part_that_names_no_message_is_told_with_where_to_look(stage: Stage, part: str) -> None:
    hold(stage, b"{")
    with pytest.raises(UnknownFault, match="aft faults list --quarantined --all"):
        find(stage, part)


def test_a_part_that_names_several_is_told(stage: Stage) -> None:
    made = [hold(stage, b"{") for _ in range(2)]
    with pytest.raises(UnknownFault, match="several refused messages"):
        find(stage, made[0].id[:4])


def test_a_message_of_another_namespace_is_not_found(stage: Stage) -> None:
    made = hold(stage, b"{")
    with stage.store.read() as connection, pytest.raises(UnknownFault, match="'elsewhere'"):
        quarantine.find_refusal(connection, "elsewhere", made.id)


def test_what_was_dealt_with_is_listed_only_on_request(stage: Stage) -> None:
    made = [hold_good(stage) for _ in range(3)]
    release(stage, made[0], note="fixed: all of it")
    discard(stage, made[1])
    assert [one.id for one in listing(stage)] == [made[2].id]
    found = listing(stage, closed=True)
    assert {one.id: (one.state, one.settled_by, one.note) for one in found} == {
        made[0].id: (QuarantineState.RELEASED, "anne", "fixed: all of it"),
        made[1].id: (QuarantineState.DISCARDED, "bert", "a test of ours"),
        made[2].id: (QuarantineState.HELD, None, None),
    }
    assert all((one.settled_at is None) == (one.state is QuarantineState.HELD) for one in found)


# Letting in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["faults", "resume", "compensate", "delay"])
def test_a_released_message_goes_to_its_own_queue_as_it_was(stage: Stage, name: str) -> None:
    queues = {one: getattr(names, one)(stage.namespace) for one in ("faults", "resume", "compensate")}
    queue = queues.get(name) or names.delay(stage.namespace, UNDECLARED)
    made = hold_good(stage, queue)
    release(stage, made)
    run = stage.row(envelope.decode(made.body).run)
    key = "" if name == "faults" else names.key(run.flow, run.version)  # a wake-up goes to those who have the flow
    assert sent(stage) == [(names.address(queue, key), made.body.decode())]
    assert find(stage, made.id).state is QuarantineState.RELEASED


def test_what_is_still_wrong_is_refused_with_its_reason_and_stays(stage: Stage) -> None:
    run = stage.queued().id
    resume = names.resume(stage.namespace)
    wrong = {
        "not JSON": (b"{", resume),
        "not UTF-8": (b"\xff", resume),
        "a JSON object is expected, not list": (b"[1]", resume),
        "version 2; this aft reads version 1": (message(run, v=2), resume),
        "unknown kind": (message(run, kind="dance"), resume),
        "'run' must be a text": (message(run, run=7), resume),
        "nested more than": (message(run, x=[[[[[]]]]]), resume),
        "8192 are the most": (message(run, x="x" * 9_000), resume),
        "only the first 16384 of its 20000 bytes": (b"x" * 20_000, resume),
        "no run has the id 'nobody'": (message(RunId("nobody")), resume),
        "'elsewhere.resume.v2' is not a queue of namespace": (message(run), names.resume("elsewhere")),
        "v0' is not a queue of namespace": (message(run), f"{stage.namespace}.resume.v0"),
        "soon.v2' is not a queue of namespace": (message(run), f"{stage.namespace}.delay.soon.v2"),
        "undeliverable.v2' is not a queue": (message(run), names.undeliverable(stage.namespace)),
    }
    for reason, (body, queue) in wrong.items():
        made = hold(stage, body, queue)
        with pytest.raises(OrderRefused, match=reason):
            release(stage, made)
        assert find(stage, made.id) == made
    assert sent(stage) == []


def test_what_cannot_be_let_in_can_be_discarded(stage: Stage) -> None:
    made = hold(stage, b"x" * 20_000)
    discard(stage, made, note="nul \x00")
    assert (find(stage, made.id).state, find(stage, made.id).note) == (QuarantineState.DISCARDED, "nul \\x00")
    assert sent(stage) == []


def test_what_was_discarded_is_told_so_and_not_what_was_wrong_with_it(stage: Stage) -> None:
    made = hold(stage, b"{")
    discard(stage, made)
    with pytest.raises(OrderRefused, match="was discarded already, by bert"):
        release(stage, find(stage, made.id))


@pytest.mark.parametrize("note", ["", "  \n"])
def test_discarding_needs_a_note(stage: Stage, note: str) -> None:
    made = hold(stage, b"{")
    with pytest.raises(OrderRefused, match="note"):
        discard(stage, made, note=note)
    assert find(stage, made.id) == made


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("first", [release, discard])
@pytest.mark.parametrize("second", [release, discard])
def test_a_message_is_dealt_with_once(
    stage: Stage, first: Callable[..., None], second: Callable[..., None], fresh: bool
) -> None:
    made = hold_good(stage)
    first(stage, made, by="anne")
    seen = find(stage, made.id)
    with pytest.raises(OrderRefused, match=f"{seen.state.value} already, by anne"):
        second(stage, seen if fresh else made, by="carl")
    assert find(stage, made.id) == seen
    assert len(sent(stage)) == (first is release)


def test_of_several_people_at_once_one_wins_and_nothing_is_sent_twice(stage: Stage) -> None:
    for _ in range(5):
        before = len(sent(stage))
        made = hold_good(stage)
        acts = [partial(release, stage, made), partial(discard, stage, made)] * 3
        assert sum(at_once([partial(succeeds, act) for act in acts])) == 1
        assert len(sent(stage)) - before == (find(stage, made.id).state is QuarantineState.RELEASED)


def test_a_message_that_was_pushed_out_meanwhile_is_told_to_be_gone(stage: Stage) -> None:
    made = hold_good(stage)
    with stage.store.write() as connection:
        connection.execute(delete(table).where(table.c.id == made.id))
    for act in (release, discard):
        with pytest.raises(OrderRefused, match="is gone"):
            act(stage, made)
    assert sent(stage) == []


def test_a_release_that_is_rolled_back_has_not_happened(stage: Stage) -> None:
    made = hold_good(stage)
    with suppress(InterruptedError), stage.store.write() as connection:
        quarantine.requeue(connection, stage.namespace, made, "anne")
        raise InterruptedError
    assert find(stage, made.id) == made
    assert sent(stage) == []


# With a dispatcher, on every database and broker ----------------------------------------------------------------


BAD = {
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe",
    "are the most": b'{"v":1,"x":"' + b"x" * 10_000 + b'"}',
    "nested more than": b"[" * 1000 + b"]" * 1000,
    "a key appears twice": b'{"v":1,"v":1}',
    "version 99": message(RunId("r"), v=99),
    "version True": message(RunId("r"), v=True),
    "unknown kind": message(RunId("r"), kind="dance"),
    "'run' must be": message(RunId("r"), run=["r"]),
    "'trace' must be": message(RunId("r"), trace={"a": 1}),
    "names both": message(RunId("r"), order="o"),
}


def held_by(app: aft.Aft) -> list[Refusal]:
    with app.store.read() as connection:
        return quarantine.listing(connection, app.namespace, 1000)


def let_in(app: aft.Aft, refusal: Refusal) -> None:
    with app.store.write() as connection:
        quarantine.requeue(connection, app.namespace, refusal, "anne", "fixed")


def change_message(app: aft.Aft, **values: Any) -> None:
    """Change the one message that waits in the outbox."""
    with app.store.write() as connection:
        changed = connection.execute(update(outbox).where(outbox.c.namespace == app.namespace).values(**values))
    assert changed.rowcount == 1


def test_each_bad_message_is_held_with_its_own_reason_and_the_queues_go_on(setup: Setup, order: str) -> None:
    app = setup.app()
    queues = [names.faults(app.namespace), names.resume(app.namespace), names.compensate(app.namespace)]
    with app.dispatcher():
        app.broker.publish([Outgoing(queue, body) for queue in queues for body in BAD.values()])
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
        eventually(lambda: len(held_by(app)) == len(queues) * len(BAD))
    found = held_by(app)
    for queue in queues:
        for reason, body in BAD.items():
            (one,) = [one for one in found if one.queue == queue and one.body == body]
            assert reason in one.reason


def test_a_message_of_a_newer_version_is_let_in_after_the_upgrade(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(grace=600.0)  # no sweeper will help this run: only its message
    run = app.submit(shop.buy, order)
    with app.store.read() as connection:
        (body,) = connection.execute(select(outbox.c.body).where(outbox.c.namespace == app.namespace)).scalars()
    change_message(app, body=json.dumps(json.loads(body) | {"v": 2}))
    with app.dispatcher():
        (held,) = eventually(lambda: held_by(app))
        assert held.reason == "version 2; this aft reads version 1"
        with pytest.raises(OrderRefused, match="version 2; this aft reads version 1"):
            let_in(app, held)
    assert ledger[order] == []
    monkeypatch.setattr(envelope, "VERSION", 2)
    with app.dispatcher():
        let_in(app, held)
        assert run.result(60) == f"parcel-{order}"
    assert held_by(app) == []


def test_a_message_without_a_queue_is_let_in_once_the_queue_exists(setup: Setup, order: str) -> None:
    app = setup.app(grace=600.0)
    run = app.submit(shop.buy, order)
    change_message(app, queue=names.delay(app.namespace, UNDECLARED))
    declared = Topology(app.namespace, frozenset({UNDECLARED}))
    with app.dispatcher():
        (held,) = eventually(lambda: held_by(app))
        assert names.delay(app.namespace, UNDECLARED) in held.reason
        let_in(app, held)
        (again,) = eventually(lambda: held_by(app))
        assert again.id != held.id
        app.broker.declare(declared)
        let_in(app, again)
        assert run.result(60) == f"parcel-{order}"
    assert ledger[order].count("ship") == 1
    if setup.broker.startswith("amqp"):
        forget_queues(setup.broker, declared)
