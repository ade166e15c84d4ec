"""Claims about durations: what is read, how it is spelled, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft import durations

MILLISECOND = timedelta(milliseconds=1)
waits = st.integers(min_value=0, max_value=durations.LONGEST // MILLISECOND).map(lambda count: count * MILLISECOND)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("10s", timedelta(seconds=10)),
        ("1.5s", timedelta(seconds=1.5)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
        (" 10S ", timedelta(seconds=10)),
        ("1m1ms", timedelta(minutes=1, milliseconds=1)),
    ],
)
def test_a_text_of_numbers_and_units_is_read(text: str, wait: timedelta) -> None:
    assert durations.parse(text) == wait


@pytest.mark.parametrize("number", [0, 10, 0.25, 86_400])
def test_a_bare_number_is_seconds(number: float) -> None:
    assert durations.parse(number) == timedelta(seconds=number)


def test_a_timedelta_is_itself() -> None:
    assert durations.parse(timedelta(hours=3)) == timedelta(hours=3)


@pytest.mark.parametrize(
    "wrong", ["", "10", "s", "-1s", "1x", "1h 30m", "1,5s", "1e3s", "ms", "tomorrow", None, True, [], b"10s"]
)
def test_what_is_no_duration_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(ValueError, match="write '250ms', '10s', '5m', '1h30m' or '2d'"):
        durations.parse(wrong)


@pytest.mark.parametrize(
    "wrong", [-1, -0.001, float("nan"), float("inf"), float("-inf"), 1e300, "3651d", timedelta(-1), timedelta.max]
)
def test_a_duration_is_between_nothing_and_ten_years(wrong: Any) -> None:
    with pytest.raises(ValueError, match="between 0 and ten years"):
        durations.parse(wrong)


@pytest.mark.parametrize("absurd", ["9999999999999d", "9" * 400 + "s", 10**400], ids=["days", "digits", "number"])
def test_an_absurd_length_is_refused_like_any_other(absurd: Any) -> None:
    with pytest.raises(ValueError, match="between 0 and ten years"):
        durations.parse(absurd)


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(milliseconds=1), "1ms"),
        (timedelta(seconds=1.5), "1s500ms"),
    ],
)
def test_a_short_wait_is_spelled_in_its_smallest_units(wait: timedelta, text: str) -> None:
    assert durations.format(wait) == text


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (timedelta(seconds=60), "1m"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(hours=24), "1d"),
        (timedelta(days=1, seconds=1), "1d1s"),
    ],
)
def test_a_long_wait_is_spelled_in_its_largest_units(wait: timedelta, text: str) -> None:
    assert durations.format(wait) == text


def test_no_wait_at_all_is_spelled_in_seconds() -> None:
    assert durations.format(timedelta(0)) == "0s"


@given(waits)
def test_what_is_spelled_reads_as_what_it_was(wait: timedelta) -> None:
    assert durations.parse(durations.format(wait)) == wait


@given(waits, waits)
def test_different_waits_are_spelled_differently(one: timedelta, other: timedelta) -> None:
    assert (durations.format(one) == durations.format(other)) == (one == other)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = durations.parse(text)
    except ValueError:
        return
    assert timedelta(0) <= found <= durations.LONGEST


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_a_back_off_is_doubled_by_each_failure_up_to_the_longest(spread: float) -> None:
    for failures, longest in enumerate([0.1, 0.2, 0.4, 0.8, 1.0, 1.0], start=1):
        for _ in range(20):
            assert longest * (1 - spread) <= durations.back_off(failures, 0.1, 1.0, spread=spread) <= longest


def test_a_back_off_can_be_spread_so_that_processes_do_not_try_again_together() -> None:
    assert len({durations.back_off(3, 1.0, 60.0, spread=0.5) for _ in range(20)}) > 1
    assert {durations.back_off(3, 1.0, 60.0) for _ in range(20)} == {4.0}


def test_a_back_off_after_a_year_of_failures_is_still_the_longest() -> None:
    assert durations.back_off(10**7, 0.1, 5.0) == 5.0
