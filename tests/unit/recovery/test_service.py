"""Claims about services: a thread that goes on, whatever its steps raise, until it is told to stop."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from aft.errors import BrokerError
from aft.recovery import service as module
from aft.recovery.service import Service
from aft.telemetry import Event, ServiceFailed, ServiceRecovered, Telemetry
from tests.setups import eventually

#: Seconds that a step which is through asks to wait.
END = 60.0


@pytest.fixture
def heard() -> list[Event]:
    return []


class Impatient(threading.Event):
    """Lets no service wait, but at its end; tells how long each wait would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        if timeout == END:
            return super().wait(timeout)
        self.asked.append(timeout or 0.0)
        return self.is_set()


Start = Callable[[Callable[[], float]], Service]


@pytest.fixture
def stopping() -> Impatient:
    return Impatient()


@pytest.fixture
def start(heard: list[Event], stopping: Impatient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a service on a step; it is stopped at the end of the test."""
    telemetry, begun = Telemetry(), list[Service]()
    telemetry.subscribe(heard.append)

    def begin(step: Callable[[], float]) -> Service:
        made = Service("test", step, telemetry)
        monkeypatch.setattr(made, "_stopping", stopping)
        begun.append(made)
        made.start()
        return made

    yield begin
    for service in begun:
        service.stop()
        assert service.join(60)


class Steps:
    """A step that returns or raises what it is given, one after the other; then tells that it is through."""

    def __init__(self, *outcomes: float | Exception) -> None:
        self._left = list(outcomes)
        self.through = threading.Event()

    def __call__(self) -> float:
        if not self._left:
            self.through.set()
            return END
        outcome = self._left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_a_step_follows_at_once_where_no_pause_is_asked_for(start: Start) -> None:
    steps = Steps(*[0.0] * 1000)
    start(steps)
    assert steps.through.wait(60)


def test_stopping_ends_a_pause(start: Start) -> None:
    steps = Steps()
    service = start(steps)
    assert steps.through.wait(60)
    service.stop()
    assert service.join(60)


def test_one_that_was_never_started_can_be_stopped_and_joined() -> None:
    service = Service("test", lambda: 0.0, Telemetry())
    service.stop()
    assert service.join(0)


def test_joining_tells_that_a_step_has_not_ended() -> None:
    go_on = threading.Event()

    def step() -> float:
        go_on.wait(60)
        return 0.0

    service = Service("test", step, Telemetry())
    service.start()
    service.stop()
    assert not service.join(0)
    go_on.set()
    assert service.join(60)


def test_an_error_is_told_and_survived(start: Start, heard: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(BrokerError("away"), 0.0, ValueError("odd"), KeyError())
    with caplog.at_level(logging.ERROR, "aft"):
        start(steps)
        assert steps.through.wait(60)
    eventually(lambda: len(heard) == 5)
    assert heard == [
        ServiceFailed(service="test", why="away"),
        ServiceRecovered(service="test", errors=1),
        ServiceFailed(service="test", why="odd"),
        ServiceFailed(service="test", why="KeyError()"),
        ServiceRecovered(service="test", errors=2),
    ]
    # What is expected to happen needs no traceback; what is not does.
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR", "ERROR"]


def test_an_outage_is_told_less_and_less_often_and_its_end_once(start: Start, heard: list[Event]) -> None:
    steps = Steps(*[BrokerError("away")] * 20)
    start(steps)
    assert steps.through.wait(60)
    eventually(lambda: ServiceRecovered(service="test", errors=20) in heard)
    assert [event.name for event in heard] == ["ServiceFailed"] * 5 + ["ServiceRecovered"]


def test_it_waits_longer_each_time_an_error_repeats_up_to_a_limit(
    start: Start, stopping: Impatient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    steps = Steps(*[BrokerError("away")] * 8, 0.0, BrokerError("again"))
    start(steps)
    assert steps.through.wait(60)
    waits = stopping.asked
    assert waits[:8] == sorted(waits[:8])
    assert waits[7] == module.LONGEST_WAIT
    assert waits[8] == waits[0] < 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_hour_of_errors_is_survived_like_the_first(start: Start) -> None:
    steps = Steps(*[BrokerError("away")] * 1100)

    def step() -> float:
        pause = steps()
        service.stop()
        return pause

    service = start(step)
    assert service.join(60)
    assert steps.through.is_set()


def test_a_step_that_waits_is_interrupted_when_its_service_is_stopped() -> None:
    begun, interrupted = threading.Event(), threading.Event()

    def step() -> float:
        begun.set()
        assert interrupted.wait(60)
        return 0.0

    service = Service("waiting", step, Telemetry(), interrupted.set)
    service.start()
    assert begun.wait(60)
    service.stop()
    assert service.join(60)
