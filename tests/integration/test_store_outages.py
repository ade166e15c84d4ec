"""What flow code must not notice: the database being away for a moment, names it cannot hold, aft's own mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import pytest

import aft
from aft.brokers.base import Delivery
from aft.compensation import stack
from aft.compensation.stack import PENDING
from aft.config import Settings
from aft.dispatcher.intake import Intake
from aft.envelope import Message
from aft.errors import StoreError, Unroutable
from aft.flows.declare.registry import Registry
from aft.flows.worker.worker import Worker
from aft.ids import OrderId
from aft.recovery.takeover import Takeover
from aft.runs.records import faults
from aft.runs.states import Status
from tests.setups import eventually
from tests.storing import Stage

CHARGED: list[str] = []


class Declined(aft.Unrecoverable):
    """The bank said no."""


def refund(result: str) -> None:
    CHARGED.remove(result)


@aft.compensate_with(refund)
@aft.activity(name="away_charge")
def charge() -> str:
    key = aft.current().key
    CHARGED.append(key)
    return key


@aft.activity(name="away_decline")
def decline() -> None:
    raise Declined("no")


@aft.flow(name="away_takes_another_way")
def takes_another_way() -> str:
    try:
        decline()
    except Declined:
        return "another way"
    return "no way"


@aft.flow(name="away_catches_its_own_bug")
def catches_its_own_bug() -> str:
    try:
        with aft.savepoint():
            charge()
            raise AssertionError("not what was expected")
    except AssertionError:
        return "went on"


@aft.flow(name="away_long_savepoint")
def long_savepoint() -> str:
    try:
        with aft.savepoint("x" * 300):
            charge()
            raise ValueError("undo this")
    except ValueError:
        return "undone"


@pytest.fixture(autouse=True)
def _nothing_charged() -> None:
    CHARGED.clear()


@pytest.fixture
def app(stage: Stage) -> Iterator[aft.Aft]:
    url = stage.store.engine.url.render_as_string(hide_password=False)
    settings = Settings.load(database_url=url, namespace=stage.namespace, lease=60.0, grace=1.0, levels="none")
    with aft.Aft(settings=settings) as made:
        yield made


def once_away(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let the database be away for the first call."""
    calls: list[None] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise StoreError("the database was away for a moment", transient=True)
        return real(*args, **kwargs)

    return call


def test_a_failure_that_the_flow_catches_takes_it_another_way(app: aft.Aft) -> None:
    with app.dispatcher():
        assert app.start(takes_another_way).result(timeout=60) == "another way"


def test_the_database_s_absence_is_not_mistaken_for_the_failure(app: aft.Aft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "get_fault", once_away(faults.get_fault))
    with app.dispatcher():
        assert app.start(takes_another_way).result(timeout=60) == "another way"


def test_what_was_done_under_a_savepoint_is_not_left_standing_by_a_bug_that_is_caught(app: aft.Aft) -> None:
    run = app.start(catches_its_own_bug)
    with app.store.read() as connection:
        owed = [frame for frame in stack.of_run(connection, run.id) if frame.state in PENDING]
    assert run.status is Status.PARKED or owed == []


def test_a_savepoint_of_any_name_is_undone(app: aft.Aft) -> None:
    run = app.start(long_savepoint)
    assert run.status is Status.COMPLETED
    assert CHARGED == []


class Stub:
    """A broker, and its consumer, of a test that looks at the worker only."""

    def __init__(self) -> None:
        self.acked: list[Delivery] = []

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.acked.extend(deliveries)


def test_a_run_that_was_claimed_is_executed_or_an_orphan_whatever_fails_after(
    app: aft.Aft, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lease = app.submit(takes_another_way), stage.lease()
    wake = OrderId(stage.row(run.id).wake_id or "")
    stale = Message.about_order(app.submit(takes_another_way).id, OrderId("stale"), stage.clock.now())
    good = Message.about_order(run.id, wake, stage.clock.now())
    deps = app.make_deps(lease)
    takeover = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    worker = Worker(deps, cast(Any, Stub()), takeover, 2, declare=lambda: None)
    worker._slots.take(2, timeout=0)

    def away(ignored: object, explain: object) -> None:
        raise StoreError("the database was away for a moment", transient=True)

    monkeypatch.setattr(worker._admission, "report_stale", away)
    deliveries = [Delivery("resume", message.encode().encode(), redelivered=False) for message in (good, stale)]
    admitted = worker._admission.admit(deliveries)
    with pytest.raises(StoreError):
        worker._take(cast(Any, Stub()), admitted, 2)
    assert worker.join(timeout=60)
    with app.store.read() as connection:
        assert deps.executing.orphans(connection, lease.worker) == []
    assert stage.row(run.id).worker_id is None


class Wiped:
    """A broker that has lost its queues, and its consumer, and what makes them again."""

    def __init__(self) -> None:
        self.closed = 0
        self.declared: list[Any] = []

    def consumer(self, queues: Sequence[str], prefetch: int, keys: Iterable[str] = ()) -> Wiped:
        return self

    def receive(self, limit: int, timeout: float) -> list[Delivery]:
        raise Unroutable("a queue does not exist")

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing was delivered."""

    def close(self) -> None:
        self.closed += 1

    def declare(self, *waits: Any) -> None:
        self.declared.append(waits)


def test_who_executes_runs_makes_queues_again_that_are_gone(app: aft.Aft, stage: Stage) -> None:
    wiped: Any = Wiped()
    takeover = Takeover(stage.namespace, stage.store, stage.clock, stage.telemetry, lambda faults: None)
    worker = Worker(app.make_deps(stage.lease()), wiped, takeover, 2, declare=wiped.declare)
    assert worker._receive() == 0.0
    assert (len(wiped.declared), wiped.closed) == (1, 1)
    assert worker.join(timeout=60)


def test_who_decides_about_faults_makes_queues_again_that_are_gone(stage: Stage) -> None:
    wiped: Any = Wiped()
    nobody = cast(Any, None)
    intake = Intake(stage.dispatcher_deps(), wiped, wiped, nobody, nobody)
    assert intake.step() == 0.0
    assert (len(wiped.declared), wiped.closed) == (1, 1)


def test_a_flow_that_is_not_registered_is_refused_before_anything_is_made(stage: Stage) -> None:
    url = stage.store.engine.url.render_as_string(hide_password=False)
    settings = Settings.load(database_url=url, namespace=stage.namespace)
    with aft.Aft(settings=settings, registry=Registry()) as app:
        with pytest.raises(aft.UnknownFlow):
            app.start(takes_another_way)
        assert app.runs() == []


def test_an_absent_database_ends_no_run(app: aft.Aft, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwinding finds the database away; the run is an orphan then, and is undone to its end."""
    monkeypatch.setattr(stack, "owed", once_away(stack.owed))
    with app.dispatcher():
        run = app.start(long_undoing)
        eventually(lambda: run.status.ended)
    assert run.status is Status.COMPENSATED
    assert CHARGED == []


@aft.flow(name="away_undoing")
def long_undoing() -> None:
    charge()
    charge()
    raise ValueError("undo everything")
