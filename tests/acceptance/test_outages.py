"""Either store may be away: what becomes of a user's runs while PostgreSQL or RabbitMQ is gone or out of breath."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pika
import pytest
from sqlalchemy import event, func, select

import aft
from aft.brokers.base import Topology
from aft.fault import FaultKind
from aft.runs.states import Status
from aft.store.tables import outbox
from aft.telemetry import Event, LeaseLost, RunReleased
from tests.servers import PrivatePostgres, PrivateRabbit
from tests.setups import Setup, eventually, migrate
from tests.world import gates, ledger, reached

#: The services of a dispatcher; each is a thread that must outlive every outage.
SERVICES = {f"aft-{name}" for name in ("receiver", "timer", "intake", "relay", "sweep", "heartbeat")}


class Declined(aft.Unrecoverable):
    """For good."""


def refund(order: str) -> None:
    reached[order, "undone"].set()


@aft.compensate_with(refund)
@aft.activity(name="absent_charge", levels=["1s", "1s"])
def charge(order: str, *, fails: bool = False) -> str:
    """Wait for the test's permission to end; fail the first time, if told so."""
    return take_money(order, fails=fails)


@aft.activity(name="absent_charge_later", levels=["3s"])
def charge_later(order: str) -> str:
    """Fail the first time, and wait so long that much can happen meanwhile."""
    return take_money(order, fails=True)


def take_money(order: str, *, fails: bool) -> str:
    ledger[order].append(aft.current().key)
    assert gates[order].wait(60)
    if fails and len(ledger[order]) == 1:
        raise ConnectionError("the bank does not answer")
    return aft.current().key


@aft.activity(name="absent_decline", levels=[])
def decline(order: str) -> None:
    raise Declined(order)


@aft.flow(name="absent_buying")
def buying(order: str, *, fails: bool = False) -> str:
    return charge(order, fails=fails)


@aft.flow(name="absent_buying_later")
def buying_later(order: str) -> str:
    return charge_later(order)


@aft.flow(name="absent_regretting")
def regretting(order: str) -> None:
    charge(order)
    decline(order)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        migrate(server.url)
        yield server


@pytest.fixture
def postgres(own_postgres: PrivatePostgres) -> Iterator[PrivatePostgres]:
    """A PostgreSQL that the test may kill."""
    yield own_postgres
    own_postgres.start()


@pytest.fixture(scope="module")
def own_rabbit() -> Iterator[PrivateRabbit]:
    with PrivateRabbit() as server:
        yield server


@pytest.fixture
def rabbit(own_rabbit: PrivateRabbit) -> Iterator[PrivateRabbit]:
    """A RabbitMQ that the test may kill, wipe or scare."""
    yield own_rabbit
    own_rabbit.start()


@dataclass
class Watcher:
    """What an app says of itself, and which of its threads the database refused."""

    app: aft.Aft
    events: list[Event] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app.telemetry.subscribe(self.events.append)
        event.listen(self.app.store.engine, "handle_error", self._note)

    def any(self, kind: type[Event], **fields: Any) -> bool:
        return any(isinstance(each, kind) and fields.items() <= vars_of(each).items() for each in self.events)

    def refused_a_run(self) -> bool:
        """Whether a thread that executes a run has met the absence."""
        return any(name.startswith("aft-run") for name in self.refused)

    def _note(self, context: Any) -> None:
        self.refused.append(threading.current_thread().name)


def vars_of(seen: Event) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in seen.__dataclass_fields__}


def services_alive() -> set[str]:
    return SERVICES & {thread.name for thread in threading.enumerate()}


# PostgreSQL away ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_an_activity_that_ends_while_the_database_is_away_is_recorded_when_it_is_back(
    postgres: PrivatePostgres, order: str, fails: bool
) -> None:
    app = Setup("away", postgres.url, "embedded").app(lease="30s")
    seen = Watcher(app)
    with app, app.dispatcher(concurrency=2):
        run = app.submit(buying, order, fails=fails)
        eventually(lambda: ledger[order])
        postgres.kill()
        gates[order].set()
        eventually(seen.refused_a_run)
        postgres.start()
        assert run.result(60) == ledger[order][0]
        assert services_alive() == SERVICES
        assert [fault.kind for fault in app.faults()] == [FaultKind.ACTIVITY] * fails
    assert len(ledger[order]) == 1 + fails, "an outcome that was known was not kept"
    assert not seen.any(LeaseLost)


def test_a_database_that_stays_away_longer_than_the_lease_costs_a_second_execution_under_the_same_key(
    postgres: PrivatePostgres, order: str
) -> None:
    app = Setup("away", postgres.url, "embedded").app(lease="1s")
    seen = Watcher(app)
    with app, app.dispatcher(concurrency=2):
        run = app.submit(buying, order)
        eventually(lambda: ledger[order])
        postgres.kill()
        gates[order].set()
        eventually(lambda: seen.any(RunReleased, run=run.id))
        postgres.start()
        assert run.result(60) == ledger[order][0]
        # Once more for each lease that was lost, should there be another.
        assert len(ledger[order]) >= 2
        assert set(ledger[order]) == {ledger[order][0]}
        eventually(lambda: seen.any(LeaseLost))
        another = secrets.token_hex(4)
        gates[another].set()
        app.submit(buying, another).result(60)
        assert services_alive() == SERVICES


def test_a_process_ends_in_order_while_the_database_is_away(postgres: PrivatePostgres, order: str) -> None:
    """Its lease runs out by itself; nobody who stops a process needs to hear that it could not be ended."""
    app = Setup("away", postgres.url, "embedded").app(lease="1s")
    with app, app.dispatcher(concurrency=2):
        run = app.submit(buying, order)
        eventually(lambda: ledger[order])
        postgres.kill()
        gates[order].set()
    postgres.start()
    again = Setup("away", postgres.url, "embedded", app.namespace).app()
    with again, again.dispatcher():
        assert again.run(run.id).result(60) == ledger[order][0]


# RabbitMQ away ------------------------------------------------------------------------------------------------------


def stop(rabbit: PrivateRabbit) -> Callable[[], None]:
    rabbit.stop()
    return rabbit.start


def alarm(rabbit: PrivateRabbit) -> Callable[[], None]:
    rabbit.ctl("set_vm_memory_high_watermark", "0")
    return lambda: void(rabbit.ctl("set_vm_memory_high_watermark", "0.4"))


def void(_: object) -> None:
    """Nothing to return."""


@pytest.mark.parametrize("go_away", [stop, alarm])
def test_runs_end_without_the_broker_and_it_hears_of_them_when_it_is_back(
    migrated_url: str, rabbit: PrivateRabbit, go_away: Callable[[PrivateRabbit], Callable[[], None]]
) -> None:
    app = Setup("away", migrated_url, rabbit.url).app(grace="500ms")
    orders = [secrets.token_hex(4) for _ in range(10)]
    for each in orders:
        gates[each].set()
    with app, app.dispatcher(concurrency=2):
        assert app.submit(buying, orders[0]).result(60)
        come_back = go_away(rabbit)
        try:
            patient: list[aft.Run] = [app.submit(buying, each, fails=True) for each in orders[1:7]]
            doomed: list[aft.Run] = [app.submit(regretting, each) for each in orders[7:]]
            # Each fault is told to the broker by the thread that raised it: none may be kept waiting for long.
            eventually(lambda: all(run.status.ended for run in (*patient, *doomed)))
            assert waiting(app) > 0, "what the broker has not heard of must be on record"
        finally:
            come_back()
        assert [run.status for run in patient] == [Status.COMPLETED] * 6
        assert [run.status for run in doomed] == [Status.COMPENSATED] * 3
        eventually(lambda: waiting(app) == 0)
        assert all(len(ledger[each]) == 2 for each in orders[1:7])
        assert all(reached[each, "undone"].is_set() for each in orders[7:])
        assert services_alive() == SERVICES


def decided(app: aft.Aft) -> int:
    """How many faults have been decided about; each sends its run a message for later."""
    return sum(fault.decided_at is not None for fault in app.faults())


def waiting(app: aft.Aft) -> int:
    """How many messages the broker has not confirmed."""
    statement = select(func.count()).where(outbox.c.namespace == app.namespace)
    with app.store.read() as connection:
        return int(connection.execute(statement).scalar_one())


def purge(rabbit: PrivateRabbit, topology: Topology) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbit.url)) as connection:
        channel = connection.channel()
        for queue in (*topology.work_queues, *topology.delay_queues):
            channel.queue_purge(queue)


def wipe(rabbit: PrivateRabbit, topology: Topology) -> None:
    rabbit.wipe()


@pytest.mark.parametrize("lose", [purge, wipe])
def test_every_run_ends_after_all_messages_were_lost(
    migrated_url: str, rabbit: PrivateRabbit, lose: Callable[[PrivateRabbit, Topology], None]
) -> None:
    app = Setup("away", migrated_url, rabbit.url).app(grace="500ms")
    orders = [secrets.token_hex(4) for _ in range(5)]
    with app, app.dispatcher(concurrency=8):
        runs = [app.submit(buying_later, each) for each in orders]
        for each in orders:
            gates[each].set()
        eventually(lambda: decided(app) == len(runs) and waiting(app) == 0)
        topology = app.delays().topology()
        lose(rabbit, topology)
        for run, each in zip(runs, orders, strict=True):
            assert run.result(60) == ledger[each][0]
        # Nothing was published since; whoever consumes has to find that its queue is gone, and make it again.
        eventually(lambda: all_consumed(app, topology))


def all_consumed(app: aft.Aft, topology: Topology) -> bool:
    found = {status.name: status for status in app.broker.status(topology)}
    return all(status.exists for status in found.values()) and all(
        found[queue].consumers for queue in topology.work_queues
    )
