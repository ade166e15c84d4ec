"""Claims about sets that were read: they are sets, and are gone through in the same order everywhere."""

from __future__ import annotations

import copy
import enum
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from aft.codec import value_codec
from aft.codec.ordered_sets import OrderedFrozenSet, OrderedSet


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Holder:
    names: frozenset[str]


class Model(BaseModel):
    names: set[str]


def again(annotation: Any, value: Any) -> Any:
    codec = value_codec(annotation)
    return codec.decode(codec.encode(value, "value"))


@pytest.mark.parametrize("annotation", [set[str], Any, set[str] | None, set])
def test_a_set_comes_back_as_a_set_in_order(annotation: Any) -> None:
    found = again(annotation, {"c", "a", "b"})
    assert isinstance(found, set)
    assert found == {"a", "b", "c"}
    assert list(found) == [*found] == sorted(found) == ["a", "b", "c"]
    assert again(annotation, found) == found


def test_sets_within_are_ordered_too() -> None:
    assert list(again(dict[str, list[set[str]]], {"x": [{"b", "a"}]})["x"][0]) == ["a", "b"]
    assert list(again(Holder, Holder(frozenset({"b", "a"}))).names) == ["a", "b"]
    assert list(again(Model, Model(names={"b", "a"})).names) == ["a", "b"]
    assert again(Holder, again(Holder, Holder(frozenset({"b"})))) == Holder(frozenset({"b"}))
    assert again(Model, again(Model, Model(names={"b", "a"}))) == Model(names={"b", "a"})


@pytest.mark.parametrize("kind", [OrderedSet, OrderedFrozenSet])
def test_what_is_made_of_one_is_ordered(kind: type[Any]) -> None:
    items, plain = kind("dcb"), (set if kind is OrderedSet else frozenset)("cba")
    made = [items | plain, items & plain, items - plain, items ^ plain, items.copy(), items.union(plain)]
    made += [plain | items, plain - items, copy.copy(items), copy.deepcopy(items)]
    for found in made:
        assert list(found) == sorted(found)
    assert (items | plain, items & plain, items - plain) == (set("abcd"), set("bc"), set("d"))
    assert plain - items == {"a"}
    assert items == kind("bcd") == set("bcd")


def test_one_can_be_changed() -> None:
    found = OrderedSet("ca")
    found.add("b")
    found |= {"d"}
    assert type(found) is OrderedSet
    assert (found.pop(), list(found)) == ("a", ["b", "c", "d"])
    assert repr(found) == "{'b', 'c', 'd'}"
    with pytest.raises(KeyError):
        OrderedSet().pop()


def test_mixed_and_built_items_have_an_order() -> None:
    assert list(again(set[Colour], {Colour.RED, Colour.BLUE})) == [Colour.BLUE, Colour.RED]
    assert list(OrderedSet([1, "a", (2, "b")])) == list(OrderedSet([(2, "b"), "a", 1]))


HOLDERS = """
import collections, dataclasses, typing
from pydantic import BaseModel
from aft.codec import value_codec

@dataclasses.dataclass(slots=True)
class Slotted:
    names: set[str]

@dataclasses.dataclass(frozen=True, repr=False)
class Bill:
    names: frozenset[str]

class Named(typing.NamedTuple):
    names: set[str]

class Extra(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, set[str]] = {}

def again(annotation, value):
    codec = value_codec(annotation)
    return codec.decode(codec.encode(value, "value"))

names = frozenset(f"bill-{n}" for n in range(20))
found = again(set[str], set(names))
print([*found], [*found - {"bill-3"}], [*(found | {"x"})])
print([*again(Slotted, Slotted(set(names))).names])
print([*again(Named, Named(set(names))).names], type(again(Named, Named(set(names)))))
print([*again(collections.OrderedDict[str, set[str]], collections.OrderedDict(x=set(names)))["x"]])
print([*again(collections.defaultdict[str, set[str]], collections.defaultdict(set, x=set(names)))["x"]])
print([*again(collections.deque[set[str]], collections.deque([set(names)]))[0]])
print([*again(Extra, Extra(more=set(names))).more])
print([[*inner] for inner in again(set[frozenset[str]], {names, frozenset({"b", "a"})})])
print([[*key] for key in again(dict[frozenset[str], int], {names: 1})])
print([[*bill.names] for bill in again(set[Bill], {Bill(frozenset({name, "x"})) for name in names})])
print(value_codec(set[Bill]).encode({Bill(frozenset({name})) for name in names}, "value"))
"""


def test_the_order_is_the_same_in_another_process() -> None:
    code = HOLDERS
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
