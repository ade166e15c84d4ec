"""Claims about events: everybody hears, nobody can break the emitter, logs and streams say the same."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from datetime import timedelta

import pytest

from aft import telemetry
from aft.telemetry import (
    ActivityRecorded,
    Event,
    RunClaimed,
    RunParked,
    RunStarted,
    Telemetry,
    log_event,
)

STARTED = RunStarted(run="r1", flow="order")
EVENTS = [each for each in vars(telemetry).values() if isinstance(each, type) and each.__base__ is Event]


def test_every_subscriber_hears_every_event_in_order() -> None:
    hub, one, two = Telemetry(), list[Event](), list[Event]()
    hub.subscribe(one.append)
    hub.subscribe(two.append)
    parked = RunParked(run="r1", reason="because")
    hub.emit(STARTED)
    hub.emit(parked)
    assert one == two == [STARTED, parked]


def test_who_has_unsubscribed_hears_no_more() -> None:
    hub, heard, still = Telemetry(), list[Event](), list[Event]()
    leave = hub.subscribe(heard.append)
    hub.subscribe(still.append)
    leave()
    leave()
    hub.emit(STARTED)
    assert (heard, still) == ([], [STARTED])


def test_it_is_known_whether_there_are_subscribers_so_that_nothing_is_made_for_none() -> None:
    hub, heard = Telemetry(), list[Event]()
    assert not hub.has_subscribers
    leave = hub.subscribe(heard.append)
    assert hub.has_subscribers
    leave()
    assert not hub.has_subscribers


def test_a_subscriber_that_raises_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    hub, heard, calls = Telemetry(), list[Event](), []

    def broken(event: Event) -> None:
        calls.append(event)
        raise ValueError("no disk")

    hub.subscribe(broken)
    hub.subscribe(heard.append)
    hub.emit(STARTED)
    hub.emit(STARTED)
    assert len(calls) == len(heard) == 2
    assert [record.message for record in caplog.records] == ["telemetry subscriber failed: event=RunStarted"] * 2


def test_a_subscriber_may_leave_while_it_hears() -> None:
    hub, heard = Telemetry(), list[Event]()

    def once(event: Event) -> None:
        leave()
        heard.append(event)

    leave = hub.subscribe(once)
    hub.subscribe(heard.append)
    hub.emit(STARTED)
    assert heard == [STARTED, STARTED]


def test_the_log_says_what_happened_then_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aft")
    log_event(
        ActivityRecorded(
            run="r1", path="2", activity="charge", outcome="ok", frame=None, elapsed=timedelta(milliseconds=1500)
        )
    )
    assert caplog.messages == ["activity recorded: run=r1 path=2 activity=charge outcome=ok elapsed=1.5"]


def test_an_event_is_logged_at_its_own_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aft")
    log_event(RunClaimed(run="r1", flow="order", epoch=2, wake="f1"))
    log_event(STARTED)
    log_event(RunParked(run="r1", reason="because"))
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.INFO, logging.ERROR]


def test_a_quiet_log_costs_no_spelling(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def spell(kind: type[Event]) -> tuple[str, ...]:
        raise AssertionError("spelled for nobody")

    monkeypatch.setattr("aft.telemetry.bus._names", spell)
    caplog.set_level(logging.WARNING, "aft")
    log_event(STARTED)
    assert not caplog.records


def test_every_event_is_in_the_table_at_the_top_and_nothing_else() -> None:
    listed = re.findall(r"^``(\w+)``", telemetry.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(event.__name__ for event in EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_says_what_happened_and_cannot_be_changed(event: type[Event]) -> None:
    assert re.fullmatch(r"[a-z]+( [a-z]+)+", event.text)
    assert event.level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
    assert event.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert fields(event)
