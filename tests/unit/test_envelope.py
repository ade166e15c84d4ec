"""Claims about messages: ids travel, nothing else; whatever else comes in is refused with its reason."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.envelope import MOST_BYTES, MOST_DEPTH, MOST_DIGITS, MOST_TEXT, Message, MessageKind, MessageRefused, decode
from aft.ids import FaultId, OrderId, RunId

AT = datetime(2024, 5, 17, 12, 30, tzinfo=UTC)

ids = st.text(string.ascii_letters + "-_. ", min_size=1, max_size=MOST_TEXT)
moments = st.datetimes(
    min_value=datetime(1970, 1, 1),
    timezones=st.just(UTC) | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
traces = st.dictionaries(ids, st.text(string.ascii_letters + ' "\\{}[]', max_size=40), max_size=4)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(MessageKind))
    about_fault = kind is not MessageKind.RESUME or draw(st.booleans())
    name = draw(ids)
    return Message(
        id=draw(ids),
        kind=kind,
        run=RunId(draw(ids)),
        fault=FaultId(name) if about_fault else None,
        order=None if about_fault else OrderId(name),
        at=draw(moments),
        trace=draw(traces),
    )


def body(**changes: Any) -> dict[str, Any]:
    """A message that is right but for the changes; None leaves a key out."""
    right: dict[str, Any] = {
        "v": 1,
        "id": "m1",
        "kind": "resume",
        "run": "r1",
        "fault": "f1",
        "at": AT.isoformat(),
    }
    return {key: value for key, value in (right | changes).items() if value is not None}


def spelled(**changes: Any) -> bytes:
    return json.dumps(body(**changes)).encode()


plain = messages().map(lambda message: replace(message, id="m-1", run=RunId("r_1"), trace={}).encode().encode())


@given(plain, st.none() | st.integers(0, 400), st.sampled_from([b"", b"fault", b"9"]) | st.binary(max_size=3))
def test_what_is_read_at_once_is_what_would_be_read_at_length(sound: bytes, where: int | None, noise: bytes) -> None:
    body = sound if where is None else sound[: where % len(sound)] + noise + sound[where % len(sound) + len(noise) :]
    assert outcome(body) == outcome(b" " + body)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "fault", "fault": None, "order": "o1"},
        {"at": "2024-05-17"},
        {"at": "2024-05-17T12:30:00"},
        {"at": "2024-13-17T12:30:00Z"},
        {"id": "m" * (MOST_TEXT + 1)},
        {"at": "1" * 99},
    ],
)
def test_what_is_refused_is_refused_however_it_is_spelled(changes: dict[str, Any]) -> None:
    tight = json.dumps(body(**changes), separators=(",", ":")).encode()
    assert outcome(tight) == outcome(b" " + tight)
    assert isinstance(outcome(tight), str)


def outcome(body: bytes) -> Message | str:
    """What is read, or why not; a place in the text is not the same with a blank before it."""
    try:
        return decode(body)
    except MessageRefused as refused:
        return str(refused).partition(":")[0].partition(" bytes")[0]


# --- what travels ---


@given(messages())
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert decode(message.encode().encode()) == message


def test_a_message_about_a_fault_names_it_and_no_order() -> None:
    message = Message.about_fault(MessageKind.COMPENSATE, RunId("r"), FaultId("f"), AT)
    assert (message.kind, message.run, message.fault, message.order) == (MessageKind.COMPENSATE, "r", "f", None)
    assert message.wake == "f"


def test_a_message_about_an_order_asks_the_run_to_go_on() -> None:
    message = Message.about_order(RunId("r"), OrderId("o"), AT)
    assert (message.kind, message.fault, message.order, message.wake) == (MessageKind.RESUME, None, "o", "o")


def test_each_message_has_an_id_of_its_own() -> None:
    assert Message.about_order(RunId("r"), OrderId("o"), AT).id != Message.about_order(RunId("r"), OrderId("o"), AT).id


def test_a_message_of_ids_is_a_few_hundred_bytes() -> None:
    run, fault = RunId("0190f5c0-0000-7000-8000-000000000000"), FaultId("0190f5c0-0000-7000-8000-000000000001")
    assert len(Message.about_fault(MessageKind.FAULT, run, fault, AT).encode()) < 300


def test_keys_of_a_later_release_are_passed_over() -> None:
    assert decode(spelled(later=[1])).run == "r1"


# --- what is refused ---


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_refused(noise: bytes) -> None:
    with pytest.raises(MessageRefused):
        decode(noise)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["v", "id", "kind", "run", "fault", "order", "at", "trace"]), json_values)
def test_a_message_with_one_key_of_anything_is_read_or_refused(key: str, value: Any) -> None:
    try:
        found = decode(json.dumps(body() | {key: value}).encode())
    except MessageRefused:
        return
    assert found.at.tzinfo is not None


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_damaged_message_is_read_or_refused(where: int, noise: bytes) -> None:
    sound = spelled(trace={"traceparent": "00-ab-cd-01"})
    where %= len(sound)
    try:
        decode(sound[:where] + noise + sound[where + 1 :])
    except MessageRefused:
        pass


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{", "not JSON"),
        (b"[]", "a JSON object is expected, not list"),
        (b'"text"', "a JSON object is expected, not str"),
        (b"null", "a JSON object is expected, not NoneType"),
        (b'{"v": NaN}', "NaN is not JSON"),
        (b'{"v": -Infinity}', "-Infinity is not JSON"),
        (b'{"v": 1, "v": 1}', "a key appears twice"),
        (b'{"trace": {"a": "1", "a": "1"}}', "a key appears twice"),
    ],
)
def test_what_is_no_message_is_refused_with_its_reason(noise: bytes, reason: str) -> None:
    with pytest.raises(MessageRefused, match=reason):
        decode(noise)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"v": None}, "version None; this aft reads version 1"),
        ({"v": 2}, "version 2; this aft reads version 1"),
        ({"v": "1"}, "version '1'"),
        ({"v": True}, "version True"),
        ({"v": 1.0}, "version 1.0"),
        ({"kind": "explode"}, "unknown kind: 'explode'"),
        ({"kind": None}, "unknown kind"),
        ({"kind": 7}, "unknown kind"),
        ({"run": None}, "'run' must be a text"),
        ({"run": ""}, "'run' must be a text"),
        ({"run": "x" * (MOST_TEXT + 1)}, "'run' must be a text"),
        ({"run": "a\x00b"}, "'run' must be a text"),
        ({"id": 5}, "'id' must be a text"),
        ({"fault": None}, "names neither a fault nor an order"),
        ({"order": "o1"}, "names both a fault and an order"),
        ({"kind": "fault", "fault": None, "order": "o1"}, "a message of kind 'fault' must name a fault"),
        ({"kind": "compensate", "fault": None, "order": "o1"}, "a message of kind 'compensate' must name a fault"),
        ({"fault": [1]}, "'fault' must be a text"),
        ({"at": None}, "'at' must be a text"),
        ({"at": "yesterday"}, "'at' must be a time in ISO format"),
        ({"at": "2024-05-17T12:30:00"}, "'at' must name its time zone"),
        ({"trace": []}, "'trace' must be an object of texts"),
        ({"trace": {"a": 1}}, "'trace' must be an object of texts"),
        ({"trace": {"a": "é"}}, "'trace' must hold plain characters only"),
        ({"trace": {"a\n": "a"}}, "'trace' must hold plain characters only"),
    ],
)
def test_a_message_that_is_wrong_in_one_place_is_refused_for_it(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageRefused, match=reason):
        decode(spelled(**changes))


# --- limits, before anything is parsed ---


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(json, "loads", parse)


@pytest.mark.usefixtures("unparsed")
@pytest.mark.parametrize(
    ("heavy", "reason"),
    [
        (b" " * (MOST_BYTES + 1), f"{MOST_BYTES + 1} bytes; {MOST_BYTES} are the most"),
        (b'{"v": ' + b"9" * (MOST_DIGITS + 1) + b"}", f"a number of more than {MOST_DIGITS} digits"),
        (b"[" * (MOST_DEPTH + 1), f"nested more than {MOST_DEPTH} deep"),
        (b'{"a":' * (MOST_DEPTH + 1), f"nested more than {MOST_DEPTH} deep"),
        (b'{"a\\"[":[[[{', f"nested more than {MOST_DEPTH} deep"),
    ],
)
def test_a_costly_message_is_refused_before_it_is_parsed(heavy: bytes, reason: str) -> None:
    with pytest.raises(MessageRefused, match=reason):
        decode(heavy)


def test_brackets_inside_a_text_are_no_nesting() -> None:
    assert decode(spelled(id='["[[[[[[{{{{{{')).id == '["[[[[[[{{{{{{'


def test_a_message_of_exactly_the_most_bytes_is_read() -> None:
    sound = spelled()
    assert decode(sound + b" " * (MOST_BYTES - len(sound))).run == "r1"


def test_a_trace_id_of_digits_is_no_number() -> None:
    trace = {"traceparent": "00-12345678901234567890123456789012-1234567890123456-01"}
    assert decode(spelled(trace=trace)).trace == trace


@pytest.mark.parametrize("key", ["id", "run", "fault"])
def test_half_a_surrogate_pair_is_refused(key: str) -> None:
    with pytest.raises(MessageRefused):
        decode(spelled(**{key: "a\ud800"}))


@pytest.mark.parametrize("inner", [b"[" * 200 + b"]" * 200, b"1" * 200])
def test_a_text_that_ends_in_a_backslash_hides_nothing_from_the_limits(inner: bytes) -> None:
    body = (
        b'{"v":1,"id":"\\\\","kind":"fault","x":' + inner + b',"run":"r","fault":"f","at":"2026-01-01T00:00:00+00:00"}'
    )
    with pytest.raises(MessageRefused, match=r"nested more than|digits"):
        decode(body)
