"""Claims about stored values as people and programs see them: ordinary JSON, nothing of the encoding."""

from __future__ import annotations

import base64
import enum
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from aft.codec import MARK, decode_untyped, stored_to_json, stored_to_text, tagged_to_json, value_codec, value_to_json


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    price: Decimal
    colours: frozenset[Colour]


class Bill(BaseModel):
    lines: tuple[Line, ...]
    due: date


MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)

SHOWN: list[tuple[Any, Any, Any]] = [
    (Any, MOMENT, "2026-03-01T12:30:00+00:00"),
    (Any, datetime(2026, 7, 1, 8, tzinfo=ZoneInfo("Europe/Vienna")), "2026-07-01T08:00:00+02:00"),
    (Any, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Vienna"), fold=1), "2026-10-25T02:30:00+01:00"),
    (Any, datetime(2026, 1, 1), "2026-01-01T00:00:00"),
    (Any, date(2024, 2, 29), "2024-02-29"),
    (Any, time(8, 30), "08:30:00"),
    (Any, timedelta(minutes=1, milliseconds=500), 60.5),
    (Any, Decimal("12.50"), "12.50"),
    (Any, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Any, b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
    (Any, (1, "a", (None,)), [1, "a", [None]]),
    (Any, {3, 1, 2}, [1, 2, 3]),
    (Any, {1: Decimal(2), None: (3,)}, {"1": "2", "null": [3]}),
    (Any, {(1, date(2024, 1, 1)): True}, {'[1,"2024-01-01"]': True}),
    (Any, {1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
    (Any, {MARK: "mine", "v": (1,)}, {MARK: "mine", "v": [1]}),
    (Any, [{"a": {"b": [Decimal(1)]}}], [{"a": {"b": ["1"]}}]),
    (Colour, Colour.RED, "red"),
    (
        Bill,
        Bill(lines=(Line(Decimal("1.10"), frozenset({Colour.RED})),), due=date(2024, 1, 31)),
        {"lines": [{"price": "1.10", "colours": ["red"]}], "due": "2024-01-31"},
    ),
]


@pytest.mark.parametrize(("annotation", "value", "shown"), SHOWN, ids=lambda found: str(found)[:40])
def test_a_stored_value_is_shown_as_ordinary_json(annotation: Any, value: Any, shown: Any) -> None:
    text = value_codec(annotation).encode(value, "value")
    assert stored_to_json(text) == shown
    assert json.loads(stored_to_text(text)) == shown
    assert tagged_to_json(json.loads(text)) == shown
    assert value_to_json(decode_untyped(text)) == shown


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.decimals(allow_nan=False, allow_infinity=False, places=2)
    | st.dates()
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
    | st.uuids()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])) | st.dates(), inner)
    ),
)


@given(VALUES)
def test_nothing_of_the_encoding_is_left_at_any_depth(value: Any) -> None:
    text = value_codec(Any).encode(value, "value")
    assert MARK in stored_to_text(text) or MARK not in json.dumps(stored_to_json(text))
    json.dumps(stored_to_json(text), allow_nan=False)
    if MARK not in str(value):
        assert MARK not in stored_to_text(text)


@pytest.mark.parametrize(
    ("damaged", "shown"),
    [
        (None, None),
        ("not json", "not json"),
        ("", ""),
        ('{"$aft": "of tomorrow", "v": [1]}', [1]),
        ('{"$aft": "of tomorrow"}', {"$aft": "of tomorrow"}),
        ('{"$aft": 7, "v": 1}', 1),
        ('{"$aft": "timedelta", "v": "x"}', {"$aft": "timedelta", "v": "x"}),
        ('{"$aft": "dict", "v": [[1]]}', {"$aft": "dict", "v": [[1]]}),
        ('{"$aft": "datetime", "v": "2024-01-01T00:00:00", "zone": "No/Where"}', "2024-01-01T00:00:00[No/Where]"),
    ],
)
def test_what_was_damaged_is_shown_as_it_is(damaged: str | None, shown: Any) -> None:
    assert stored_to_json(damaged) == shown


def test_text_that_is_nested_too_deep_to_be_read_is_shown_as_it_is() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert stored_to_json(deep) == deep
