"""Claims about redaction: what must not be read is masked, all else stays, and nothing moves."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.cli.output import format_data
from aft.redaction import hide_names, is_hidden, redact, redact_all

CARDS = [
    "4111111111111111",
    "4111 1111 1111 1111",
    "5500-0000-0000-0004",
    "378282246310005",
    "6011000990139424",
    "3530111333300000",
    "36227206271667",
]


@pytest.mark.parametrize("card", CARDS)
def test_a_cards_number_is_hidden_but_for_its_end(card: str) -> None:
    shown = redact(f"card {card} was refused")
    assert card not in shown
    assert shown.endswith(f"{card[-4:]} was refused")
    assert sum(sign.isdigit() for sign in shown) == 4


@pytest.mark.parametrize(
    "text",
    [
        "order 4111111111111112",
        "run 01a1ed3b-b2bc-7100-bb15-c42e41ebc350",
        "2026-11-18 07:05:18.246017",
        "1234567890123456",
        "a4111111111111111",
        "max_tokens of the model",
        "https://example.org/a:b/c",
        "the password is wrong",
        "it is basic",
    ],
)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abcdefghij.klm", "abcdefghij"),
        ("password=hunter2 for ann", "hunter2"),
        ("{'api_key': 'abcdef'}", "abcdef"),
        ('"access_token":"abcdef"', "abcdef"),
        ("postgresql://me:hunter2@db/shop", "hunter2"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def", "eyJzdWIi"),
        ("GET /?token=abcdef&page=2", "abcdef"),
        ("PGPASSWORD=hunter2", "hunter2"),
        ("password='correct horse battery'", "horse"),
        ("X-Api-Key: abcdef", "abcdef"),
        ("pwd=hunter2", "hunter2"),
        ('{\\"password\\": \\"hunter2\\"}', "hunter2"),
        ("Authorization: Token abcdef", "abcdef"),
    ],
)
def test_passwords_and_tokens_are_hidden(text: str, hidden: str) -> None:
    shown = redact(text)
    assert hidden not in shown
    assert len(shown) == len(text)


@given(st.text())
def test_nothing_moves(text: str) -> None:
    assert len(redact(text)) == len(text)


def test_texts_are_hidden_by_their_names_and_numbers_are_not() -> None:
    assert is_hidden("password", "x")
    assert is_hidden("card_number", "x")
    assert is_hidden("card_cvv", "x")
    assert is_hidden("passwords", ["x"])
    assert not is_hidden("max_tokens", 5)
    assert not is_hidden("password", "")
    assert not is_hidden("spinner", "x")


def test_every_text_of_a_value_is_redacted() -> None:
    value = {"a": ["password=hunter2", {"b": "4111111111111111"}], "c": 1}
    assert redact_all(value) == {"a": ["password=*******", {"b": "************1111"}], "c": 1}


@pytest.mark.parametrize(
    "part",
    [
        "_token",
        "password ",
        "eyJ-",
        "eyJaaaaaaaaa.",
        "bearer ",
        "://a:",
        "4111 ",
        "4-",
        "token=",
        "api_key:",
        "Basic  ",
    ],
)
def test_hostile_texts_keep_nobody_busy(part: str) -> None:
    """Twice as much text takes about twice as long, and not four times; counted in steps of CPU, with much room."""

    def cost(count: int) -> float:
        text = part * count
        begun = time.process_time()
        redact(text)
        return time.process_time() - begun

    cost(100)
    assert min(cost(16_000) for _ in range(3)) < 40 * max(min(cost(2_000) for _ in range(3)), 0.0005)


def test_names_that_the_settings_list_are_hidden() -> None:
    assert not is_hidden("unlucky_number", "13")
    assert redact("unlucky_number='13'") == "unlucky_number='13'"
    hide_names(["Unlucky_Number"])
    assert is_hidden("unlucky_number", "13")
    assert not is_hidden("not_unlucky_number", "13")
    assert redact("unlucky_number='13', lucky_number=7") == "unlucky_number=****, lucky_number=7"
    assert redact('{"unlucky_number": "13"}') == '{"unlucky_number": ****}'


def test_a_card_is_hidden_before_its_text_is_cut() -> None:
    text = f"{'x' * 23} 4111111111111111 and more"
    assert "41111" not in format_data({"note": text, "order": 7}, 60)
