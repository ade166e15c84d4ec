"""Claims about live events: which runs something happened to, and nothing else; no body that is sent ends a reader."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from aft import telemetry
from aft.brokers.embedded.live_events import LARGEST
from aft.ids import new_id
from aft.telemetry import Event, RunStarted
from aft.telemetry.live_events import MOST_RUNS, LiveEvents, runs_of

EVENTS = [each for each in vars(telemetry).values() if isinstance(each, type) and each.__base__ is Event]


class Sent:
    """Keeps what is broadcast."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def broadcast(self, namespace: str, body: bytes) -> None:
        assert namespace == "shop"
        self.bodies.append(body)


def gathered(*events: Event) -> list[bytes]:
    """What is broadcast about these events."""
    sent = Sent()
    live = LiveEvents(sent, "shop")
    for event in events:
        live.note(event)
    live.interrupt()
    assert live.step() > 0
    return sent.bodies


@pytest.mark.parametrize("event", EVENTS)
def test_others_hear_which_run_something_happened_to_and_nothing_else(event: type[Event]) -> None:
    made = event(**{field.name: f"secret {field.name}" for field in fields(event)})
    told = [json.loads(body) for body in gathered(made)]
    assert told == ([{"runs": ["secret run"]}] if hasattr(made, "run") else [])


def test_what_happens_to_a_run_in_a_short_time_is_one_event() -> None:
    runs = [new_id() for _ in range(3)]
    (body,) = gathered(*(RunStarted(run=run, flow="order") for run in runs * 100))
    assert runs_of(body) == set(runs)


def test_many_runs_are_divided_among_events_that_every_broker_takes() -> None:
    runs = {new_id() for _ in range(2 * MOST_RUNS + 1)}
    bodies = gathered(*(RunStarted(run=run, flow="order") for run in runs))
    assert set.union(*map(runs_of, bodies)) == runs
    assert (len(bodies), max(map(len, bodies)) <= LARGEST) == (3, True)
    assert all(body.isascii() for body in bodies)


def test_nothing_is_said_twice_or_when_nothing_happened() -> None:
    sent = Sent()
    live = LiveEvents(sent, "shop")
    live.note(RunStarted(run="r1", flow="order"))
    for _ in range(3):
        live.interrupt()
        live.step()
    assert len(sent.bodies) == 1


@pytest.mark.parametrize(
    "body", [b"[" * 8000, b'{"runs":[[]]}', b'{"runs":{}}', b'{"run":"1"}', b"null", b"!", b"\xff", b'{"runs":[7]}']
)
def test_what_is_no_event_is_passed_over(body: bytes) -> None:
    assert runs_of(body) == set()


def test_an_event_of_the_run_is_told_from_one_of_another() -> None:
    assert runs_of(b'{"runs":["1","3"]}') & {"1"}
    assert not runs_of(b'{"runs":["2"]}') & {"1"}
