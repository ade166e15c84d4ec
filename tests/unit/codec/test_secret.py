"""Claims about refusals: a value that is, or may hold, a secret is in no text of its refusal; nor is a secret key."""

from __future__ import annotations

import dataclasses
import enum
import typing
from typing import Any

import pytest
import typing_extensions
from pydantic import BaseModel, Field

import aft
from aft.codec import decode_untyped, value_codec
from aft.codec.refusal import ValueRefused
from aft.errors import CodecError
from aft.security.redaction import hide_names

S = "hunter2secret"


class Model(BaseModel):
    card: aft.Secret[int]
    amount: int = 1
    number: aft.Secret[int] | None = Field(default=None, alias="cardNumber")
    more: list[Model] = []


@dataclasses.dataclass
class Payment:
    card: aft.Secret[str]
    amount: int


@dataclasses.dataclass
class Account:
    password: Any
    amount: int
    logins: dict[str, Payment] = dataclasses.field(default_factory=dict)


class Typed(typing_extensions.TypedDict):
    card: aft.Secret[str]
    amount: int


class Colour(enum.Enum):
    RED = "red"


REFUSED: list[tuple[Any, Any]] = [
    *((aft.Secret[int], value) for value in (S, [S], {"a": S}, {S: 1})),
    *((aft.Secret[str], value) for value in (S.encode(), [S], 12345678987)),
    *((Model, value) for value in (S, [S], {"card": S}, {"card": [S]}, {"card": 1, "cardNumber": S})),
    *((Payment, value) for value in (S, {"card": {"x": S}, "amount": 1}, {"card": "a", "amount": 1, "crad": [S]})),
    (Payment, Payment(S.encode(), 1)),  # type: ignore[arg-type]
    (Typed, {"card": [S], "amount": 1}),
    (list[aft.Secret[int]], S),
    (list[aft.Secret[str]], [S.encode()]),
    (list[aft.Secret[int]], [S]),
    (tuple[aft.Secret[int], int], (S, 1)),
    (tuple[aft.Secret[int], int], S),
    (tuple[aft.Secret[str], ...], (S.encode(),)),
    (set[aft.Secret[int]], {S}),
    (set[aft.Secret[str]], {S.encode()}),
    (dict[aft.Secret[str], int], {S: "x"}),
    (dict[aft.Secret[str], int], {S.encode(): 1}),
    (aft.Secret[int] | None, S),
    (int | aft.Secret[int], S),
    (aft.Secret[typing.Literal["a"]], S),
    (aft.Secret[Colour], S),
    (aft.Secret[Payment], {"card": S, "amount": S}),
    (typing.Annotated[list[aft.Secret[str]], "note"], S.encode()),
    (dict[str, list[Payment]], {"a": [S]}),
]


@pytest.mark.parametrize(("annotation", "value"), REFUSED, ids=str)
def test_a_refusal_shows_no_secret(annotation: Any, value: Any) -> None:
    with pytest.raises(CodecError) as refused:
        value_codec(annotation).encode(value, "given")
    error = refused.value
    told = f"{error} {error.path} {error.__cause__!r} {error.__context__!r} {error.__context__}"
    assert S not in told
    assert "12345678987" not in told


@pytest.mark.parametrize("name", ["password", "api_key", "cvv", "signal 'otp'", "given_birthday"])
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, S.encode()),
        (int, S),
        (list[int], [S]),
        (dict[str, int], {S: "x"}),
        (set[str], {S.encode()}),
        (Any, {S: {1: S}.keys()}),
    ],
)
def test_a_refusal_shows_nothing_below_a_name_that_says_it_is_secret(name: str, annotation: Any, value: Any) -> None:
    hide_names(["given_birthday"])
    with pytest.raises(CodecError) as refused:
        value_codec(annotation).encode(value, name)
    assert S not in f"{refused.value} {refused.value.path}"
    assert str(refused.value).startswith(name)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict[str, int], {"password": S}),
        (Account, {"password": "a", "amount": 1, "logins": {"ann": S}}),
        (list[dict[str, dict[str, int]]], [{"credentials": {"a": S}}]),
    ],
)
def test_names_within_a_value_count_as_well(annotation: Any, value: Any) -> None:
    with pytest.raises(CodecError) as refused:
        value_codec(annotation).encode(value, "given")
    assert S not in str(refused.value)


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (Model, {"card": 1, "amount": "many"}, "given.amount: the str 'many' does not fit there, in "),
        (Model, {"card": 1, "more": [{"card": 2, "amount": "many"}]}, "given.more[0].amount: the str 'many' does"),
        (Payment, {"card": "a"}, "given.amount: this field is missing in a dict with 'card'"),
        (dict[str, Payment], {"ann": {"card": "a", "amount": "many"}}, "given.ann.amount: the str 'many' does not fit"),
        (list[aft.Secret[int]], [1, S], "given[1]: *** does not fit there, in "),
        (tuple[aft.Secret[int], int], (1, "many"), "given[1]: the str 'many' does not fit there"),
    ],
)
def test_what_is_not_secret_beside_a_secret_is_shown(annotation: Any, value: Any, told: str) -> None:
    with pytest.raises(CodecError) as refused:
        value_codec(annotation).encode(value, "given")
    assert str(refused.value).startswith(told)


def test_a_key_that_is_secret_is_not_shown_in_a_path() -> None:
    with pytest.raises(CodecError, match=r"value\[\*\*\*\]: the str 'many' does not fit") as refused:
        value_codec(dict[aft.Secret[str], int]).decode('{"sesame-open": "many"}')
    assert "sesame-open" not in f"{refused.value} {refused.value.path}"


def test_a_refusal_says_nothing_before_its_place_is_known() -> None:
    assert S not in f"{ValueRefused(S)} {ValueRefused(S)!r}"


@pytest.mark.parametrize("text", [f'"{S}"', f'{{"a": ["{S}"]}}', S, "1e999", "[" * 2000])
def test_a_refused_text_is_kept_as_a_secret_where_one_is_declared(text: str) -> None:
    hidden = value_codec(list[aft.Secret[int]]).hide(text)
    assert repr(decode_untyped(hidden)) == "Secret(***)"
    assert value_codec(list[int]).hide(text) == text
