"""Claims about the text by which people look for runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.errors import DefinitionError
from aft.runs.find.find_runs import RunFilter
from aft.runs.find.where import fields, parse_where
from aft.runs.states import Status

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", RunFilter()),
        ("status:parked", RunFilter(statuses=(Status.PARKED,))),
        ("status:parked,failed", RunFilter(statuses=(Status.PARKED, Status.FAILED))),
        ("flow:buy", RunFilter(flow="buy")),
        ("flow:buy@2", RunFilter(flow="buy", version=2)),
        ("key:order-7", RunFilter(key="order-7")),
        ("key:order-*", RunFilter(key_prefix="order-")),
        ("tag:region=eu tag:tier=3", RunFilter(tags={"region": "eu", "tier": 3})),
        ("tag:note='two words'", RunFilter(tags={"note": "two words"})),
        ("owner:ads resource:payments priority:5", RunFilter(owner="ads", resource="payments", priority=5)),
        ("overdue:yes", RunFilter(overdue=True)),
        ("since:2d", RunFilter(made_from=NOW - timedelta(days=2))),
        ("until:2026-11-01", RunFilter(made_before=datetime(2026, 11, 1, tzinfo=UTC))),
        ("since:2026-11-01T08:00+02:00", RunFilter(made_from=datetime(2026, 11, 1, 6, tzinfo=UTC))),
        ('text:"no answer" reason:bank', RunFilter(text="no answer", reason="bank")),
        ("activity:charge fault:TimeoutError", RunFilter(activity="charge", fault_type="TimeoutError")),
        ("group:5f0c9a31d2b7", RunFilter(group="5f0c9a31d2b7")),
    ],
)
def test_each_word_narrows_what_is_found(text: str, wanted: RunFilter) -> None:
    assert parse_where(text, NOW) == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("statos:parked", "did you mean 'status'"),
        ("colour:red", "there are status, flow, key"),
        ("parked", "is no field with a value; write 'status:parked,failed'"),
        ("flow:", "is no field with a value"),
        ("status:happy", "is none of 'running'"),
        ("flow:buy@two", "'two' must be a whole number"),
        ("priority:high", "'high' must be a whole number"),
        ("tag:region", "must be a name with a value, like tag:region=eu"),
        ("tag:all=[1,2]", "not lists or objects"),
        ("overdue:no", "must be overdue:yes"),
        ("since:yesterday", "must be how long ago, like since:2d, or a time"),
        ("since:1h until:2h", "no time lies after since: and before until:"),
        ("flow:a flow:b", "flow: is given twice"),
        ("text:'no end", "a quotation that does not end"),
        ("x" * 3000, "2,000 are the most"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_possible(text: str, reason: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_where(text, NOW)
    assert reason in str(refused.value)


def test_every_field_has_an_example_that_can_be_read() -> None:
    assert parse_where(" ".join(fields().values()).replace("until:1h", ""), NOW) != RunFilter()


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_where(text, NOW)
    except DefinitionError:
        pass
