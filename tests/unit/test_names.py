"""Claims about names: each queue of each namespace has one of its own, which carries the topology's version."""

from __future__ import annotations

from datetime import timedelta

import pytest

from aft import names

WORK = [names.faults, names.resume, names.compensate, names.undeliverable, names.live_events]


def test_every_name_begins_with_its_namespace_and_ends_with_the_version() -> None:
    spelled = [name("shop") for name in WORK] + [names.delay("shop", timedelta(seconds=10))]
    assert all(name.startswith("shop.") and name.endswith(f".{names.TOPOLOGY}") for name in spelled)


def test_no_two_queues_share_a_name() -> None:
    waits = [timedelta(milliseconds=1), timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)]
    spelled = [name(namespace) for name in WORK for namespace in ("shop", "shop-a")]
    spelled += [names.delay(namespace, wait) for wait in waits for namespace in ("shop", "shop-a")]
    assert len(set(spelled)) == len(spelled)


def test_a_delay_queue_tells_its_wait() -> None:
    assert names.delay("shop", timedelta(minutes=90)) == "shop.delay.1h30m.v2"


def test_the_same_wait_spelled_otherwise_is_the_same_queue() -> None:
    assert names.delay("shop", timedelta(seconds=60)) == names.delay("shop", timedelta(minutes=1))


def test_the_longest_names_fit_a_queue_name() -> None:
    longest = "n" * 40
    wait = timedelta(days=3649, hours=23, minutes=59, seconds=59, milliseconds=999)
    assert max(len(name) for name in (*(each(longest) for each in WORK), names.delay(longest, wait))) <= 255


@pytest.mark.parametrize("namespace", ["a", "shop", "shop-2", "shop_2", "s" * 40])
def test_a_plain_word_is_a_namespace(namespace: str) -> None:
    assert names.check_namespace(namespace) == namespace


@pytest.mark.parametrize(
    "wrong", ["", "Shop", "2shop", "-shop", "a.b", "a b", "a/b", "ä", "shop\n", "s" * 41, "shop*", "shop#"]
)
def test_what_could_be_misread_in_a_queue_name_is_no_namespace(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a namespace; use lower-case letters"):
        names.check_namespace(wrong)
