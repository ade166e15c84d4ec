"""Claims about ids: UUIDs of version 7, unique, in the order of their making."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from aft import ids


def test_an_id_is_a_uuid_of_version_7() -> None:
    found = uuid.UUID(ids.new_id())
    assert (found.version, found.variant) == (7, uuid.RFC_4122)


def test_an_id_is_spelled_as_uuids_are() -> None:
    made = ids.new_id()
    assert made == str(uuid.UUID(made))


def test_no_two_ids_are_the_same() -> None:
    assert len({ids.new_id() for _ in range(10_000)}) == 10_000


def test_an_id_begins_with_the_millisecond_of_its_making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_999_999)
    assert uuid.UUID(ids.new_id()).int >> 80 == 1_700_000_000_123


def test_later_ids_sort_after_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for microsecond in (1, 2, 255, 256, 999, 1_000, 70_000, 1_700_000_000_000_000, 1_700_000_000_000_001):
        monkeypatch.setattr(time, "time_ns", lambda now=microsecond * 1_000: now)
        made.append(ids.new_id())
    assert made == sorted(made)


def test_version_and_variant_survive_any_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    for bits in (b"\x00", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda size, bits=bits: bits * size)
        found = uuid.UUID(ids.new_id())
        assert (found.version, found.variant) == (7, uuid.RFC_4122)
