"""Claims about conditions: what holds, what is refused and how that is said, what cannot be evaluated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.errors import RuleRefused
from aft.rules.cases.facts import FactType
from aft.rules.cel.conditions import Condition, Evaluation, Expression, PreparedFacts
from aft.rules.cel.failures import explain

FACTS: dict[str, Any] = {
    "run.flow": "organise_concert",
    "run.args": {"sold": 40, "seats": 100.0, "items": [{"kind": "a", "price": 3}, {"kind": "b"}], "none": None},
    "run.tags": {"tier": "gold"},
    "run.priority": 5,
    "run.age": 12.5,
    "fault.name": "Timeout",
    "fault.bases": ["shop.Timeout", "builtins.OSError"],
    "fault.text": "timed out after 30 s",
    "fault.recoverable": True,
    "fault.status": 503,
    "history.outcome": {"1": "final"},
}


def refused(source: str, sources: dict[str, str] | None = None) -> str:
    with pytest.raises(RuleRefused) as found:
        Condition.compile(source, sources or {})
    return str(found.value)


@pytest.mark.parametrize(
    "source",
    [
        "true",
        "run.args.sold < run.args.seats * 0.75",
        "run.args.sold == 40.0 && run.age > 12",
        "fault.status in [502, 503, 504]",
        "fault.recoverable && !fault.exhausted",
        "'builtins.OSError' in fault.bases",
        "fault.bases.exists(b, b.endsWith('.Timeout'))",
        "fault.bases.exists(b, b.matches('^shop[.]'))",
        "fault.text.matches(r'after \\d{1,3} s')",
        "run.args.items.filter(i, i.kind == 'b').size() == 1",
        "run.args.items.exists(i, has(i.price) && i.price > 2 && i.price < run.args.sold)",
        "has(run.tags.tier) && run.tags.tier == 'gold'",
        "history.outcome[1] == 'final'",
        "run.key == '' && fault.deaths == 0 && run.args.none == null",
        "// people may say why\nrun.flow.startsWith('organise')",
        "fault.text.contains('exists(x, y.all(z, true))') || true",
    ],
)
def test_a_condition_holds(source: str) -> None:
    assert Condition.compile(source).holds(FACTS) == Evaluation(True, None)


def test_what_is_false_does_not_hold_and_nobody_is_warned() -> None:
    assert Condition.compile("fault.status == 404").holds(FACTS) == Evaluation(False, None)


def test_facts_that_nobody_knows_are_blank() -> None:
    assert Condition.compile("run.flow == '' && run.priority == 0 && fault.bases == []").holds({}).holds


def test_sources_are_facts_of_their_types() -> None:
    found = Condition.compile("source.weather == 'rain' && source.seats < 10", {"weather": "string", "seats": "int"})
    assert found.holds({"source.weather": "rain", "source.seats": 3}).holds
    assert not found.holds({"source.weather": "rain", "source.seats": 30}).holds


def test_a_case_is_made_ready_once_for_many_conditions() -> None:
    case = PreparedFacts(FACTS)
    assert [Condition.compile(f"fault.status == {n}").holds(case).holds for n in (502, 503)] == [False, True]


@pytest.mark.parametrize(
    ("source", "line", "column", "what", "hint"),
    [
        ("run.flwo == 'a'", 1, 1, "nothing is named 'run.flwo'", "did you mean 'run.flow'?"),
        ("run.arg.x == 'a'", 1, 1, "nothing is named 'run.arg.x'", "did you mean 'run.args'?"),
        ("true &&\n  fault.statsu == 1", 2, 3, "nothing is named 'fault.statsu'", "did you mean 'fault.status'?"),
        ("run.flow.startWith('a')", 1, 10, "nothing is named 'startWith'", "did you mean 'startsWith'?"),
        ("run == 1", 1, 1, "nothing is named 'run'", "there are run.id, run.flow"),
        ("gold == 1", 1, 1, "nothing is named 'gold'", "texts need quotes"),
        ("source.weather == 'rain'", 1, 1, "nothing is named 'source.weather'", "no source is registered"),
        ("fault.recoverable == True", 1, 22, "nothing is named 'True'", "CEL writes 'true'"),
        ("run.flow == 'a' and true", 1, 17, "'and' is not expected here", "CEL writes '&&'"),
        ("run.flow = 'a'", 1, 10, "'= ' cannot be read", "write '=='"),
        ("run.flow == 'a", 1, 13, "cannot be read", "a quotation mark is not closed"),
        ("run.flow ==", 1, 12, "it ends too early", "something is missing at the end"),
        ("", 1, 1, "it ends too early", "something is missing at the end"),
        ("true true", 1, 6, "'true' is not expected here", "there must be an operator"),
        ("run.flow == 1", 1, 10, "'==' cannot be applied to string and int", "a number needs no quotes"),
        ("run.priority > 1.5", 1, 14, "'>' cannot be applied to int and double", "compare like with like"),
        ("run.flow == null", 1, 10, "'==' cannot be applied to string and null", "is never null"),
        ("!run.flow", 1, 1, "'!' cannot be applied to string", "compare it first"),
        ("run.tags[1] == 1", 1, 9, "'[]' cannot be applied to map(string, dyn) and int", "must fit"),
        ("fault.text.contains(1)", 1, 20, "'contains' does not take (string, int)", "a number needs no quotes"),
        ("(true ? 1 : 'a') == 1", 1, 7, "'?:' cannot choose: bool, int, string", "the two after it alike"),
        ("run.flow.name == 'a'", 1, 9, "a string has no parts", "only maps have"),
        ("run.flow.exists(x, true)", 1, 4, "a string cannot be looped over", "loop over a list or a map"),
        ("run.flow", 1, 1, "it gives a value of type string, not true or false", "compare it with a text"),
        ("size(run.flow)", 1, 1, "it gives a value of type int, not true or false", "compare it with a number"),
        ("fault.text.matches('a[')", 1, 20, "the regular expression is invalid: missing ]", "RE2"),
        ("false && fault.text.matches('*')", 1, 29, "the regular expression is invalid: no argument", "RE2"),
        ("a" * 1001, 1, 1001, "it has 1,001 characters", "1,000 are the most"),
        ("'a\x00' == 'b'", 1, 3, r"it has the character '\x00'", "leave it out"),
        ("(" * 40 + "true" + ")" * 40, 1, 1, "it is nested too deeply", "32 levels"),
    ],
)
def test_a_refusal_tells_place_reason_and_hint(source: str, line: int, column: int, what: str, hint: str) -> None:
    said = refused(source)
    head, shown, caret, last = said.split("\n")
    assert head.startswith(f"line {line}, column {column}: ")
    assert what in head
    assert last.startswith("hint: ")
    assert hint in last
    # The caret stands under the place, in the part of the line that is shown.
    written = source.replace("\x00", "\ufffd").split("\n")[line - 1]
    under = shown[2:][len(caret) - 3 :]
    assert caret.strip() == "^"
    assert written[column - 1 :].startswith(under) or written.endswith(under)


def test_a_misspelt_source_is_recognised() -> None:
    assert "did you mean 'source.weather'?" in refused("source.wether == 'rain'", {"weather": "string"})


def test_a_condition_is_a_text() -> None:
    with pytest.raises(RuleRefused, match="is a text, not an int"):
        Condition.compile(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "warning"),
    [
        ("run.args.missing == 1", 'there is no key "missing"'),
        ("run.tags.owner == 'me'", 'there is no key "owner"'),
        ("history.outcome[3] == 'final'", "there is no key 3"),
        ("run.args.none.x == 1", "not a map"),
        ("run.args.sold > 'many'", "'>' cannot be applied to int and string"),
        ("activity.elapsed > 5", "'>' cannot be applied to null and int"),
        ("run.args.items[7].kind == 'a'", "index=7 size=2"),
        ("run.priority / run.version == 1", "divide by zero"),
        ("run.args.sold", "its value is of type int, not true or false"),
        ("run.args.sold ? true : false", "'?:' cannot be applied"),
    ],
)
def test_what_cannot_be_evaluated_does_not_hold_and_says_why(source: str, warning: str) -> None:
    found = Condition.compile(source).holds(FACTS)
    assert not found.holds
    assert found.warning is not None
    assert warning in found.warning
    assert repr(source) in found.warning


@pytest.mark.parametrize(
    "source",
    [
        "run.tags[run.args.password] == 1",
        "{'a': 1}[run.args.password] == 1",
        "{'hun': 1}[run.args.password] == 1",
        "{7: 1}[int(run.args.pin)] == 1",
    ],
)
def test_a_missing_key_that_a_value_has_given_is_not_told(source: str) -> None:
    found = Condition.compile(source).holds({"run.args": {"password": "hunter2", "pin": "4711"}, "run.tags": {}})
    assert not found.holds
    assert found.warning is not None
    assert "there is no such key; has(…) asks whether there is" in found.warning
    assert "hunter2" not in found.warning
    assert "4711" not in found.warning


def test_an_index_that_a_value_has_given_is_not_told() -> None:
    found = Condition.compile("[1, 2][int(run.args.pin)] == 1").holds({"run.args": {"pin": "471199"}})
    assert found.warning is not None
    assert "an index is outside of its list" in found.warning
    assert "471199" not in found.warning


class Odd:
    """What no fact can be; a source of the application may return it."""

    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize(
    ("source", "args", "warning"),
    [
        ("duration(run.args.pin) > duration('1s')", {"pin": "471199471199h"}, "a duration is too long"),
        ("duration(string(run.args.pin) + 'h') > duration('1s')", {"pin": 471199471199}, "a duration is too long"),
        ("run.args.pin == 1", {"pin": 471199 * 2**70}, "a number of the case is too large"),
        ("run.args.pin == 1", {"pin": Odd()}, "something in the case is of type Odd, which CEL does not know"),
        ("run.args.pin == 1", {Odd(): 1}, "something in the case is of type Odd, which CEL does not know"),
        ("int(run.args.pin) == 1", {"pin": "hunter2"}, "cannot convert string to int"),
        ("bool(run.args.pin)", {"pin": "hunter2"}, "Type conversion error from 'string' to 'bool'"),
        ("timestamp(run.args.pin) == timestamp(0)", {"pin": "hunter2"}, "String to Timestamp conversion failed"),
        ("run.args.pin + 1 == 0", {"pin": 2**63 - 1}, "integer overflow"),
        (
            "run.args.pin.startsWith(run.args.n)",
            {"pin": "hunter2", "n": 4711},
            "'startsWith' cannot be applied to string",
        ),
        ("[1][run.args.pin] == 1", {"pin": "hunter2"}, "Index error: expected integer type, got string"),
    ],
)
def test_no_warning_tells_a_value(source: str, args: dict[Any, Any], warning: str) -> None:
    for told in (Condition.compile(source).holds, Expression.compile(source).value):
        found = told({"run.args": args})[1] or ""
        assert warning in found
        assert not re.search("hunter2|4711", found)


@pytest.mark.parametrize("text", ["INTERNAL: unheard of: hunter2", "'hunter2' is odd", "hunter2", ""])
def test_what_cel_says_in_words_of_which_nothing_is_known_is_not_told(text: str) -> None:
    assert explain(text, "run.args.pin == 1") == "CEL cannot evaluate it with the values that it met"


def test_a_key_that_does_not_matter_may_be_missing() -> None:
    assert Condition.compile("run.args.missing == 1 || fault.status == 503").holds(FACTS) == Evaluation(True, None)
    assert Condition.compile("has(run.args.missing) && run.args.missing == 1").holds(FACTS) == Evaluation(False, None)


@pytest.mark.parametrize(
    "facts",
    [
        {"fault.status": "many"},
        {"fault.status": 2**80},
        {"fault.status": object()},
        {"fault.status": [1]},
        {"fault.status": 5.5},
    ],
)
def test_a_fact_of_another_type_than_declared_is_a_warning(facts: dict[str, Any]) -> None:
    found = Condition.compile("fault.status == 503").holds(facts)
    assert not found.holds
    assert "fault.status" in (found.warning or "")


#: Among them some that CEL cannot take: halves of characters, numbers that are too large, classes of ours.
values = st.sampled_from(
    ["", "a", "\ud800", "a\x00b", 0, 2**63, 2**70, -1.5, None, True, [], ["x"], {}, {"x": "a"}, (), FactType]
)


@given(st.dictionaries(st.sampled_from(["run.args", "run.flow", "history.outcome"]), values))
def test_asking_never_raises(facts: dict[str, Any]) -> None:
    Condition.compile("run.args.x == run.flow || history.outcome[1] == 'final'").holds(facts)


def test_names_are_the_facts_that_it_mentions_and_not_those_in_texts() -> None:
    found = Condition.compile("run . flow == 'fault.text' // run.key\n&& has(run.args.x) && run.`owner` == ''")
    assert found.names == {"run.flow", "run.args", "run.owner"}


def test_an_expression_has_any_type_and_its_value_is_json() -> None:
    source = (
        "{'text': 'no ' + run.flow, 'list': run.args.items.map(i, i.kind), 'whole': 3u, 'wait': duration('90s'),"
        " 'at': timestamp('2026-01-01T00:00:00Z'), 'raw': b'xy', 'none': null, 'map': {'1': true}, 'part': 0.5}"
    )
    value, warning = Expression.compile(source).value(FACTS)
    assert warning is None
    assert json.loads(json.dumps(value)) == value
    assert value == {
        "text": "no organise_concert",
        "list": ["a", "b"],
        "whole": 3,
        "wait": 90.0,
        "at": "2026-01-01T00:00:00+00:00",
        "raw": "eHk=",
        "none": None,
        "map": {"1": True},
        "part": 0.5,
    }


@pytest.mark.parametrize(
    ("source", "warning"),
    [
        ("run.args.missing", 'there is no key "missing"'),
        ("1.0 / 0.0", "not a number in JSON"),
        ("type(1)", "which JSON does not know"),
        ("run.args.many.map(x, [x, x, x, x, x, x])", "more than 1,000 entries"),
    ],
)
def test_an_expression_without_a_value_says_why(source: str, warning: str) -> None:
    value, said = Expression.compile(source).value({"run.args": {"many": list(range(200))}})
    assert value is None
    assert warning in (said or "")


@pytest.mark.parametrize(
    "source",
    [
        "{1: 'a', true: 2}",
        "{true: 2, 1: 'a'}",
        "{0: 'a', false: 'b'}",
        "{1: 'a', 1u: 'b'}",
        "{1: 'a', '1': 'b'}",
        "{'true': 1, true: 2}",
        "[{'deep': {1: 'a', true: 2}}]",
        "dyn({1: 'a', 1u: 'b'})",
    ],
)
def test_no_key_of_a_value_is_lost_to_another_one(source: str) -> None:
    value, warning = Expression.compile(source).value({})
    assert value is None
    assert "in JSON keys are texts" in (warning or "")


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("history.outcome", {"1": "final"}),
        ("[history.outcome]", [{"1": "final"}]),
        ("{'by level': history.outcome}", {"by level": {"1": "final"}}),
        ("{true: 1, false: 2}", {"true": 1, "false": 2}),
        ("{dyn('a'): 1}", {"a": 1}),
    ],
)
def test_keys_that_are_texts_or_all_of_one_type_become_texts(source: str, value: object) -> None:
    assert Expression.compile(source).value(FACTS) == (value, None)


def test_cel_is_loaded_when_the_first_condition_is_compiled() -> None:
    code = (
        "import sys, aft.rules.cel.conditions as c, aft.rules.trees.defaults\n"
        "assert not any(name.startswith('cel_expr') for name in sys.modules)\n"
        "assert c.Condition.compile('true').holds({}).holds\n"
        "assert any(name.startswith('cel_expr') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_threads_may_share_conditions_and_cases_and_compile_at_the_same_time() -> None:
    shared, case = Condition.compile("run.args.sold == 40 && fault.text.matches('out')"), PreparedFacts(FACTS)
    wrong: list[object] = []
    together = threading.Barrier(4)

    def ask(number: int) -> None:
        together.wait()
        for turn in range(100):
            own = Condition.compile(f"run.priority == {number} && run.version == {turn}")
            answers = (
                own.holds({"run.priority": number, "run.version": turn}).holds,
                shared.holds(case).holds,
                not shared.holds({"run.args": {"sold": number}}).holds,
            )
            if not all(answers):
                wrong.append((number, turn, answers))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
