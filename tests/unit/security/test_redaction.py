"""Claims about redaction: what must not be read is masked, all else stays, and nothing moves."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.cli.show.output import format_data
from aft.security.redaction import hide_names, is_hidden, redact, redact_all

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
        "http://host:8080/users/ann@example.org",
        "https://host:443/users/ann@example.org",
        'password="" user="ann"',
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
        ("postgresql://u:hunter2/secret@h/d", "hunter2"),
        ("postgresql://u:hunter2/secret@h/d", "secret"),
        ("postgresql://u:5432/secret@h/d", "5432"),
        ("https://u:hunter2/secret@h/d", "hunter2"),
        ('{"password": "hunter\\"two\\" three"}', "three"),
        ("token=b'hunter2'", "hunter2"),
        ("passwords: ['hunter2', 'hunter3']", "hunter3"),
        (f"api_key: '{'abcdef ' * 500}'", "abcdef"),
        ("password: 'hunter2 which was cut off", "off"),
    ],
)
def test_passwords_and_tokens_are_hidden(text: str, hidden: str) -> None:
    shown = redact(text)
    assert hidden not in shown
    assert len(shown) == len(text)


SECRETS = [
    (CARDS[0], CARDS[0][:6]),
    (CARDS[1], CARDS[1][:6]),
    ("password=hunter2", "hunter2"),
    ("pwd=hunter2", "hunter2"),
    ("Bearer abcdefghij.klm", "abcdefghij"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def", "eyJzdWIi"),
    ("Authorization: Token abcdef", "abcdef"),
    ("postgresql://me:hunter2@db/shop", "hunter2"),
]


@pytest.mark.parametrize(("text", "hidden"), SECRETS)
@pytest.mark.parametrize("before", ["\n", "\t", "x\n", "x\r\n", "\x1b", "\xa0"])
def test_what_json_or_repr_writes_before_it_hides_no_secret(text: str, hidden: str, before: str) -> None:
    text = f"Card:{before}{text}"
    for written in (json.dumps(text), json.dumps(json.dumps(text)), repr(text), repr([text])):
        assert hidden not in redact(written)


@pytest.mark.parametrize("depth", range(6))
@pytest.mark.parametrize("name", ["password", "Authorization", "X-Api-Key"])
def test_json_within_json_is_redacted_at_any_depth(depth: int, name: str) -> None:
    text = json.dumps({name: 'hunter2 "quoted" secret', "user": "ann"})
    for _ in range(depth):
        text = json.dumps({"Message": text})
    shown = redact(text)
    assert "hunter2" not in shown
    assert "secret" not in shown
    assert "ann" in shown


@pytest.mark.parametrize("between", ["\n", "\xa0", "\t", "\\n"])
def test_a_cards_number_may_be_broken_over_lines(between: str) -> None:
    assert "4111" not in redact(f"card 4111 1111{between}1111 1111")


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


def test_names_in_a_value_are_redacted_and_none_is_lost() -> None:
    value = {"4111111111111111": 1, "password=hunter2": 2, "password=hunter3": 3, "password=******* (2)": 4, "a": 5}
    assert redact_all(value) == {
        "************1111": 1,
        "password=*******": 2,
        "password=******* (3)": 3,
        "password=******* (2)": 4,
        "a": 5,
    }


def test_many_names_that_become_equal_keep_nobody_busy() -> None:
    begun = time.process_time()
    assert len(redact_all({f"password={number:06}": 1 for number in range(20_000)})) == 20_000
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("card", [4111111111111111, 4111111111111111.0, [(4111111111111111,)]])
def test_a_cards_number_may_be_a_number(card: object) -> None:
    assert "4111111" not in str(redact_all(card))


def test_numbers_of_any_size_pass() -> None:
    for number in (10**5000, -(10**5000), 1e300, float("inf"), True, None, 10**13):
        assert redact_all(number) is number


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
        "://a:b/",
        "x://a:/",
        "://@a:1/ ",
        "https://a:",
        'token="',
        'token="a\n',
        'token=\\"',
        'token="\\',
        "token=[",
        "token\\\\",
        "authorization\\",
        "\\n4",
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
    assert min(cost(8_000) for _ in range(3)) < 40 * max(min(cost(1_000) for _ in range(3)), 0.0005)


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
