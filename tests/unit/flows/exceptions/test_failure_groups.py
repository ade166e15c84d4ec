"""Claims about failures that are grouped by their cause."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.flows.exceptions.failure_groups import group_id, normalise, place_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 was refused", "order 4711 was refused"),
        ("order o-17 was refused", "order o-4711 was refused"),
        ("no answer from 10.0.0.7:8080 after 2.5s", "no answer from 10.0.0.9:8080 after 31s"),
        ("user 'ada' is unknown", 'user "Grace Hopper" is unknown'),
        ("run 01a1f382-d7e8-709c-b48e-559660c20587 is gone", "run 01a1f382-0000-709c-b48e-559660c20587 is gone"),
        ("no mail to ada@example.com", "no mail to grace@example.org"),
        ("a  wide\ntext", "a wide text"),
    ],
)
def test_what_differs_from_case_to_case_makes_no_group(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    "other",
    [
        ("compensator", "pay", "Timeout", "no answer", "shop.py:pay"),
        ("activity", "refund", "Timeout", "no answer", "shop.py:pay"),
        ("activity", "pay", "Refused", "no answer", "shop.py:pay"),
        ("activity", "pay", "Timeout", "wrong answer", "shop.py:pay"),
        ("activity", "pay", "Timeout", "no answer", "bank.py:ask"),
    ],
)
def test_another_step_exception_text_or_place_is_another_group(other: tuple[str, str, str, str, str]) -> None:
    assert group_id("activity", "pay", "Timeout", "no answer", "shop.py:pay") != group_id(*other)


@given(st.text())
def test_any_message_has_a_group_that_shows_nothing_of_it(message: str) -> None:
    found = group_id("activity", "pay", "Timeout", message, "")
    assert len(found) == 12
    assert set(found) <= set("0123456789abcdef")


def fail_in_a_library() -> None:
    json.loads("no JSON")


def test_the_place_is_the_innermost_code_of_the_user_s_own() -> None:
    with pytest.raises(ValueError, match="Expecting value") as failed:
        fail_in_a_library()
    assert place_of(failed.value.__traceback__) == "test_failure_groups.py:fail_in_a_library"
    assert place_of(None) == ""
