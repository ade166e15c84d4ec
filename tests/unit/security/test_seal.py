"""Seals: what is sealed with our key comes in as it was; nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.envelope import Message, MessageRefused, decode
from aft.ids import OrderId, RunId
from aft.security.seal import Seal

KEY, OTHER = "k" * 32, "o" * 32
BODY = Message.about_order(RunId("run"), OrderId("order"), datetime(2026, 11, 17, tzinfo=UTC)).encode().encode()


def test_a_message_comes_in_as_it_was_sealed() -> None:
    sealed = Seal([KEY]).seal(BODY)
    assert sealed != BODY
    assert Seal([KEY]).unseal(sealed) == BODY
    assert decode(sealed) == decode(BODY), "a process that knows nothing of seals can read it"


def test_without_keys_nothing_is_sealed_and_everything_is_taken() -> None:
    assert Seal().seal(BODY) == Seal().unseal(BODY) == BODY
    assert Seal().unseal(Seal([KEY]).seal(BODY)) == BODY


def test_what_is_not_sealed_or_with_another_key_is_refused() -> None:
    with pytest.raises(MessageRefused, match="not sealed"):
        Seal([KEY]).unseal(BODY)
    with pytest.raises(MessageRefused, match="none of our keys"):
        Seal([KEY]).unseal(Seal([OTHER]).seal(BODY))


def test_a_key_is_changed_in_two_steps() -> None:
    before, during, after = Seal([OTHER]), Seal([KEY, OTHER]), Seal([KEY])
    assert during.unseal(before.seal(BODY)) == during.unseal(after.seal(BODY)) == BODY
    assert after.unseal(during.seal(BODY)) == BODY
    assert before.seal(BODY) == Seal([OTHER]).seal(during.seal(BODY)), "a seal takes the place of another one"


@given(st.binary(max_size=300), st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_nothing_that_was_changed_is_taken(other: bytes, place: int, change: int) -> None:
    seal = Seal([KEY])
    sealed = bytearray(seal.seal(BODY))
    sealed[place] ^= change
    for forged in (bytes(sealed), other, other + seal.seal(BODY)[-78:]):
        if forged != seal.seal(BODY):
            with pytest.raises(MessageRefused):
                seal.unseal(forged)
