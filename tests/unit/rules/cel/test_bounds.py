"""Claims about bounds: whatever a condition says, it is refused or it is done in no time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aft.errors import RuleRefused
from aft.rules.cases.facts import cut
from aft.rules.cel.conditions import Condition

#: Seconds that no condition may take to be refused, or to be evaluated. Of this process: others may be busy, too.
LIMIT = 0.1

LONG = "a" * 1000
#: As large as facts can be, and of the kind that is slow to compare and to search.
FACTS: dict[str, Any] = {
    "run.flow": LONG,
    "fault.text": LONG,
    "fault.bases": [LONG] * 200,
    "run.tags": cut({f"k{n}": LONG for n in range(300)}),
    "run.args": cut({"list": [LONG] * 300, "numbers": list(range(300)), "maps": [{"a": LONG}] * 300}),
    "activity.args": cut({"lists": [[LONG] * 4] * 300}),
    "activity.result": cut([dict.fromkeys("abcd", LONG)] * 300),
}


def filled(head: str, part: str, tail: str, between: str) -> str:
    """As many of that part as a condition can have."""
    many = (1000 - len(head) - len(tail) + len(between)) // (len(part) + len(between))
    return head + between.join([part] * many) + tail


NESTED = {
    "two loops": "run.args.list.all(x, run.args.list.all(y, x == y))",
    "three loops": "run.args.list.all(x, run.args.list.all(y, run.args.list.exists(z, z == x)))",
    "inside the list that is looped over": "run.args.list.filter(x, [x].map(y, y + y) != []).exists(z, true)",
    "spread over lines": "run.args.list .  all // (\n ( x, run.args.list.\nexists(y, x == y))",
    "behind a text that looks like its end": "run.args.list.all(x, x != ')' && run.args.list.all(y, x == y))",
    "behind an escaped quote": r"run.args.list.all(x, x != '\')' && run.args.list.all(y, x == y))",
    "behind a raw text": r"run.args.list.all(x, x != r'\' && run.args.list.all(y, x == y))",
}


@pytest.mark.parametrize("source", NESTED.values(), ids=NESTED)
def test_a_loop_in_a_loop_is_refused(source: str) -> None:
    with pytest.raises(RuleRefused, match="is a loop inside the loop"):
        Condition.compile(source)


def test_loops_beside_one_another_are_not_nested() -> None:
    found = Condition.compile("fault.bases.exists(b, b == 'x') || fault.bases.filter(b, b != '').all(b, b != 'x')")
    assert found.holds(FACTS).holds


REFUSED = {
    "a text doubled in a loop": ("[fault.text]" + ".map(x, x + x)" * 10 + "[0] == ''", "more than 1 'map'"),
    "a list doubled in a loop": ("[run.args.list].map(x, x + x).exists(y, y == [])", "loops over what 'map' makes"),
    "a list doubled and looped over": ("(run.args.list + run.args.list).all(x, true)", "loops over what '\\+' makes"),
    "hidden behind an index": ("[run.args.list + run.args.list][0].all(x, true)", "loops over what '\\+' makes"),
    "several facts in one loop": ("[run.args, run.args, run.args].all(x, x == x)", "more than one fact"),
    "texts joined in a loop": ("fault.bases.all(x, (x + x + x).contains(x))", "add or join more than 1"),
    "texts joined": (filled("", "run.flow", " == ''", "+"), "add or join more than 20"),
    "large facts compared in a loop": ("fault.bases.all(x, run.args == run.args)", "more than one fact that may be"),
    "comparisons in a loop": (filled("activity.result.all(x, ", "x==x", ")", "&&"), "compare more than 20"),
    "searches in a loop": (filled("fault.bases.all(x, ", "x.contains('aab')", ")", "||"), "search or convert"),
    "many loops": (filled("", "run.tags.all(x,true)", "", "&&"), "more than 10 loops"),
    "an expression from a fact": ("fault.text.matches(run.flow)", "is not a literal"),
    "an expression put together": ("fault.text.matches('a' + run.flow)", "is not a literal"),
    "an expression from a choice": ("fault.text.matches(true ? run.flow : 'a')", "is not a literal"),
    "counted repetitions": ("fault.text.matches('((a{30}){30})b')", "too large"),
    "a long repetition": ("fault.text.matches('.{900}b')", "too large"),
    "repetitions in disguise": (r"fault.text.matches('((a\x7b30}){30})b')", "written by number"),
    "classes of unicode": (r"fault.text.matches(r'\pL{70}b')", "class of Unicode"),
    "a large expression in a loop": ("fault.bases.all(x, x.matches('" + "a?" * 30 + "'))", "too large for a loop"),
    "a call in backticks": ("run.args.list.`all`(x, true)", "line 1"),
    "brackets without end": ("(" * 900, "nested too deeply"),
    "calls without end": ("size(" * 190, "line 1"),
    "lists without end": ("[" * 900, "nested too deeply"),
    "a chain of choices": ("true ? true : " * 60 + "true", "nested too deeply"),
    "a huge source": ("true || " * 1_000_000 + "true", "characters"),
    "a huge name": ("a" * 10_000_000, "characters"),
}


@pytest.mark.parametrize(("source", "why"), REFUSED.values(), ids=REFUSED)
def test_what_may_cost_too_much_is_refused_at_once(source: str, why: str) -> None:
    took = []
    for _ in range(3):
        begin = time.process_time()
        with pytest.raises(RuleRefused, match=why):
            Condition.compile(source)
        took.append(time.process_time() - begin)
    assert min(took) < LIMIT


EVALUATED = {
    "greedy groups": "fault.text.matches('(a+)+$b')",
    "alternatives": "fault.text.matches('(a|a)*(a|aa)*(a|a?)*b')",
    "optional signs": "fault.text.matches('" + "a?" * 100 + "a" * 100 + "b')",
    "a large expression": "fault.text.matches(r'" + "(a|b|.*)" * 115 + "x')",
    "a counted expression": "fault.text.matches(r'.{220}b')",
    "an expression in a loop": "fault.bases.all(x, !x.matches('(a|.*)(a|.*)(a+)+b'))",
    "searches in a loop": "fault.bases.all(x, !(x + x).contains('" + "a" * 450 + "b'))",
    "a list in a list": "&&".join(["activity.result.all(x, x in activity.result)"] * 10),
    "maps compared in a loop": "activity.result.all(x, " + "&&".join(["x == x"] * 20) + ")",
    "facts compared": filled("", "activity.result==activity.result", "", "&&"),
    "a fact for each entry": "size(run.args.list.map(x, [run.args, run.args, run.args])) == 200",
    "long texts searched": "(" + "+".join(["fault.text"] * 14) + ").contains(" + "+".join(["fault.text"] * 6) + "+'b')",
    "characters counted in a loop": filled("fault.bases.all(x, ", "size(x)>1", ")", "&&"),
    "a loop over a literal": "[" + ",".join(["1"] * 470) + "].all(x, x == x)",
}


@pytest.mark.parametrize("source", EVALUATED.values(), ids=EVALUATED)
def test_what_is_not_refused_is_evaluated_in_no_time(source: str) -> None:
    condition = Condition.compile(source)
    took = []
    for _ in range(5):
        begin = time.process_time()
        answer = condition.holds(FACTS)
        took.append(time.process_time() - begin)
    assert answer.warning is None
    assert min(took) < LIMIT


def test_without_our_bounds_cels_own_budget_ends_a_loop() -> None:
    """Facts that nobody has cut: still no harm."""
    found = Condition.compile("run.args.all(x, x == x)").holds({"run.args": list(range(50_000))})
    assert not found.holds
    assert "Iteration budget exceeded" in (found.warning or "")
