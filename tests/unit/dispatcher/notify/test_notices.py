"""Claims about notices, their pure parts: where they may go, what an answer means, how long to wait."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from aft.dispatcher.notify.receivers import Receivers
from aft.dispatcher.notify.webhook import NoAnswer, ReplyMeaning, classify_status, post
from aft.runs.records.notices import check_url, receiver, wait_after

ALMOST = 1 - 2**-53


def test_each_wait_is_twice_as_long_from_a_second_to_ten_minutes() -> None:
    assert [wait_after(attempts, 0.0).total_seconds() for attempts in range(1, 12)] == [
        *(1, 2, 4, 8, 16, 32, 64, 128, 256),
        *(300, 300),
    ]
    assert [wait_after(attempts, ALMOST).total_seconds() for attempts in (1, 2, 10)] == [2, 4, 600]


@pytest.mark.parametrize("attempts", [-1, 0, 1, 50, 10**9])
@pytest.mark.parametrize("chance", [0.0, 0.5, ALMOST])
def test_no_wait_is_shorter_or_longer_than_that(attempts: int, chance: float) -> None:
    assert timedelta(seconds=1) <= wait_after(attempts, chance) <= timedelta(minutes=10)


@pytest.mark.parametrize(
    ("url", "becomes"),
    [
        ("https://hooks.example/a?b=c", "https://hooks.example/a?b=c"),
        ("HTTP://hooks.example:8080", "http://hooks.example:8080/"),
        ("https://Hooks.EXAMPLE.:0443/A", "https://hooks.example./A"),
        ("https://hooks.example:/", "https://hooks.example/"),
        ("http://hooks.example:443/", "http://hooks.example:443/"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://[0:0::1]:8080/", "http://[::1]:8080/"),
        ("http://[fe80::1%25Lo]/", "http://[fe80::1%25Lo]/"),
        ("https://hooks.example?b=c#d", "https://hooks.example/?b=c"),
        ("http://[::1]:80/", "http://[::1]/"),
    ],
)
def test_a_url_of_the_web_is_taken_with_its_path_spelled_out(url: str, becomes: str) -> None:
    assert check_url(url) == becomes


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example/a",
        "//hooks.example/a",
        "file:///etc/passwd",
        "ftp://hooks.example/a",
        "http:///a",
        "http://hooks.example:port/",
        "http://hooks.example:0/",
        "http://hooks.example:99999/",
        "http://[::1/",
        "http://hooks.example/a b",
        "http://hooks.example/a\r\nX: y",
        "http://höoks.example/",
        "http://hooks.example/" + "a" * 2000,
        "http://me:s3cret@hooks.example/",
    ],
)
def test_anything_else_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="URL to send notices to") as caught:
        check_url(url)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ValueError, match="URL to send notices to"):
        post(url, b"{}", {}, 1.0, Receivers())


def test_a_receiver_is_named_without_the_path_which_may_hold_a_token() -> None:
    assert receiver("https://hooks.example:8443/T0KEN?a=b") == "https://hooks.example:8443/"


SPELLINGS = [
    "HTTPS://hooks.example/",
    "https://HOOKS.example/",
    "https://hooks.example./",
    "https://hooks.example:443/",
    "https://hooks.example.:0443/",
    "https://me:s3cret@hooks.example/",
]


@pytest.mark.parametrize("url", SPELLINGS)
def test_a_receiver_has_one_name_however_it_is_spelled(url: str) -> None:
    assert receiver(url) == "https://hooks.example/"


@pytest.mark.parametrize("url", ["", "https://[::1/T0KEN", "https://h:port/T0KEN", "T0KEN"])
def test_what_is_no_url_has_a_name_too(url: str) -> None:
    assert "T0KEN" not in receiver(url)


@pytest.mark.parametrize(
    ("meaning", "statuses"),
    [
        (ReplyMeaning.HEARD, [200, 201, 202, 204, 299]),
        (ReplyMeaning.REFUSED, [400, 401, 403, 404, 405, 409, 410, 413, 422, 499]),
        (ReplyMeaning.LATER, [103, 301, 302, 304, 307, 308, 408, 425, 429, 500, 502, 503, 504, 599]),
    ],
)
def test_an_answer_means_heard_never_or_later(meaning: ReplyMeaning, statuses: list[int]) -> None:
    assert {status: classify_status(status) for status in statuses} == dict.fromkeys(statuses, meaning)


def test_a_host_that_does_not_exist_is_no_answer() -> None:
    with pytest.raises(NoAnswer, match="no answer: "):
        post("http://nobody.invalid/", b"{}", {}, 5.0, Receivers())


def test_a_host_with_many_addresses_takes_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def never(address: tuple[str, int], timeout: float) -> socket.socket:
        given.append(timeout)
        raise TimeoutError

    addresses = [f"127.0.0.{number}" for number in range(1, 200)]
    monkeypatch.setattr(Receivers, "find", lambda *_: addresses)
    monkeypatch.setattr(socket, "create_connection", never)
    with pytest.raises(NoAnswer, match="no answer within 8 s"):
        post("http://slow.example/", b"{}", {}, 8.0, Receivers(["slow.example"]))
    assert sum(given) <= 8
