"""Claims about signatures: only who has the secret can make one, and none is good for long."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.security.signing import sign, verify

SECRET = "a secret of the two of us"
BODY = b'{"id":"n1","note":"look"}'
NOW = 1_700_000_000.9
HEADER = sign(SECRET, BODY, NOW)


def test_a_signature_is_spelled_as_the_docs_say() -> None:
    right = hmac.new(SECRET.encode(), b"1700000000." + BODY, hashlib.sha256).hexdigest()
    assert f"t=1700000000,v1={right}" == HEADER


def test_what_was_signed_is_verified() -> None:
    assert verify(SECRET, BODY, HEADER, NOW)


def test_another_body_secret_or_time_is_not() -> None:
    assert not verify(SECRET, BODY + b" ", HEADER, NOW)
    assert not verify(SECRET + "!", BODY, HEADER, NOW)
    assert not verify(SECRET, BODY, HEADER.replace("t=1700000000", "t=1700000001"), NOW)


@pytest.mark.parametrize(("now", "good"), [(-301, False), (-299, True), (299, True), (301, False)])
def test_a_signature_is_good_for_a_while_either_way(now: float, good: bool) -> None:
    assert verify(SECRET, BODY, HEADER, 1_700_000_000 + now) is good


def test_one_right_signature_among_several_is_enough() -> None:
    """A secret is changed by signing with both for a while."""
    moment, right = HEADER.split(",")
    assert verify(SECRET, BODY, f"{moment}, v1=00ff, {right}, v2=other", NOW)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=1700000000",
        HEADER.partition(",")[2],
        HEADER.replace("v1=", "v0="),
        HEADER.replace("v1=", "v1"),
        f"t=1700000000,{HEADER}",
        HEADER.replace("1700000000", "１７００００００００"),
        "t=1700000000,v1=é\ud800",
        "t=" + "9" * 5000,
    ],
)
def test_a_header_that_is_none_verifies_nothing(header: str) -> None:
    assert not verify(SECRET, BODY, header, NOW)


@given(st.text())
def test_no_header_makes_it_raise(header: str) -> None:
    assert not verify(SECRET, BODY, header, NOW)


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="an empty secret verifies nothing"):
        verify("", BODY, HEADER, NOW)
