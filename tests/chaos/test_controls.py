"""The checker finds what it is there to find: a bug seeded into aft breaks a promise, the same story without it none.

Each story is told twice, on real services. Nothing is left to chance: gates decide who goes on and when.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from sqlalchemy import Connection, select, text, update

import aft
from aft import names
from aft.app.new_run import make_new_run
from aft.brokers.base import Outgoing
from aft.brokers.rabbitmq import consumer as rabbit_consumer
from aft.brokers.rabbitmq import publisher as rabbit_publisher
from aft.flows.session.step_states import StepStates
from aft.runs import submit as submitting
from aft.runs.ownership import claims, owner
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_statements import FENCE
from aft.runs.ownership.owner_writes import FencedWrite, OwnerBatch
from aft.runs.ownership.rescue import rescue_expired
from aft.store import Store, connect, outbox
from aft.store.db_time import later
from aft.store.outbox import OutboxRow
from aft.store.tables import outbox as outbox_rows
from aft.store.tables import runs, workers
from aft.telemetry import EffectLate, Event, FaultRouted
from chaos import load
from chaos.checker import check, read_facts
from chaos.drive import count
from chaos.ledger import What
from chaos.load import LADDER, Plan, StepPlan, chaos_flow
from chaos.setups import Site
from tests.chaos.bugs import without_stale_check
from tests.setups import eventually

#: Seconds that anybody waits for anybody else.
PATIENCE = 60.0
#: Long leases and graces: nothing happens by the clock, only by the story.
SLOW = {"lease": "1h", "grace": "1h"}


@pytest.fixture(params=[True, False], ids=["bug", "healthy"])
def bug(request: pytest.FixtureRequest) -> bool:
    """Whether the bug is there."""
    return bool(request.param)


@pytest.fixture
def site(migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """PostgreSQL, queues in it, and a ledger that this process writes itself."""
    made = Site("postgresql+embedded", migrated_url, "embedded", tmp_path, settings=dict(SLOW))
    made.prepare()
    monkeypatch.setenv("AFT_TEST_LEDGER", str(made.ledger.path))
    yield made
    made.forget()


class Gate:
    """Holds whoever passes a point for the first time, until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def hold(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


def hold_at(monkeypatch: pytest.MonkeyPatch, step: int, what: What, *, call: int = 1) -> Gate:
    """Hold an attempt before it writes a line: the first that comes so far, or a later one."""
    gate, real, calls = Gate(), load._note, []

    def note(name: str, its_step: str, its_what: What) -> None:
        if (its_step, its_what) == (str(step), what):
            calls.append(name)
            if len(calls) == call:
                gate.hold()
        real(name, its_step, its_what)

    monkeypatch.setattr(load, "_note", note)
    return gate


def broken(site: Site, app: aft.Aft, plans: list[Plan], **flags: Any) -> set[str]:
    """The promises that were broken."""
    found = check(plans, site.ledger.read(), read_facts(app.store, site.namespace), **flags)
    return {violation.promise for violation in found}


def is_quiet(app: aft.Aft, plans: list[Plan]) -> bool:
    found = count(app.store, app.namespace)
    return found.quiet and found.made == len(plans)


@contextmanager
def elsewhere(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Do something on a thread of its own; it has ended after the block."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


def expire_all(app: aft.Aft) -> None:
    """Let the database think that every worker's lease is over; none of them knows."""
    with app.store.write() as connection:
        connection.execute(
            update(workers).where(workers.c.namespace == app.namespace).values(expires_at=later(-1), liveness_lock=None)
        )


# 1. A stale owner writes ----------------------------------------------------------------------------------------


def unfence(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """The bug: whoever comes may write; counts the statements whose fence was broken so, and the others."""
    real, broken_so = OwnerBatch.for_postgresql, Counter[bool]()

    def for_postgresql(batch: OwnerBatch, items: Sequence[Any]) -> Any:
        found = real(batch, items)
        broken_so["OR true)" in found[0]] += 1
        return found

    monkeypatch.setattr(OwnerBatch, "fence", f"({FENCE} OR true)")
    monkeypatch.setattr(OwnerBatch, "for_postgresql", for_postgresql)
    return broken_so


def write_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let owners write all they write in transactions of their own, and on threads of their runs."""
    monkeypatch.setattr(Owner, "_try_to_share", lambda *given, **more: None)
    monkeypatch.setattr(Owner, "take_overdue", lambda *given: None)


@pytest.mark.parametrize("shared", [True, False])
def test_no_fence(site: Site, bug: bool, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that lost its run in the middle of a step comes back when the run has been undone by another."""
    if not shared:
        write_alone(monkeypatch)
    unfenced = unfence(monkeypatch) if bug else Counter()  # in both ways of writing, together and alone
    plan = Plan("stale", (StepPlan("plain"), StepPlan("fatal")), "compensated")
    gate = hold_at(monkeypatch, 0, "done")
    with site.app() as stale, site.app(grace="100ms") as other:
        told: list[Event] = []
        stale.telemetry.subscribe(lambda event: told.append(event) if isinstance(event, EffectLate) else None)
        with elsewhere(lambda: stale.start(chaos_flow.options(key=plan.name), plan.encode())):
            assert gate.reached.wait(PATIENCE)
            expire_all(other)
            with other.dispatcher():
                eventually(lambda: other.runs()[0].status == "compensated", within=PATIENCE)
                gate.open()
                eventually(lambda: told, within=PATIENCE)  # bug or not, its record is refused
                eventually(lambda: is_quiet(other, [plan]) or other.runs()[0].status == "parked", within=PATIENCE)
        # It finds its outcome written already, and parks a run that is no longer its own.
        assert broken(site, other, [plan], stale=True) == ({"1 parked"} if bug else set())
        assert set(unfenced) == ({True} if bug else set())


# 2. The fence reads a snapshot ----------------------------------------------------------------------------------


def check_by_where_exists(connection: Connection, item: FencedWrite) -> None:
    """The bug: the check locks nothing, so its answer may be old when something is written."""
    ours = text(
        "SELECT 1 FROM aft_runs WHERE id = :id AND EXISTS "
        "(SELECT 1 FROM aft_runs WHERE id = :id AND epoch = :epoch AND worker_id = :worker)"
    )
    given = {"id": item.run_id, "epoch": item.epoch, "worker": item.worker}
    if connection.execute(ours, given).one_or_none() is None:
        raise Fenced(f"run {item.run_id} is no longer ours")


def test_fence_by_where_exists(site: Site, bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner has passed the fence and not written yet; meanwhile somebody wants to take its run over."""
    monkeypatch.setattr(connect, "IDLE_LEAST", 60.0)  # it is held inside, and is to come out alive
    monkeypatch.setattr(connect, "IDLE_MOST", 60.0)
    inside, real = Gate(), owner.execute
    write_alone(monkeypatch)  # a shared write is a single statement

    if bug:
        unfence(monkeypatch)

    def execute(connection: Connection, item: FencedWrite) -> int:
        if bug:
            check_by_where_exists(connection, item)
            inside.hold()
            return real(connection, item)
        length = real(connection, item)
        inside.hold()
        return length

    monkeypatch.setattr(owner, "execute", execute)
    plan = Plan("race", (StepPlan("plain"), StepPlan("plain")), "completed")
    second = hold_at(monkeypatch, 0, "done", call=2)
    with site.app() as first, site.app(grace="100ms") as other:
        with elsewhere(lambda: first.start(chaos_flow.options(key=plan.name), plan.encode())) as writing:
            assert inside.reached.wait(PATIENCE)
            expire_all(other)
            with other.store.write() as connection:
                taken, _ = rescue_expired(connection, site.namespace, other.clock.now(), 10)
            assert bool(taken) is bug
            with other.dispatcher():
                if bug:  # the other one has read the journal, and is in the same step
                    assert second.reached.wait(PATIENCE)
                inside.open()
                eventually(lambda: is_quiet(other, [plan]) or not writing.is_alive(), within=PATIENCE)
                second.open()
                eventually(lambda: is_quiet(other, [plan]) or other.runs()[0].status == "parked", within=PATIENCE)
        found = broken(site, other, [plan], stale=True)
        assert "1 parked" in found if bug else not found


# 3. A stale message is honoured ---------------------------------------------------------------------------------


def test_no_check_for_stale_messages(site: Site, bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the run waits in its ladder, the message comes again that once began it."""
    if bug:
        # The bug: a message wakes its run, whatever the run is waiting for.
        monkeypatch.setattr(claims, "claim_now", without_stale_check(claims.claim_now))
        # Whoever has claimed it too early would see that its next try is not due: the second line of defence.
        monkeypatch.setattr(StepStates, "_is_due", lambda *given: True)
    plan = Plan("early", (StepPlan("plain", failures=len(LADDER)),), "completed")
    with site.app() as app:
        app.submit(chaos_flow.options(key=plan.name), plan.encode())
        with app.store.read() as connection:
            ours = select(outbox_rows.c.body).where(outbox_rows.c.namespace == site.namespace)
            body = connection.execute(ours).scalar_one().encode()

        def replay(event: Event) -> None:
            if isinstance(event, FaultRouted):
                app.broker.publish([Outgoing(names.resume(site.namespace), body)])

        forget = app.telemetry.subscribe(replay)
        with app.dispatcher(only=["intake", "work", "relay"]):
            eventually(lambda: is_quiet(app, [plan]), within=PATIENCE)
        forget()
        assert broken(site, app, [plan]) == ({"5 early"} if bug else set())


# 4. The relay goes by the highest number it has seen -----------------------------------------------------------------


class LastSeen:
    """The bug: rows are taken by ``id > last``, but numbers are given out before the commit."""

    def __init__(self) -> None:
        self.last = 0
        self.rounds = 0

    def any_free(self, store: Store, namespace: str) -> bool:
        self.rounds += 1
        with store.read() as connection:
            return bool(self._new(connection, namespace))

    def take(self, connection: Connection, namespace: str, limit: int, *, hold: float = 0.0) -> list[OutboxRow]:
        found = self._new(connection, namespace)
        self.last = max([self.last, *(row.id for row in found)])
        return found

    def _new(self, connection: Connection, namespace: str) -> list[OutboxRow]:
        columns = (outbox_rows.c.id, outbox_rows.c.queue, outbox_rows.c.body)
        statement = select(*columns).where(outbox_rows.c.namespace == namespace, outbox_rows.c.id > self.last)
        return [OutboxRow(*row) for row in connection.execute(statement)]


def test_relay_by_the_last_number(site: Site, bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose transaction began first commits last: its message has the lower number."""
    relay = LastSeen()
    if bug:
        monkeypatch.setattr(outbox, "take", relay.take)
        monkeypatch.setattr(outbox, "any_free", relay.any_free)
    plans = [Plan(name, (StepPlan("plain"),), "completed") for name in ("slow to commit", "quick")]
    with site.app() as app, app.dispatcher(only=["intake", "work", "relay"]):
        flow = chaos_flow.options(key=plans[0].name)
        with app.store.write() as connection, app.store.lend(connection):
            new = make_new_run(app.namespace, flow, (plans[0].encode(),), {})
            submitting.enqueue(connection, new, app.clock.now(), timedelta(hours=1))
            app.submit(chaos_flow.options(key=plans[1].name), plans[1].encode())
            eventually(lambda: is_quiet(app, plans[1:]), within=PATIENCE)
        rounds = relay.rounds
        eventually(lambda: relay.rounds > rounds + 5 if bug else is_quiet(app, plans), within=PATIENCE)
        assert broken(site, app, plans) == ({"1 lost", "1 stuck"} if bug else set())


# 5. A message carries its past ----------------------------------------------------------------------------------


class Hops:
    """Sends what waits over two queues instead of one: over a first hop, then to its delay queue.

    With one hop per level, as aft has it, RabbitMQ never sees a message return to a queue that it died in, whatever
    headers it carries. With two it does, if they are kept, and versions before 4.0 drop it as a cycle, without a word.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._namespace = namespace
        self._made: set[str] = set()

    def before(self, queue: str) -> str:
        """The first hop to a delay queue; every other queue is reached directly."""
        if not queue.startswith(f"{self._namespace}.delay."):
            return queue
        hop = f"{queue}.hop"
        if hop not in self._made:
            arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
            self._channel.queue_declare(hop, durable=True, arguments=arguments)
            self._made.add(hop)
        return hop

    def close(self) -> None:
        for hop in self._made:
            self._channel.queue_delete(hop)
        self._connection.close()


def keep_headers(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The bug: what is published for a run carries the headers of the last message that came for it; returns those."""
    seen: dict[str, dict[str, Any]] = {}
    now_sending: list[str] = [""]
    real_deliver, real_send = rabbit_consumer.DeliveryBuffer._deliver, rabbit_publisher.Pipeline._send
    real_properties: Any = vars(rabbit_publisher)["BasicProperties"]

    def deliver(self: Any, source: Any, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if properties.headers:
            seen[json.loads(body)["run"]] = properties.headers
        real_deliver(self, source, channel, method, properties, body)

    def send(self: Any, batch: Any, message: Outgoing) -> None:
        now_sending[0] = json.loads(message.body)["run"]
        real_send(self, batch, message)

    def properties(**given: Any) -> Any:
        return real_properties(**given, headers=seen.get(now_sending[0]))

    monkeypatch.setattr(rabbit_consumer.DeliveryBuffer, "_deliver", deliver)
    monkeypatch.setattr(rabbit_publisher.Pipeline, "_send", send)
    monkeypatch.setattr(rabbit_publisher, "BasicProperties", properties)
    return seen


def test_death_headers_that_are_kept(site: Site, rabbit_url: str, bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails three times waits in the same queue three times."""
    site.name, site.broker = "postgresql+rabbitmq", rabbit_url
    kept = keep_headers(monkeypatch) if bug else {}
    plan = Plan("dropped", (StepPlan("plain", failures=3),), "completed")
    with closing(Hops(rabbit_url, site.namespace)) as hops, site.app() as app:
        drops = bug and app.broker.version() < "RabbitMQ 4"
        real = app.broker.publish
        lock = threading.Lock()

        def publish(messages: Any) -> None:
            with lock:
                sent = [Outgoing(hops.before(message.queue), message.body) for message in messages]
            real(sent)

        def died() -> bool:
            return any("x-death" in headers for headers in kept.values())

        monkeypatch.setattr(app.broker, "publish", publish)
        app.submit(chaos_flow.options(key=plan.name), plan.encode())
        with app.dispatcher(only=["intake", "work", "relay"]):
            # A machine that stands still makes a message late as well: only one that has died before can be dropped.
            eventually(lambda: died() and is_dropped(app) if drops else is_quiet(app, [plan]), within=PATIENCE)
        assert broken(site, app, [plan]) == ({"1 stuck"} if drops else set())
        assert died() is bug  # whether or not the broker minds


def is_dropped(app: aft.Aft) -> bool:
    """Whether a run's wait was over long ago, and no message came for it."""
    late = select(runs.c.id).where(
        runs.c.namespace == app.namespace, runs.c.worker_id.is_(None), runs.c.due_at < later(-2)
    )
    with app.store.read() as connection:
        return connection.execute(late).first() is not None
