"""Claims about rule trees: who is asked, who answers, where a new rule goes, and what is not a tree."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aft.errors import RuleRefused
from aft.rules.rule_types import RuleType
from aft.rules.trees.defaults import ABORT, DEFAULTS, FAULT
from aft.rules.trees.tree import CompiledTree, Node, RuleStep, Tree, Walk

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def tree(*nodes: Node, root: int | None = 1) -> Tree:
    return Tree("concert", RuleType.ACTIVITY_PRE, "do_show", 3, {node.id: node for node in nodes}, root)


#: Figure 4 of the paper.
CONCERT = tree(
    Node(1, "run.args.sold < run.args.seats * 0.75", "change_to_mid_venue", refined=2),
    Node(2, "run.args.sold < run.args.seats * 0.5", "change_to_small_venue", refined=3),
    Node(3, "run.args.sold < run.args.seats * 0.2", "cancel_show"),
)


def sold(tickets: int) -> dict[str, Any]:
    return {"run.args": {"sold": tickets, "seats": 100.0}}


@pytest.mark.parametrize(
    ("tickets", "exlet", "asked"),
    [
        (80, None, [(1, False)]),
        (60, "change_to_mid_venue", [(1, True), (2, False)]),
        (30, "change_to_small_venue", [(1, True), (2, True), (3, False)]),
        (10, "cancel_show", [(1, True), (2, True), (3, True)]),
    ],
)
def test_the_concert_of_the_paper_is_decided_by_the_last_rule_that_holds(
    tickets: int, exlet: str | None, asked: list[tuple[int, bool]]
) -> None:
    walk = CompiledTree(CONCERT).walk(sold(tickets))
    assert walk.exlet == exlet
    assert [(step.node, step.holds) for step in walk.steps] == asked


def test_an_empty_tree_asks_nobody_and_has_no_answer() -> None:
    assert CompiledTree(tree(root=None)).walk({}) == Walk((), None)


def test_a_rule_that_cannot_be_evaluated_leads_to_its_alternative_with_a_warning() -> None:
    compiled = CompiledTree(tree(Node(1, "run.args.sold > 1", "a", otherwise=2), Node(2, "true", "b")))
    walk = compiled.walk({"run.args": {}})
    assert walk.exlet == "b"
    assert 'there is no key "sold"' in (walk.steps[0].warning or "")
    assert walk.steps[1] == RuleStep(2, True, None)


def test_a_rule_that_can_no_longer_be_read_does_not_hold_and_says_so() -> None:
    nodes = Node(1, "source.weather == 'rain'", "a", otherwise=2), Node(2, "true", "b")
    assert CompiledTree(tree(*nodes), {"weather": "string"}).walk({"source.weather": "rain"}).exlet == "a"
    walk = CompiledTree(tree(*nodes)).walk({"source.weather": "rain"})
    assert walk.exlet == "b"
    assert "nothing is named 'source.weather'" in (walk.steps[0].warning or "")


def test_checking_compiles_every_rule_and_names_the_wrong_one() -> None:
    CompiledTree(CONCERT).check()
    with pytest.raises(RuleRefused, match=r"rule 2: line 1, column 1: nothing is named 'run.flwo'"):
        CompiledTree(tree(Node(1, "false", "a", refined=2), Node(2, "run.flwo == ''", "b"))).check()


def test_a_tree_knows_the_facts_that_it_needs() -> None:
    found = CompiledTree(
        tree(Node(1, "run.flow == 'run.key'", "a", otherwise=2), Node(2, "source.x > history.same_1h", "b"))
    )
    assert found.names == {"run.flow", "history.same_1h"}
    assert CompiledTree(found.tree, {"x": "int"}).names == {"run.flow", "history.same_1h", "source.x"}


def test_a_chain_of_thousands_of_rules_is_walked_without_recursion() -> None:
    many = 5_000
    nodes = [Node(n, "false", "a", otherwise=n + 1 if n < many else None) for n in range(1, many + 1)]
    found = Tree.decode(tree(*nodes).encode())
    assert len(CompiledTree(found).walk({}).steps) == many


# Random trees, against the definition written down naively.


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Grown at random: each rule hangs where one before it has room."""
    nodes: dict[int, Node] = {}
    free: list[tuple[int, str]] = []
    for number in range(1, draw(st.integers(0, 14)) + 1):
        if free:
            parent, branch = free.pop(draw(st.integers(0, len(free) - 1)))
            child: dict[str, Any] = {branch: number}
            nodes[parent] = dataclasses.replace(nodes[parent], **child)
        nodes[number] = Node(number, draw(st.sampled_from(list(TRUTHS))), draw(st.sampled_from("abcdef")))
        free += [(number, "refined"), (number, "otherwise")]
    return tree(*nodes.values(), root=1 if nodes else None)


#: Each condition, and the same in Python: of priority, recoverable and x, which is None if it is missing.
TRUTHS: dict[str, Callable[[int, bool, Any], bool]] = {
    "run.priority < 2": lambda p, r, x: p < 2,
    "run.priority < 8": lambda p, r, x: p < 8,
    "run.priority > 5": lambda p, r, x: p > 5,
    "run.priority == 5": lambda p, r, x: p == 5,
    "run.args.x == 1": lambda p, r, x: bool(x == 1),
    "run.args.x > run.priority": lambda p, r, x: isinstance(x, int) and x > p,
    "fault.recoverable": lambda p, r, x: r,
    "!fault.recoverable && run.priority != 3": lambda p, r, x: not r and p != 3,
    "true": lambda p, r, x: True,
    "false": lambda p, r, x: False,
}
cases = st.fixed_dictionaries(
    {"run.priority": st.integers(0, 10), "fault.recoverable": st.booleans()},
    optional={"run.args": st.sampled_from([{}, {"x": 1}, {"x": 7}, {"x": "text"}])},
)


def truth(condition: str, facts: dict[str, Any]) -> bool:
    return TRUTHS[condition](facts["run.priority"], facts["fault.recoverable"], facts.get("run.args", {}).get("x"))


def answer(found: Tree, here: int | None, facts: dict[str, Any], last: str | None) -> str | None:
    """The paper's words: true goes to the true branch, false to the false one; the last that was true is the answer."""
    if here is None:
        return last
    node = found.nodes[here]
    if truth(node.condition, facts):
        return answer(found, node.refined, facts, node.exlet)
    return answer(found, node.otherwise, facts, last)


@settings(max_examples=300, deadline=None)
@given(trees(), cases)
def test_ripple_down_evaluation_is_what_the_definition_says(found: Tree, facts: dict[str, Any]) -> None:
    assert CompiledTree(found).walk(facts).exlet == answer(found, found.root, facts, None)


@settings(max_examples=100, deadline=None)
@given(trees(), cases, st.lists(cases, max_size=8))
def test_a_new_rule_answers_its_case_and_changes_only_cases_that_ended_at_its_place(
    found: Tree, facts: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    before = CompiledTree(found)
    walk = before.walk(facts)
    after = CompiledTree(found.attach(walk, Node(found.next_id(), "true", "new")))
    assert after.walk(facts).exlet == "new"
    for other in others:
        expected = "new" if before.walk(other).end == walk.end else before.walk(other).exlet
        assert after.walk(other).exlet == expected


@settings(max_examples=50, deadline=None)
@given(trees())
def test_a_tree_survives_json(found: Tree) -> None:
    assert Tree.decode(found.encode()) == found


def test_a_rule_keeps_all_that_is_known_of_it_through_json() -> None:
    node = Node(1, "true", "a", None, None, "why", "ann", NOW, {"run.args": {"x": [1]}}, "f1")
    assert Tree.decode(tree(node).encode()).nodes[1] == node


# Where a new rule goes.


def test_the_first_rule_is_the_root() -> None:
    empty = tree(root=None)
    assert empty.attach(Walk(), Node(empty.next_id(), "true", "a")).root == 1


@pytest.mark.parametrize(
    ("tickets", "parent", "branch"), [(80, 1, "otherwise"), (60, 2, "otherwise"), (10, 3, "refined")]
)
def test_a_rule_goes_where_the_walk_of_its_case_ended(tickets: int, parent: int, branch: str) -> None:
    found = CONCERT.attach(CompiledTree(CONCERT).walk(sold(tickets)), Node(4, "true", "other"))
    assert getattr(found.nodes[parent], branch) == 4
    assert {n: node for n, node in found.nodes.items() if n not in (parent, 4)} == {
        n: node for n, node in CONCERT.nodes.items() if n != parent
    }
    assert (found.revision, CONCERT.nodes.get(4)) == (CONCERT.revision, None)


def test_a_rule_is_not_put_where_another_one_is() -> None:
    walk = CompiledTree(CONCERT).walk(sold(10))
    grown = CONCERT.attach(walk, Node(4, "true", "a"))
    with pytest.raises(ValueError, match="the walk ended at rule 3, where this tree goes on"):
        grown.attach(walk, Node(5, "true", "b"))
    with pytest.raises(ValueError, match="rule 3 is there already; the next free number is 5"):
        grown.attach(CompiledTree(grown).walk(sold(10)), Node(3, "true", "b"))
    with pytest.raises(ValueError, match="asked nobody, but the tree has rules"):
        grown.attach(Walk(), Node(5, "true", "b"))


# What is not a tree.


@pytest.mark.parametrize(
    ("nodes", "root", "why"),
    [
        ([Node(1, "true", "a", refined=2)], 1, "rule 1 leads to rule 2, which is not there"),
        ([Node(1, "true", "a", refined=2, otherwise=2), Node(2, "true", "b")], 1, "rules 1 and 1 both lead to rule 2"),
        ([Node(1, "true", "a", refined=1)], 1, "rule 1 leads back to the root"),
        ([Node(1, "true", "a", refined=2), Node(2, "true", "b", refined=1)], 1, "rule 2 leads back to the root"),
        (
            [Node(1, "true", "a"), Node(2, "true", "b", refined=3), Node(3, "true", "c", otherwise=2)],
            1,
            "rule 2 cannot be reached from the root",
        ),
        ([Node(1, "true", "a"), Node(2, "true", "b")], 1, "rule 2 cannot be reached from the root"),
        ([Node(1, "true", "a")], None, "has rules but no root"),
        ([Node(1, "true", "a")], 2, "the root, rule 2, is not there"),
        ([], 1, "the root, rule 1, is not there"),
    ],
)
def test_what_is_not_a_tree_is_refused(nodes: list[Node], root: int | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tree(*nodes, root=root)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"flow": ""}, "flow=''"),
        ({"on": "never"}, "on: Input should be 'fault', 'abort'"),
        ({"activity": ""}, "must be a name, or '\\*'"),
        ({"on": "run_pre"}, "it is about a run"),
        ({"revision": -1}, "revision=-1"),
        ({"revision": True}, "revision: Input should be a valid integer"),
        ({"root": True}, "root: Input should be a valid integer"),
        ({"root": "1"}, "root: Input should be a valid integer"),
        ({"nodes": {}}, "nodes: Input should be a valid array"),
        ({"colour": "red"}, "colour: Unexpected"),
        ({"nodes": [{"id": 1, "condition": "true", "exlet": "a"}] * 2}, "the same number"),
        ({"nodes": [{"id": 1, "condition": "true"}]}, "nodes.0.exlet: Field required"),
        ({"nodes": [{"id": 1, "condition": "true", "exlet": "a", "colour": 1}]}, "nodes.0.colour: Unexpected"),
        ({"nodes": [{"id": "1", "condition": "true", "exlet": "a"}]}, "nodes.0.id: Input should be a valid integer"),
        ({"nodes": [{"id": True, "condition": "true", "exlet": "a"}]}, "nodes.0.id: Input should be a valid integer"),
        ({"nodes": [{"id": 1, "condition": None, "exlet": "a"}]}, "nodes.0.condition: Input"),
        ({"nodes": [{"id": 1, "condition": "true", "exlet": "a", "made_at": "then"}]}, "nodes.0.made_at: Input"),
        (
            {"nodes": [{"id": 1, "condition": "true", "exlet": "a", "made_at": 5}]},
            "nodes.0.made_at: Input",
        ),
        (
            {"nodes": [{"id": 1, "condition": "true", "exlet": "a", "cornerstone": []}]},
            "nodes.0.cornerstone: Input",
        ),
        ({"nodes": ["rule"]}, "nodes.0: Input should be an object"),
    ],
)
def test_a_stored_tree_is_read_strictly(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Tree.decode(json.dumps(json.loads(tree(Node(1, "true", "a")).encode()) | change))


def test_a_stored_tree_lacks_nothing() -> None:
    whole = json.loads(CONCERT.encode())
    for name in whole:
        with pytest.raises(ValueError, match=f"{name}: Field required"):
            Tree.decode(json.dumps({other: value for other, value in whole.items() if other != name}))
    with pytest.raises(ValueError, match="it: Input should be an object"):
        Tree.decode("null")


# What aft does by itself.


@pytest.mark.parametrize(
    ("kind", "recoverable", "exhausted", "exlet"),
    [
        ("activity", True, False, "ladder"),
        ("activity", True, True, "unwind"),
        ("activity", False, False, "unwind"),
        ("activity", False, True, "unwind"),
        ("compensator", True, False, "ladder"),
        ("compensator", True, True, "park"),
        ("compensator", False, False, "park"),
        ("flow", False, False, "unwind"),
    ],
)
def test_by_default_what_may_pass_is_tried_again_and_the_rest_undone(
    kind: str, recoverable: bool, exhausted: bool, exlet: str
) -> None:
    facts = {"fault.kind": kind, "fault.recoverable": recoverable, "fault.exhausted": exhausted}
    walk = CompiledTree(FAULT).walk(facts)
    assert (walk.exlet, [step.warning for step in walk.steps if step.warning]) == (exlet, [])


@pytest.mark.parametrize(("exhausted", "exlet"), [(False, "ladder"), (True, "park")])
def test_by_default_what_was_lost_is_tried_again_until_it_is_lost_too_often(exhausted: bool, exlet: str) -> None:
    assert CompiledTree(ABORT).walk({"fault.kind": "abort", "fault.exhausted": exhausted}).exlet == exlet


def test_default_trees_are_for_everybody_and_can_be_stored() -> None:
    for on, found in DEFAULTS.items():
        CompiledTree(found).check()
        assert (found.flow, found.on, found.activity) == ("*", on, "*")
        assert Tree.decode(found.encode()) == found
