"""Claims about live events that travel together: each arrives as it was, and what is cut off harms no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aft.brokers.rabbitmq.express import pack, unpack


@given(st.lists(st.binary(min_size=1), max_size=20))
def test_events_that_travel_together_arrive_as_they_were(bodies: list[bytes]) -> None:
    assert list(unpack(pack(bodies))) == bodies


@given(st.binary(max_size=200))
def test_what_nobody_packed_ends(body: bytes) -> None:
    assert sum(map(len, unpack(body))) <= len(body)
