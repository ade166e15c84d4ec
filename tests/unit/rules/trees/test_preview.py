"""Claims about teaching: a rule is made of a case, and what it would change is known before it is taken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aft.errors import RuleRefused
from aft.rules.rule_types import RuleType
from aft.rules.trees.preview import ChangedCase, Conflict, compare, propose
from aft.rules.trees.tree import CompiledTree, Tree

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = Tree("shop", RuleType.FAULT, "pay")


def case(status: int, **args: Any) -> dict[str, Any]:
    return {"fault.status": status, "run.args": args}


def taught(*lessons: tuple[dict[str, Any], str, str]) -> CompiledTree:
    found = EMPTY
    for facts, condition, exlet in lessons:
        found = propose(CompiledTree(found), facts, condition, exlet).tree
    return CompiledTree(found)


def test_a_rule_keeps_its_case_and_who_made_it() -> None:
    found = propose(
        CompiledTree(EMPTY),
        case(503),
        "fault.status == 503",
        "ladder",
        note="it passes",
        made_by="ann",
        made_at=NOW,
        fault_id="f1",
    )
    node = found.node
    assert found.tree.nodes == {1: node}
    assert (node.cornerstone, node.fault_id, node.made_by, node.made_at) == (case(503), "f1", "ann", NOW)
    assert (node.condition, node.exlet, node.note) == ("fault.status == 503", "ladder", "it passes")
    assert (found.conflicts, found.walk.steps, EMPTY.nodes) == ((), (), {})


def test_a_rule_that_does_not_hold_for_its_own_case_is_refused() -> None:
    with pytest.raises(RuleRefused, match=r"the case that it is made for: 'fault[.]status == 404' is false"):
        propose(CompiledTree(EMPTY), case(503), "fault.status == 404", "park")


def test_if_that_is_because_something_is_missing_it_is_said() -> None:
    with pytest.raises(RuleRefused, match='there is no key "amount"'):
        propose(CompiledTree(EMPTY), case(503), "run.args.amount > 5", "park")


def test_a_rule_that_cannot_be_read_is_refused_with_its_place() -> None:
    with pytest.raises(RuleRefused, match=r"line 1, column 1: nothing is named 'fault.statsu'"):
        propose(CompiledTree(EMPTY), case(503), "fault.statsu == 503", "park")


def test_an_exception_to_a_rule_goes_below_it_and_answers_its_case() -> None:
    compiled = taught((case(503), "fault.status == 503", "ladder"))
    found = propose(compiled, case(503, amount=9000), "has(run.args.amount) && run.args.amount > 5000", "park")
    assert found.tree.nodes[1].refined == found.node.id
    assert found.conflicts == ()
    assert CompiledTree(found.tree).walk(case(503, amount=9000)).exlet == "park"
    assert CompiledTree(found.tree).walk(case(503)).exlet == "ladder"


def test_a_rule_that_takes_the_cornerstone_of_another_conflicts_with_it() -> None:
    compiled = taught((case(503), "fault.status >= 500", "ladder"))
    found = propose(compiled, case(500, amount=9000), "fault.status < 600", "park")
    assert found.conflicts == (Conflict(compiled.tree.nodes[1], "ladder", "park"),)


def test_the_same_answer_in_another_way_is_no_conflict() -> None:
    compiled = taught((case(503), "fault.status >= 500", "ladder"))
    assert propose(compiled, case(500), "fault.status < 600", "ladder").conflicts == ()


def test_cornerstones_that_end_elsewhere_never_meet_the_new_rule() -> None:
    compiled = taught((case(503), "fault.status == 503", "ladder"), (case(404), "fault.status == 404", "park"))
    found = propose(compiled, case(500), "true", "unwind")
    assert (found.tree.nodes[2].otherwise, found.conflicts) == (3, ())


def test_rules_that_ask_sources_are_taught_with_what_the_sources_said() -> None:
    compiled = CompiledTree(EMPTY, {"weather": "string"})
    found = propose(compiled, {"source.weather": "rain"}, "source.weather == 'rain'", "park")
    assert CompiledTree(found.tree, compiled.sources).walk({"source.weather": "rain"}).exlet == "park"


def test_a_preview_tells_the_cases_that_would_be_answered_otherwise() -> None:
    before = taught((case(503), "fault.status >= 500", "ladder"))
    after = CompiledTree(propose(before, case(500), "fault.status < 502", "unwind").tree)
    past = [case(500), case(501), case(502), case(404)]
    assert compare(before, after, past) == [
        ChangedCase(case(500), "ladder", "unwind"),
        ChangedCase(case(501), "ladder", "unwind"),
    ]
    assert compare(CompiledTree(EMPTY), before, past[-2:]) == [ChangedCase(case(502), None, "ladder")]


conditions = st.builds("fault.status {} {}".format, st.sampled_from(["<", ">", "==", "!="]), st.integers(0, 6))
lessons = st.lists(st.tuples(st.integers(0, 6), conditions, st.sampled_from("abc")), max_size=8)


@settings(max_examples=150, deadline=None)
@given(lessons, st.integers(0, 6), conditions)
def test_conflicts_are_exactly_the_cornerstones_that_a_replay_answers_otherwise(
    before: list[tuple[int, str, str]], status: int, condition: str
) -> None:
    compiled = CompiledTree(EMPTY)
    for number, source, exlet in [*before, (status, condition, "new")]:
        try:
            found = propose(compiled, case(number), source, exlet)
        except RuleRefused:
            continue
        after = CompiledTree(found.tree)
        assert after.walk(case(number)).exlet == exlet
        replayed = {
            node.id
            for node in compiled.tree.nodes.values()
            if compare(compiled, after, [node.cornerstone] if node.cornerstone else [])
        }
        assert {conflict.node.id for conflict in found.conflicts} == replayed
        compiled = after
