"""Claims about comparing arguments: a difference is told with both values, and what only looks different is none."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

from aft.codec import arguments_codec
from aft.errors import ReplayDiverged
from aft.flows.course.divergence import check_arguments


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass(frozen=True)
class Bill:
    name: str


@dataclass
class LongerLine:
    sku: str
    price: Decimal
    tags: list[str] = field(default_factory=list)


def pay(order: str, line: Line) -> None: ...


def pay_longer(order: str, line: LongerLine, currency: str = "EUR") -> None: ...


def pay_other(order: str) -> None: ...


def encoded(fn: Callable[..., Any], *args: Any) -> str:
    codec = arguments_codec(fn)
    return codec.encode(codec.bind(args, {}))


def given(fn: Callable[..., Any], *args: Any) -> str:
    """The arguments that a call gives, without defaults: what the journal keeps of them."""
    return arguments_codec(fn).encode_call(args, {})[1]


def check(
    fn: Callable[..., Any], recorded: str, asked: str, ignored: tuple[str, ...] = (), given: str | None = None
) -> None:
    check_arguments("step 3", "activity 'pay'", arguments_codec(fn), recorded, asked, ignored, given=given)


BEFORE = encoded(pay, "a", Line("x", Decimal("1.50")))


def test_equal_arguments_are_no_difference() -> None:
    check(pay, BEFORE, encoded(pay, "a", Line("x", Decimal("1.50"))))


def test_a_difference_is_told_with_both_values_of_what_differs() -> None:
    told = r"step 3 was called with order='a', but the code now calls activity 'pay' there with order='b'; a flow must"
    with pytest.raises(ReplayDiverged, match=told):
        check(pay, BEFORE, encoded(pay, "b", Line("x", Decimal("1.50"))))


def test_a_parameter_and_a_field_that_came_with_a_default_are_no_difference() -> None:
    check(pay_longer, BEFORE, encoded(pay_longer, "a", LongerLine("x", Decimal("1.50"))))
    check(pay_longer, BEFORE, encoded(pay_longer, "a", LongerLine("x", Decimal("1.50")), "USD"))


@dataclass
class Numbered:
    sku: str
    price: Decimal
    id: uuid.UUID = field(default_factory=uuid.uuid4)


class Bare(BaseModel):
    sku: str = Field(alias="SKU")


class Dated(BaseModel):
    sku: str = Field(alias="SKU")
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


def pay_numbered(order: str, line: list[Numbered]) -> None: ...
def pay_lines(order: str, line: list[Line]) -> None: ...
def pay_bare(order: str, line: Bare) -> None: ...
def pay_dated(order: str, line: Dated) -> None: ...


def test_a_field_that_came_with_a_default_that_differs_each_time_is_no_difference() -> None:
    price, other = Decimal(1), Decimal(2)
    before = encoded(pay_lines, "a", [Line("x", price)])
    check(pay_numbered, before, encoded(pay_numbered, "a", [Numbered("x", price)]))
    with pytest.raises(ReplayDiverged):
        check(pay_numbered, before, encoded(pay_numbered, "a", [Numbered("x", other)]))
    modelled = encoded(pay_bare, "a", Bare(SKU="x"))
    check(pay_dated, modelled, encoded(pay_dated, "a", Dated(SKU="x")))
    with pytest.raises(ReplayDiverged):
        check(pay_dated, modelled, encoded(pay_dated, "a", Dated(SKU="y")))


def in_euro(order: str, currency: str = "EUR") -> None: ...
def in_dollars(order: str, currency: str = "USD") -> None: ...
def in_nothing(order: str) -> None: ...


@pytest.mark.parametrize("now", [in_dollars, in_nothing])
def test_an_argument_that_was_left_to_its_default_is_no_difference(now: Callable[..., Any]) -> None:
    check(now, given(in_euro, "a"), encoded(now, "a"))
    check(now, encoded(in_euro, "a"), encoded(now, "a"), given=given(now, "a"))
    for more in (None, given(now, "b")):
        with pytest.raises(ReplayDiverged, match="order='a'"):
            check(now, given(in_euro, "a"), encoded(now, "b"), given=more)


def test_an_argument_that_was_given_and_is_not_any_more_is_a_difference() -> None:
    with pytest.raises(ReplayDiverged, match="currency='CHF'"):
        check(in_euro, given(in_euro, "a", "CHF"), encoded(in_euro, "a"))
    check(in_euro, given(in_euro, "a", "EUR"), encoded(in_euro, "a"))


def test_more_in_a_dict_is_a_difference() -> None:
    def note(what: dict[str, int]) -> None: ...

    with pytest.raises(ReplayDiverged):
        check(note, encoded(note, {"a": 1}), encoded(note, {"a": 1, "b": 2}))


def test_the_order_of_a_set_of_built_values_is_no_difference() -> None:
    def pay_all(bills: frozenset[Bill], held: dict[str, set[Bill]]) -> None: ...

    recorded = '{"bills":[{"name":"a"},{"name":"b"}],"held":{"x":[{"name":"c"},{"name":"d"}]}}'
    asked = '{"bills":[{"name":"b"},{"name":"a"}],"held":{"x":[{"name":"d"},{"name":"c"}]}}'
    check(pay_all, recorded, asked)
    with pytest.raises(ReplayDiverged, match="held="):
        check(pay_all, recorded, asked.replace('"d"', '"e"'))


def test_an_argument_that_the_code_no_longer_gives_is_a_difference() -> None:
    with pytest.raises(ReplayDiverged, match=r"with line=.*, but the code now calls .* with no line;"):
        check(pay_other, BEFORE, encoded(pay_other, "a"))


def test_what_a_rule_has_changed_is_no_difference() -> None:
    check(pay, BEFORE, encoded(pay, "b", Line("x", Decimal("1.50"))), ("order",))


def test_long_values_are_shortened() -> None:
    with pytest.raises(ReplayDiverged) as raised:
        check(pay, encoded(pay, "a" * 100_000, Line("x", Decimal(1))), encoded(pay, "b", Line("x", Decimal(1))))
    assert len(str(raised.value)) < 1_000


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10_000])
def test_a_stored_text_that_cannot_be_read_is_no_difference_of_the_code(text: str) -> None:
    check(pay, text, BEFORE)
