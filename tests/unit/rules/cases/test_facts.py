"""Claims about facts: which there are, what is blank, and how large one may be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.rules.cases.facts import (
    DEEPEST,
    FACT_TYPES,
    MOST_ENTRIES,
    MOST_IN_ALL,
    MOST_TEXT,
    FactType,
    blank,
    complete,
    cut,
    fact_types,
)

texts = st.text(st.sampled_from("aé\x00\ud800𝄞"), max_size=5) | st.just("x" * 2000)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just(b"x") | st.just([0] * 300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | st.integers(), inner, max_size=4),
    max_leaves=20,
)


def entries(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(entries, value.values()))
    return len(value) + sum(map(entries, value)) if isinstance(value, list) else 0


def test_every_fact_has_a_blank_that_json_knows() -> None:
    assert list(json.loads(json.dumps(blank()))) == list(FACT_TYPES)


def test_what_is_not_known_is_an_empty_text_or_nothing() -> None:
    found = blank({"weather": "string"})
    assert (found["run.flow"], found["fault.status"], found["fault.recoverable"]) == ("", 0, False)
    assert (found["run.age"], found["fault.bases"], found["run.tags"]) == (None, [], {})
    assert found["source.weather"] == ""


def test_blanks_are_not_shared() -> None:
    blank()["run.tags"]["x"] = 1
    assert blank()["run.tags"] == {}


def test_a_source_is_a_fact_of_its_type() -> None:
    assert fact_types({"free_seats": "int"})["source.free_seats"] is FactType.WHOLE


@pytest.mark.parametrize("name", ["free seats", "", "a.b", "4you", "größe"])
def test_a_source_is_named_by_a_word(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        fact_types({name: "int"})


@pytest.mark.parametrize("kind", ["float", "", "list(string)"])
def test_a_source_has_one_of_four_types(kind: str) -> None:
    with pytest.raises(ValueError, match="it is one of dyn, int, string, bool"):
        fact_types({"seats": kind})


def test_a_case_is_completed_and_what_nobody_declared_is_left_out() -> None:
    found = complete({"run.flow": "buy", "run.owner": None, "run.shoe_size": 44}, blank())
    assert found == {**blank(), "run.flow": "buy"}


def test_only_some_facts_may_be_wanted() -> None:
    assert complete({"run.flow": "buy", "fault.status": 503}, blank(), {"run.flow", "run.key"}) == {
        "run.flow": "buy",
        "run.key": "",
    }


def test_levels_are_numbers_again_after_json() -> None:
    stored = json.loads(json.dumps({"history.outcome": {1: "tried", 2: "final"}}))
    assert complete(stored, blank())["history.outcome"] == {1: "tried", 2: "final"}


def test_small_values_stay_as_they_are() -> None:
    value: dict[str, Any] = {"a": [1, 2.5, None, True, "text", {"b": {}}]}
    assert cut(value) == value


def test_long_texts_lists_and_maps_lose_their_end() -> None:
    assert cut("x" * 5000) == "x" * MOST_TEXT
    assert cut(list(range(5000))) == list(range(MOST_ENTRIES))
    assert list(cut({str(n): n for n in range(5000)})) == [str(n) for n in range(MOST_ENTRIES)]


def test_a_fact_has_so_many_entries_in_all() -> None:
    assert entries(cut([[[0] * 300] * 300] * 300)) == MOST_IN_ALL


def test_what_is_nested_too_deeply_is_left_empty() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    found, depth = cut(value), 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == DEEPEST


def test_what_json_does_not_know_is_named_or_made_plain() -> None:
    assert cut((1, 2)) == [1, 2]
    assert cut(object()) == "object"
    assert cut([float("nan"), float("inf"), 2**70, -(2**2000)]) == [None, None, float(2**70), None]
    assert cut({1: "a", None: "b"}) == {"1": "a", "None": "b"}
    assert cut("a\x00b\ud800") == "a\ufffdb\ufffd"


@given(anything)
def test_whatever_is_cut_is_json_and_cutting_again_changes_nothing(value: Any) -> None:
    found = cut(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found == cut(found)
    assert entries(found) <= MOST_IN_ALL
    json.dumps(found, ensure_ascii=False).encode()
