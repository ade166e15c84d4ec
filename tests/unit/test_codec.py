"""Claims about values as JSON text: what goes in comes back, or it is refused with the path to it."""

from __future__ import annotations

import collections
import enum
import inspect
import ipaddress
import json
import pathlib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, SecretStr, computed_field

from aft.codec import (
    MOST_BYTES,
    MOST_DEPTH,
    arguments_codec,
    decode_untyped,
    result_codec,
    value_codec,
)
from aft.codec.ordered_sets import OrderedFrozenSet, OrderedSet
from aft.errors import CodecError, DefinitionError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mood(enum.StrEnum):
    GOOD = "good"


class Rank(enum.IntEnum):
    FIRST = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    extra: Any = None


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Point3(Point):
    z: int = 0


@dataclass
class Order:
    lines: list[Line]
    placed: datetime
    colour: Colour = Colour.RED
    tags: set[str] = field(default_factory=set)
    corners: dict[tuple[int, int], Point] = field(default_factory=dict)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = len(self.lines)


@dataclass(eq=False)
class Nameless:
    x: int


class Receipt(BaseModel):
    number: int
    paid_at: datetime | None = None
    slot: str = Field(default="", alias="slotId")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"no. {self.number}"


class BigReceipt(Receipt):
    remark: str = ""


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Numbers(RootModel[list[int]]):
    pass


class Address(NamedTuple):
    street: str
    point: Point


class Profile(typing.TypedDict):
    name: str
    age: typing.NotRequired[int]
    home: typing.NotRequired[Address]


class Team(typing.TypedDict, total=False):
    lead: typing.Required[Profile]
    others: list[Profile]


class NewProfile(typing_extensions.TypedDict):
    name: str


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    inside: T


class Opaque:
    pass


class Angry:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    __hash__ = None  # type: ignore[assignment]


def back(annotation: Any, value: Any) -> Any:
    codec = value_codec(annotation)
    text = codec.encode(value, "value")
    json.loads(text)
    return codec.decode(text)


def refusal(annotation: Any, value: Any, where: str = "value") -> CodecError:
    with pytest.raises(CodecError) as caught:
        value_codec(annotation).encode(value, where)
    return caught.value


MOMENT = datetime(2024, 2, 29, 12, 30, 1, 5)
BERLIN = ZoneInfo("Europe/Berlin")

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (str, "grüß\x00 \U0001f600"),
    (int, 10**40),
    (float, -0.1),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=7)),
    (datetime, MOMENT),
    (datetime, MOMENT.replace(tzinfo=UTC)),
    (datetime, MOMENT.replace(tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    (date, date(2024, 2, 29)),
    (time, time(1, 2, 3, 4)),
    (time, time(1, 2, tzinfo=UTC)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (timedelta, timedelta.max),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (set[UUID], {UUID(int=1), UUID(int=2)}),
    (frozenset[bytes], frozenset({b"a"})),
    (dict[str, list[Decimal]], {"a": [Decimal(1)]}),
    (dict[int, str], {1: "a"}),
    (dict[tuple[int, date], str], {(1, date(2024, 1, 1)): "a"}),
    (dict[Colour, int], {Colour.RED: 1}),
    (int | str, "1"),
    (int | str, 1),
    (str | date, date(2024, 1, 1)),
    (date | str, "2024-01-01"),
    (bytes | str, "aa"),
    (str | Decimal, Decimal("1.5")),
    (list[int] | tuple[int, ...], (1, 2)),
    (list[int] | set[int], {1, 2}),
    (int | bool, True),
    (float | int, 1),
    (int | None, None),
    (Literal["a", 1], 1),
    (Literal[1, "1"], "1"),
    (Colour, Colour.BLUE),
    (Colour | None, Colour.BLUE),
    (list[Mood], [Mood.GOOD]),
    (Rank, Rank.FIRST),
    (Rights, Rights.READ | Rights.WRITE),
    (Point, Point(1, 2.5)),
    (Point | Point3, Point3(1, 2.5, 3)),
    (set[Point], {Point(1), Point(2)}),
    (
        Order,
        Order([Line("a", Decimal("1.10"), {1: (MOMENT,)})], MOMENT, Colour.BLUE, {"x"}, {(1, 2): Point(1)}),
    ),
    (Receipt, Receipt(number=1, paid_at=MOMENT, slotId="s")),
    (Loose, Loose(x=1, y=(2, b"3"))),  # type: ignore[call-arg]
    (Numbers, Numbers([1])),
    (Box[Point], Box[Point](inside=Point(1))),
    (Address, Address("a", Point(1))),
    (Profile, {"name": "n"}),
    (Profile, {"name": "n", "age": 3, "home": Address("a", Point(1))}),
    (list[Team] | None, [{"lead": {"name": "n"}, "others": [{"name": "m", "age": 1}]}]),
    (NewProfile, {"name": "n"}),
    (Sequence[int], (1, 2)),
    (Sequence[int], [1, 2]),
    (Mapping[str, int], {"a": 1}),
    (Annotated[int, Field(gt=0)], 1),
    (pathlib.Path, pathlib.Path("/a/b")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("127.0.0.1")),
    (collections.deque[int], collections.deque([1, 2])),
    (Any, {"a": [1, 1.0, True, None, "x", {"b": ()}]}),
    (object, {1: "a", (2, "b"): {b"c"}, None: frozenset({UUID(int=3)})}),
    (dict, {"a": (1, {MOMENT})}),
    (list, [(1,), {2}]),
    (dict[str, Any], {"$aft": "datetime", "v": [Decimal(1)]}),
    (Any, {"$aft": {"$aft": {}}}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda found: str(found)[:40])
def test_a_value_comes_back_equal_and_of_its_type(annotation: Any, value: Any) -> None:
    found = back(annotation, value)
    assert found == value
    assert type(found) is type(value) or isinstance(found, OrderedSet | OrderedFrozenSet)


def exact(value: Any) -> Any:
    """A value with its types spelled out, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return "dict", [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    if isinstance(value, set | frozenset):
        return set if isinstance(value, set) else frozenset, sorted(repr(exact(item)) for item in value)
    return type(value), repr(value)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(BERLIN))
    | st.dates()
    | st.times()
    | st.timedeltas()
)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
anything = st.recursive(
    scalars | st.sets(hashables, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.just("$aft"), inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
    ),
    max_leaves=15,
)


@given(anything)
def test_whatever_has_no_declared_type_comes_back_exactly(value: Any) -> None:
    assert exact(back(Any, value)) == exact(value)


@given(anything)
def test_declaring_a_container_of_anything_changes_nothing(value: Any) -> None:
    assert exact(back(dict[str, Any], {"k": value})) == exact({"k": value})
    assert exact(back(Line, Line("s", Decimal(1), value)).extra) == exact(value)


@given(
    st.builds(
        Order,
        st.lists(
            st.builds(Line, st.text(), st.decimals(allow_nan=False, allow_infinity=False), anything),
            max_size=3,
        ),
        st.datetimes(timezones=st.none() | st.just(UTC)),
        st.sampled_from(Colour),
        st.sets(st.text(), max_size=3),
        st.dictionaries(
            st.tuples(st.integers(), st.integers()),
            st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
            max_size=2,
        ),
    )
)
def test_an_order_comes_back(order: Order) -> None:
    assert back(Order, order) == order


@given(st.text())
def test_reading_any_text_raises_nothing_but_codec_error(text: str) -> None:
    for annotation in (Any, int, datetime, Order, Receipt, dict[str, Any], Profile, Colour):
        try:
            value_codec(annotation).decode(text)
        except CodecError:
            pass


tags: st.SearchStrategy[Any] = st.sampled_from(
    [
        "datetime",
        "date",
        "time",
        "timedelta",
        "decimal",
        "uuid",
        "bytes",
        "dict",
        "tuple",
        "set",
        "no",
        3,
        None,
        [],
    ]
)
crafted = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["2024-01-01", "1e9999999", "NaN", "../../etc/passwd", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"$aft": tags | inner}, optional={"v": inner, "zone": inner, "fold": inner, "other": inner}
        )
    ),
    max_leaves=6,
)


@given(crafted)
def test_reading_crafted_tags_raises_nothing_but_codec_error(value: Any) -> None:
    text = json.dumps(value)
    for annotation in (Any, int, float, datetime, Order, set[Any]):
        try:
            value_codec(annotation).decode(text)
        except CodecError:
            pass


@given(anything)
def test_written_text_is_never_refused_and_never_holds_a_nul(value: Any) -> None:
    text = value_codec(Any).encode(value, "value")
    assert "\x00" not in text
    text.encode()
    decode_untyped(text)


def test_a_zone_comes_back_as_the_zone_and_not_as_its_offset() -> None:
    found = back(datetime, datetime(2024, 3, 30, 12, tzinfo=BERLIN))
    assert found.tzinfo is BERLIN
    assert (found + timedelta(days=1)).utcoffset() == timedelta(hours=2)


def test_the_second_of_two_equal_hours_comes_back_as_the_second() -> None:
    second = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)
    for annotation in (datetime, Any, datetime | None):
        found = back(annotation, second)
        assert (found.fold, found.utcoffset()) == (1, timedelta(hours=1))


def test_a_moment_in_a_model_keeps_its_zone_and_its_fold() -> None:
    found = back(Receipt, Receipt(number=1, paid_at=datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)))
    assert found.paid_at.fold == 1
    assert found.paid_at.tzinfo is BERLIN


def test_an_int_is_welcome_where_a_float_is_declared() -> None:
    assert exact(back(float, 1)) == exact(1.0)
    assert exact(back(Point, Point(1, 2)).y) == exact(2.0)


def test_an_int_that_no_float_can_hold_is_refused() -> None:
    assert refusal(float, 2**53 + 1).path == "value"
    assert refusal(Point, Point(1, 2**53 + 1)).path == "value.y"


MISFITS: list[tuple[Any, Any]] = [
    (int, "1"),
    (int, True),
    (int, 1.0),
    (float, True),
    (float, "1"),
    (str, 1),
    (str, b"a"),
    (bytes, "a"),
    (bool, 1),
    (None, 0),
    (date, MOMENT),
    (datetime, date(2024, 1, 1)),
    (datetime, "2024-01-01T00:00:00"),
    (list[int], (1,)),
    (tuple[int, ...], [1]),
    (set[int], [1]),
    (tuple[int, str], (1,)),
    (Colour, "red"),
    (Colour, Mood.GOOD),
    (Literal["a"], "b"),
    (UUID, str(UUID(int=1))),
    (Decimal, 1.5),
    (Point, {"x": 1, "y": 2.0}),
    (Point, (1, 2.0)),
    (Receipt, {"number": 1}),
    (Address, ("a", Point(1))),
    (dict[int, str], {"1": "a"}),
    (Annotated[int, Field(gt=0)], 0),
    (Iterable[int], [1]),
    (SecretStr, SecretStr("s")),
]


@pytest.mark.parametrize(("annotation", "value"), MISFITS, ids=lambda found: str(found)[:40])
def test_what_does_not_fit_its_declared_type_is_refused(annotation: Any, value: Any) -> None:
    assert refusal(annotation, value).path.startswith("value")


def test_a_refusal_names_the_path_the_type_and_the_way_out() -> None:
    order = Order([Line("a", Decimal(1)), Line("b", Decimal(1)), Line("c", "1.5")], MOMENT)  # type: ignore[arg-type]
    error = refusal(Order, order, "order")
    assert error.path == "order.lines[2].price"
    assert str(error).startswith("order.lines[2].price: the str '1.5' does not fit")
    assert "come back as a decimal.Decimal" in str(error)


def test_a_field_that_cannot_be_read_back_is_named() -> None:
    order = Order([Line("a", "x")], MOMENT)  # type: ignore[arg-type]
    assert refusal(Order, order, "order").path == "order.lines[0].price"


class Wanted(typing.TypedDict):
    size: int


#: What is stored, the path that a refusal names, and how it begins behind that.
MISSING_FIELDS = [
    (Order, '{"lines": [{"sku": "a"}], "at": "2024-01-01T00:00:00"}', "value.lines[0].price", "a dict with 'sku'"),
    (Receipt, "{}", "value.number", "an empty dict"),
    (Wanted, '{"colour": "red"}', "value.size", "a dict with 'colour'"),
    (dict[str, Point], '{"a b": {"y": 1.5}}', "value['a b'].x", "a dict with 'y'"),
    (Point | None, '{"y": 1.5}', "value.x", "a dict with 'y'"),
]


@pytest.mark.parametrize(("annotation", "text", "path", "shown"), MISSING_FIELDS, ids=lambda found: str(found)[:30])
def test_a_missing_field_is_named_with_its_path_and_what_is_there(
    annotation: Any, text: str, path: str, shown: str
) -> None:
    with pytest.raises(CodecError) as caught:
        value_codec(annotation).decode(text)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: this field is missing in {shown}; ")


@pytest.mark.parametrize(
    ("annotation", "text", "said"),
    [
        (int, '"abc"', "value: the str 'abc' does not fit int: "),
        (int, "null", "value: None does not fit int: "),
        (list[int], '[1, {"a": 2}]', "value[1]: a dict with 'a' does not fit there, in list[int]: "),
        (date, '{"$aft": "decimal", "v": "1.5"}', "value: the Decimal Decimal('1.5') does not fit datetime.date: "),
        (bool, json.dumps("x" * 500), "value: the str 'xxxx"),
    ],
)
def test_a_value_that_does_not_fit_is_shown_in_short(annotation: Any, text: str, said: str) -> None:
    with pytest.raises(CodecError) as caught:
        value_codec(annotation).decode(text)
    assert str(caught.value).startswith(said)
    assert len(str(caught.value)) < 250


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_a_foreign_object_is_refused_in_good_english_with_a_way_out() -> None:
    said = str(refusal(Any, {"a": [object()]}))
    assert said.startswith("value.a[0]: an object cannot be stored; pass the data that it is made from")
    assert "or an id by which" in said
    assert str(refusal(Any, Rude())).startswith(f"value: a {__name__}.Rude cannot be stored; ")
    assert "annotate the parameter, field or result with Point" in str(refusal(Any, Point(1)))
    assert "annotate the parameter, field or result with Colour" in str(refusal(Any, [Colour.RED]))
    assert str(refusal(Order, Point(1))).startswith(f"value: a {__name__}.Point cannot be stored as {__name__}.Order")


def test_paths_pass_through_unions() -> None:
    assert refusal(list[Point | str] | None, [Point(1), Point("x")], "ps").path == "ps[1].x"  # type: ignore[arg-type]


def test_an_instance_of_a_subclass_is_refused_rather_than_cut_down() -> None:
    assert "Point3" in str(refusal(Point, Point3(1, 2.0, 3)))
    assert refusal(list[Point], [Point(1), Point3(1)]).path == "value[1]"
    assert "BigReceipt" in str(refusal(Receipt, BigReceipt(number=1, remark="r")))
    assert refusal(dict[str, Receipt | None], {"a b": BigReceipt(number=1)}).path == "value['a b']"


def test_a_surplus_key_of_a_typed_dict_is_refused() -> None:
    assert "'nick'" in str(refusal(Profile, {"name": "n", "nick": "x"}))


def with_mark(found: dict[str, int]) -> dict[str, int]:
    return {**found, "mark": 1}


def test_what_a_validator_changes_is_refused_rather_than_changed() -> None:
    assert "1 items 2" in str(refusal(Annotated[dict[str, int], AfterValidator(with_mark)], {"a": 1}))
    assert "equal" in str(refusal(Annotated[str, AfterValidator(str.lower)], "ABC"))


def test_an_ambiguous_union_is_refused_rather_than_guessed() -> None:
    assert "come back as" in str(refusal(Point3 | Point, Point(1)))
    assert "come back as" in str(refusal(Mood | str, Mood.GOOD))


def test_a_dataclass_without_equality_is_compared_by_its_fields() -> None:
    assert back(Nameless, Nameless(3)).x == 3


FOREIGN: list[tuple[Any, str]] = [
    (Point(1), "Point"),
    (Receipt(number=1), "Receipt"),
    (Colour.RED, "Colour"),
    (Mood.GOOD, "Mood"),
    (Address("a", Point(1)), "Address"),
    (Opaque(), "Opaque"),
    (Opaque, "type"),
    (len, "builtin_function"),
    ((n for n in [1]), "generator"),
    (iter([]), "list_iterator"),
    (bytearray(b"a"), "bytearray"),
    (1j, "complex"),
    (collections.OrderedDict(a=1), "OrderedDict"),
    (Angry(), "Angry"),
]


@pytest.mark.parametrize(("value", "name"), FOREIGN, ids=lambda found: str(type(found)))
@pytest.mark.parametrize("annotation", [dict[str, Any], dict, Any])
def test_what_has_no_declared_type_must_be_of_a_known_one(annotation: Any, value: Any, name: str) -> None:
    error = refusal(annotation, {"a": [0, value]}, "result")
    assert error.path == "result.a[1]"
    assert name in str(error)
    assert "or an id by which" in str(error) or f"annotate the parameter, field or result with {name}" in str(error)


def test_a_foreign_object_inside_a_model_is_refused_with_its_path() -> None:
    assert refusal(Line, Line("s", Decimal(1), [Point(1)])).path == "value.extra[0]"
    assert refusal(Line, Line("s", Decimal(1), [Opaque()])).path == "value.extra[0]"
    assert refusal(Line, Line("s", Decimal(1), (n for n in [1]))).path == "value.extra"
    assert refusal(Line, Line("s", Decimal(1), Angry())).path == "value.extra"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused_with_its_path(number: float) -> None:
    assert refusal(float, number).path == "value"
    assert refusal(list[float], [1.0, number]).path == "value[1]"
    assert refusal(Any, {"a": number}).path == "value.a"
    assert refusal(Point, Point(1, number)).path == "value.y"
    assert refusal(Any, {number: 1}).path == "value[<float>]"
    assert refusal(collections.deque[float], collections.deque([number])).path == "value[0]"


@pytest.mark.parametrize("number", ["NaN", "sNaN", "Infinity"])
def test_a_decimal_that_is_no_number_is_refused(number: str) -> None:
    assert refusal(Decimal, Decimal(number)).path == "value"
    assert refusal(Any, [Decimal(number)]).path == "value[0]"
    assert refusal(Line, Line("s", Decimal(number))).path == "value.price"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "1" * 5000])
def test_stored_numbers_that_are_none_are_refused(text: str) -> None:
    for annotation in (Any, float, list[float]):
        with pytest.raises(CodecError):
            value_codec(annotation).decode(text)


def test_a_lone_surrogate_is_refused_with_its_path() -> None:
    assert refusal(str, "\ud800").path == "value"
    assert refusal(Any, {"a": ["\udfff"]}).path == "value.a[0]"
    assert refusal(dict[str, int], {"\ud800": 1}).path.startswith("value[")
    assert refusal(Line, Line("\ud800", Decimal(1))).path == "value.sku"
    for text in ('"\\ud800"', '["\\uDFFF"]', '{"\\ud800": 1}', '"\ud800"'):
        with pytest.raises(CodecError, match="surrogate"):
            decode_untyped(text)


def test_text_that_only_looks_like_a_surrogate_is_welcome() -> None:
    assert back(str, "\\ud800") == "\\ud800"
    assert decode_untyped('"\\ud83d\\ude00"') == "\U0001f600"


def test_an_integer_too_long_to_spell_is_refused() -> None:
    assert refusal(int, 10**5000).path == "value"
    assert refusal(Any, [10**5000]).path == "value[0]"


def test_what_is_too_large_is_refused_on_both_ways() -> None:
    assert "bytes" in str(refusal(str, "x" * MOST_BYTES))
    assert "bytes" in str(refusal(Any, ["ä" * (MOST_BYTES // 2)]))
    assert refusal(Any, {"a": b"x" * (MOST_BYTES + 1)}).path == "value.a"
    assert back(str, "x" * (MOST_BYTES - 2)) == "x" * (MOST_BYTES - 2)
    for text in ('"' + "x" * MOST_BYTES + '"', '"' + "ä" * (MOST_BYTES // 2) + '"'):
        with pytest.raises(CodecError, match="the most"):
            decode_untyped(text)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_what_is_nested_too_deeply_is_refused_on_both_ways() -> None:
    assert back(Any, nested(MOST_DEPTH)) == nested(MOST_DEPTH)
    assert "deep" in str(refusal(Any, nested(MOST_DEPTH + 1)))
    assert "deep" in str(refusal(list[Any], nested(MOST_DEPTH + 1)))
    for text in ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "[" * 1_000_000, '{"a":' * 100_000):
        with pytest.raises(CodecError, match="deep"):
            decode_untyped(text)


@given(st.integers(min_value=1, max_value=MOST_DEPTH + 2), st.sampled_from(["list", "tuple", "dict", "pairs"]))
def test_what_may_be_written_may_be_read(depth: int, kind: str) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"list": [value], "tuple": (value,), "dict": {"k": value}, "pairs": {1: value}}[kind]
    if depth * {"list": 1, "tuple": 2, "dict": 1, "pairs": 3}[kind] > MOST_DEPTH:
        assert "deep" in str(refusal(Any, value))
    else:
        assert back(Any, value) == value


def test_brackets_inside_texts_are_not_nesting() -> None:
    assert back(Any, ['[{"\\' * 500] * 3) == ['[{"\\' * 500] * 3


def test_hostile_text_is_refused_in_one_pass() -> None:
    for text in ('"' + '\\"' * 400_000, "[" * 65 + '"' + '\\"' * 400_000, "{" * 70 + '"\\'):
        with pytest.raises(CodecError):
            decode_untyped(text)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for annotation in (Any, list, list[Any]):
        assert "deep" in str(refusal(annotation, loop))
    assert refusal(Line, Line("s", Decimal(1), loop)).path.startswith("value")


def test_a_key_that_appears_twice_is_refused() -> None:
    for text in ('{"a": 1, "a": 2}', '{"$aft": "dict", "v": [["a", 1], ["a", 2]]}'):
        with pytest.raises(CodecError, match="twice"):
            decode_untyped(text)


def test_json_written_by_hand_is_welcome() -> None:
    found = value_codec(Order).decode(
        '{"lines": [{"sku": "a", "price": "1.5"}], "placed": "2024-02-29T12:30:01.000005"}'
    )
    assert found == Order([Line("a", Decimal("1.5"))], MOMENT)
    assert value_codec(set[date]).decode('["2024-02-29"]') == {date(2024, 2, 29)}


def test_stored_text_that_does_not_fit_names_the_path() -> None:
    with pytest.raises(CodecError) as caught:
        value_codec(Order).decode('{"lines": [{"sku": "a", "price": "x"}], "placed": "2024-02-29T12:30:01"}')
    assert caught.value.path == "value.lines[0].price"


@dataclass
class Explosive:
    x: int

    def __post_init__(self) -> None:
        if self.x > 1:
            raise KeyError("boom")


def test_what_a_user_s_type_raises_while_it_is_built_is_a_codec_error() -> None:
    with pytest.raises(CodecError, match="boom"):
        value_codec(Explosive).decode('{"x": 2}')


def test_no_stored_name_is_looked_up() -> None:
    for tag in ("tests.unit.test_codec.Point", "Point", "os.system", "__class__"):
        with pytest.raises(CodecError, match="unknown tag"):
            decode_untyped(json.dumps({"$aft": tag, "v": {"x": 1}}))


def test_the_same_set_gives_the_same_text() -> None:
    names = [f"name {n}" for n in range(50)]
    assert value_codec(Any).encode(set(names), "v") == value_codec(Any).encode({*names[25:], *names}, "v")
    assert json.loads(value_codec(set[str]).encode(set(names), "v"))["v"] == sorted(names)


def test_a_codec_is_made_once_and_the_order_of_a_union_counts() -> None:
    assert value_codec(list[Point]) is value_codec(list[Point])
    assert value_codec(Point | Point3) is not value_codec(Point3 | Point)


def test_an_annotation_that_cannot_be_hashed_is_welcome() -> None:
    assert back(Annotated[int, ["note"]], 1) == 1


# ------------------------------------------------------------------------------------------------ arguments


def sample(
    a: int,
    b: Point,
    /,
    c: date,
    *rest: Decimal,
    d: Colour = Colour.RED,
    e: str | None = None,
    **others: float,
) -> list[Point]:
    return []


def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    codec = arguments_codec(fn)
    return codec.call_arguments(codec.decode(codec.encode(codec.bind(args, kwargs))))


def test_arguments_come_back_where_the_function_takes_them() -> None:
    day = date(2024, 1, 1)
    args, kwargs = call(sample, 1, Point(2), day, Decimal(3), Decimal(4), e="x", f=1.5)
    assert args == (1, Point(2), day, Decimal(3), Decimal(4))
    assert kwargs == {"d": Colour.RED, "e": "x", "f": 1.5}
    assert sample(*args, **kwargs) == []


def test_arguments_are_stored_by_name_with_their_defaults() -> None:
    codec = arguments_codec(sample)
    assert codec.names == ("a", "b", "c", "rest", "d", "e", "others")
    stored = json.loads(codec.encode(codec.bind((1, Point(2), date(2024, 1, 1), Decimal(3)), {"z": 1})))
    assert (stored["a"], stored["d"], stored["e"], stored["others"]) == (1, "red", None, {"z": 1.0})
    assert isinstance(stored["rest"], list)


def test_a_wrong_call_is_python_s_own_type_error() -> None:
    with pytest.raises(TypeError, match=r"sample\(\) missing"):
        arguments_codec(sample).bind((), {})


def test_a_refused_argument_is_named() -> None:
    codec = arguments_codec(sample)
    for args, kwargs, path in (
        (("1", Point(2), date(2024, 1, 1)), {}, "a"),
        ((1, Point("x"), date(2024, 1, 1)), {}, "b.x"),  # type: ignore[arg-type]
        ((1, Point(2), date(2024, 1, 1), Decimal(1), "x"), {}, "rest[1]"),
        ((1, Point(2), date(2024, 1, 1)), {"z": "x"}, "others.z"),
    ):
        with pytest.raises(CodecError) as caught:
            codec.encode(codec.bind(args, kwargs))
        assert caught.value.path == path
        assert str(caught.value).startswith(f"sample(): {path}: ")


def test_an_unannotated_parameter_takes_json_and_the_known_types() -> None:
    def plain(a, *b, **c):  # type: ignore[no-untyped-def]
        return a

    assert call(plain, {1: (2,)}, 3, k={4}) == (({1: (2,)}, 3), {"k": {4}})
    with pytest.raises(CodecError, match="or an id by which"):
        call(plain, Opaque())


def test_a_keyword_that_looks_like_a_tag_comes_back() -> None:
    def open_(**kw: Any) -> None: ...

    assert call(open_, **{"$aft": 1, "v": 2}) == ((), {"$aft": 1, "v": 2})


def test_unpacked_keywords_are_typed_one_by_one() -> None:
    assert call(unpacked, name="n", age=3) == ((), {"name": "n", "age": 3})
    with pytest.raises(CodecError) as caught:
        call(unpacked, name="n", age="3")
    assert caught.value.path == "kw.age"


def unpacked(**kw: typing.Unpack[Profile]) -> None: ...


def test_a_parameter_added_since_with_a_default_may_be_missing() -> None:
    def now(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...

    codec = arguments_codec(now)
    assert codec.call_arguments(codec.decode('{"a": 1, "rest": [9]}')) == ((1, 2, 9), {"c": 3})


def test_a_missing_parameter_without_default_is_named() -> None:
    codec = arguments_codec(sample)
    with pytest.raises(CodecError, match="lack 'b'") as caught:
        codec.call_arguments(codec.decode('{"a": 1}'))
    assert caught.value.path == "b"


def test_a_parameter_removed_since_is_named() -> None:
    with pytest.raises(CodecError, match="'gone'") as caught:
        arguments_codec(sample).decode('{"gone": 1}')
    assert caught.value.path == "gone"
    with pytest.raises(CodecError, match="'gone'"):
        arguments_codec(sample).call_arguments({"gone": 1})


@pytest.mark.parametrize(
    "text", ["[]", "null", "1", '{"$aft": "tuple", "v": []}', "", '{"a": "x"}', '{"b": {"x": "x"}}']
)
def test_stored_arguments_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CodecError):
        arguments_codec(sample).decode(text)


@given(st.text() | crafted.map(json.dumps) | st.dictionaries(st.sampled_from("abcde"), crafted).map(json.dumps))
def test_reading_any_arguments_raises_nothing_but_codec_error(text: str) -> None:
    codec = arguments_codec(sample)
    try:
        codec.call_arguments(codec.decode(text))
    except CodecError:
        pass


def test_a_result_is_read_as_the_function_declares_it() -> None:
    codec = result_codec(sample)
    assert codec.decode(codec.encode([Point(1)], "result")) == [Point(1)]
    assert refusal(list[Point], [1], "result").path == "result[0]"

    def silent():  # type: ignore[no-untyped-def]
        pass

    assert result_codec(silent).decode(result_codec(silent).encode((1,), "result")) == (1,)


def test_the_signature_is_the_function_s_own() -> None:
    assert arguments_codec(sample).signature == inspect.signature(sample)


def test_a_type_that_cannot_be_stored_is_refused_at_definition() -> None:
    def takes(fine: int, thing: Opaque) -> None: ...

    def gives() -> list[Opaque]:
        return []

    with pytest.raises(DefinitionError, match=r"'thing' of .*takes\(\).*Opaque.*dataclass"):
        arguments_codec(takes)
    with pytest.raises(DefinitionError, match=r"result of .*gives\(\).*Opaque"):
        result_codec(gives)


def test_an_annotation_that_cannot_be_resolved_is_named() -> None:
    def takes(fine: int, thing: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def gives(fine: int) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match=r"parameter 'thing' of .*takes\(\).*'Missing'"):
        arguments_codec(takes)
    with pytest.raises(DefinitionError, match=r"the result of .*gives\(\).*'Missing'"):
        result_codec(gives)


@dataclass
class Dangling:
    x: Missing  # type: ignore[name-defined]  # noqa: F821


def test_a_type_that_refers_to_a_missing_name_is_refused_at_definition() -> None:
    def takes(thing: Dangling) -> None: ...

    with pytest.raises(DefinitionError, match=r"'thing' of .*takes\(\).*Missing"):
        arguments_codec(takes)


def test_a_default_that_does_not_fit_is_refused_at_definition() -> None:
    def takes(thing: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    with pytest.raises(DefinitionError, match=r"'thing' of .*takes\(\).*None does not fit str"):
        arguments_codec(takes)


def test_an_iterator_is_not_used_up_by_refusing_it() -> None:
    numbers: Iterator[int] = (n for n in [1, 2])
    refusal(Any, numbers)
    refusal(Line, Line("s", Decimal(1), numbers))
    refusal(Line, Line("s", Decimal(1), [numbers]))
    assert list(numbers) == [1, 2]


class Touchy(str):
    """A text that can neither be compared nor shown."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __str__(self) -> str:
        raise RuntimeError("not to be shown")

    __hash__ = str.__hash__


@pytest.mark.parametrize("annotation", [dict[str, int], dict[Any, int], Any])
def test_a_key_that_cannot_be_compared_is_refused(annotation: Any) -> None:
    with pytest.raises(CodecError):
        value_codec(annotation).encode({Touchy("shoe"): 1}, "value")
