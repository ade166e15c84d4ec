"""Claims about primitives: how each is made, spelled and stored, and what none of them takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aft.errors import RuleRefused
from aft.recovery.levels import Ladder, Level
from aft.rules.exlets import do
from aft.rules.exlets.primitives import NOTHING, WORDS, Complete, Primitive, Set, Target, decode, expressions

EACH: list[tuple[Primitive, dict[str, Any], str]] = [
    (do.suspend("run"), {"do": "suspend", "target": "run"}, "suspend run"),
    (do.resume("flow"), {"do": "continue", "target": "flow"}, "continue flow"),
    (do.remove("activity"), {"do": "remove", "target": "activity"}, "remove activity"),
    (
        do.remove("ancestors", undo=True),
        {"do": "remove", "target": "ancestors", "undo": True},
        "remove ancestors and undo it",
    ),
    (do.restart(), {"do": "restart"}, "restart"),
    (do.complete(), {"do": "complete"}, "complete with None"),
    (do.complete(0), {"do": "complete", "result": 0}, "complete with 0"),
    (do.complete(computed="run.args.x"), {"do": "complete", "computed": "run.args.x"}, "complete with run.args.x"),
    (do.fail("sold out"), {"do": "fail", "message": "sold out"}, "fail with 'sold out'"),
    (
        do.fail("sold out", proceed=True),
        {"do": "fail", "message": "sold out", "proceed": True},
        "fail and proceed with 'sold out'",
    ),
    (do.retry(), {"do": "retry"}, "retry"),
    (
        do.retry(level=2, ladder="5s*3, 1m", after="30s"),
        {"do": "retry", "level": 2, "ladder": "5s*3, 1m", "after": "30s"},
        "retry at level 2 by ladder '5s*3, 1m' after 30s",
    ),
    (do.unwind(), {"do": "unwind"}, "unwind"),
    (do.unwind("booked"), {"do": "unwind", "to": "booked"}, "unwind to 'booked'"),
    (do.park("call the band"), {"do": "park", "reason": "call the band"}, "park: call the band"),
    (
        do.notify("https://hooks.example/T0/secret"),
        {"do": "notify", "url": "https://hooks.example/T0/secret"},
        "notify https://hooks.example",
    ),
    (
        do.notify("http://[::1]:80/x", note="look"),
        {"do": "notify", "url": "http://[::1]:80/x", "note": "look"},
        "notify http://[::1]:80",
    ),
    (do.set(args={"venue": "mid"}), {"do": "set", "args": {"venue": "mid"}}, "set args.venue"),
    (do.set(result=None), {"do": "set", "result": None}, "set result"),
    (
        do.set(tags={"a.b": 1}, computed={"result": "1", "args.x": "2", "tags.y": "3"}),
        {"do": "set", "tags": {"a.b": 1}, "computed": {"result": "1", "args.x": "2", "tags.y": "3"}},
        "set tags.a.b, result, args.x, tags.y",
    ),
]


@pytest.mark.parametrize(("made", "stored", "spelled"), EACH, ids=[spelled for _, _, spelled in EACH])
def test_a_primitive_is_stored_spelled_and_read_again(made: Primitive, stored: dict[str, Any], spelled: str) -> None:
    assert made.encode() == stored
    assert decode(json.loads(json.dumps(stored))) == made
    assert str(made) == spelled


def test_every_word_is_shown_above() -> None:
    assert {made.do for made, _, _ in EACH} == set(WORDS)


def test_no_result_is_not_the_result_none() -> None:
    assert do.set(tags={"x": 1}).result is NOTHING
    assert do.set(result=None).result is None
    assert do.set(tags={"x": 1}, result=None) != do.set(tags={"x": 1})


def test_what_completes_without_saying_with_what_completes_with_none() -> None:
    assert do.complete() == do.complete(None) == Complete(None)
    assert do.complete(computed="1").result is NOTHING


def test_values_that_json_has_no_word_for_are_kept_as_they_are_stored() -> None:
    assert do.complete(Decimal("9.99")).result == {"$aft": "decimal", "v": "9.99"}
    made = do.set(args={"day": date(2024, 2, 29)}, tags={"pair": (1, 2)})
    assert made.args == {"day": {"$aft": "date", "v": "2024-02-29"}}
    assert made.tags == {"pair": {"$aft": "tuple", "v": [1, 2]}}
    assert decode(json.loads(json.dumps(made.encode()))) == made


def test_a_primitive_keeps_its_values_when_the_callers_change() -> None:
    args: dict[str, Any] = {"seats": [1, 2]}
    made = do.set(args=args)
    args["seats"].append(3)
    assert made.args == {"seats": [1, 2]}
    straight = Set(args=args)
    args["seats"].append(4)
    assert straight.args == {"seats": [1, 2, 3]}


@pytest.mark.parametrize(("after", "kept"), [("90s", "90s"), (90, "1m30s"), (timedelta(milliseconds=1), "1ms")])
def test_a_wait_is_kept_as_text(after: timedelta | float | str, kept: str) -> None:
    assert do.retry(after=after).after == kept


def test_a_target_is_one_of_four() -> None:
    assert [do.suspend(one).target for one in ("activity", "run", "flow", "ancestors")] == list(Target)


def test_what_is_computed_is_told_with_its_place() -> None:
    assert expressions(do.complete(computed="1 + 1")) == {"computed": "1 + 1"}
    assert expressions(do.set(tags={"b": 1}, computed={"args.a": "2"})) == {"computed.args.a": "2"}
    assert expressions(do.retry()) == expressions(do.complete(3)) == {}


def _any(make: Callable[..., Primitive]) -> Callable[..., Any]:
    return make


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: do.suspend("runn"), "suspend: 'runn' is not a target; did you mean 'run'?"),
    (lambda: do.resume("all"), "continue: 'all' is not a target; there are 'activity', 'run', 'flow', 'ancestors'"),
    (lambda: _any(do.remove)(None), "remove: None is not a target; there are 'activity', 'run', 'flow', 'ancestors'"),
    (lambda: _any(do.remove)("run", undo=1), "remove: undo is 1; it must be true or false"),
    (
        lambda: do.complete(1, computed="1"),
        "complete: it has both a result and one that is computed; give one of the two",
    ),
    (lambda: do.complete(computed=" "), "complete: computed is ' '; it must be a text of 1 to 1000 characters"),
    (lambda: do.complete(object()), "complete: result: an object cannot be stored"),
    (lambda: do.complete(float("nan")), "complete: result: nan is not a number that JSON knows"),
    (lambda: Complete(date(2024, 2, 29)), "complete: result is a date, for which JSON has no word; write it as a text"),
    (
        lambda: Complete({"a": [{"$aft": "dote", "v": 1}]}),
        "complete: result cannot be stored: the stored text holds the unknown tag 'dote'",
    ),
    (lambda: Complete({1: 2}), "complete: result is {1: 2}; it must be a table of names and values"),
    (lambda: do.fail(""), "fail: message is ''; it must be a text of 1 to 1000 characters"),
    (lambda: _any(do.fail)("x", proceed="yes"), "fail: proceed is 'yes'; it must be true or false"),
    (lambda: do.retry(level=0), "retry: level 0 must be a whole number from 1 to 32"),
    (lambda: do.retry(level=True), "retry: level True must be a whole number from 1 to 32"),
    (
        lambda: do.retry(level=3, ladder="5s*3, 1m"),
        "retry: level 3 of ladder '5s*3, 1m' must be a whole number from 1 to 2",
    ),
    (lambda: do.retry(ladder=""), "retry: ladder is ''; it must be a text of 1 to 1000 characters"),
    (lambda: do.retry(ladder="none"), "retry: ladder: 'none' is not a level: 'none' is not a duration"),
    (lambda: do.retry(ladder="5s*3; 1m"), "retry: ladder: '5s*3; 1m' is not a level; write '5s*3' for three tries"),
    (lambda: do.retry(ladder="5s*0"), "retry: ladder: '5s*0' is not a level; write '5s*3' for three tries"),
    (lambda: do.retry(ladder="0.5ms"), "retry: ladder: '0.5ms' is not a level: 1ms is the least"),
    (lambda: do.retry(ladder=",".join(["1s"] * 33)), "retry: ladder has 33 levels; 32 are the most"),
    (lambda: do.retry(after="soon"), "retry: after: 'soon' is not a duration; write '250ms', '10s'"),
    (lambda: do.unwind(""), "unwind: to is ''; it must be a text of 1 to 200 characters"),
    (lambda: do.park("\n"), "park: reason is '\\n'; it must be a text of 1 to 1000 characters"),
    (lambda: do.notify("https://x.example", note="n" * 1001), "…; it must be a text of up to 1000 characters"),
    (lambda: do.set(), "set: it sets nothing; give args, tags, result or computed"),
    (lambda: _any(do.set)(args=["venue"]), "set: args is ['venue']; it must be a table of names and values"),
    (lambda: _any(do.set)(computed="1"), "set: computed is '1'; it must be a table of names and values"),
    (
        lambda: _any(do.set)(computed={"args.x": 1}),
        "set: computed.args.x is 1; it must be a text of 1 to 1000 characters",
    ),
    (
        lambda: do.set(args={"x": 1}, computed={"args.x": "1"}),
        "set: args.x is both given and computed; keep one of the two",
    ),
    (lambda: do.set(result=1, computed={"result": "1"}), "set: result is both given and computed; keep one of the two"),
    (
        lambda: do.set(args={"show.venue": 1}),
        "set: 'show.venue' cannot name an argument; an argument is set as a whole",
    ),
    (lambda: do.set(computed={"args.": "1"}), "set: '' cannot name an argument"),
    (
        lambda: do.set(tags={" ": 1}),
        "set: 'tags. ' is nothing that can be set; write 'args.NAME', 'tags.NAME' or 'result'",
    ),
    (lambda: do.set(computed={"argz.x": "1"}), "set: 'argz.x' is nothing that can be set; write 'args.NAME'"),
    (lambda: do.set(tags={"x": "\ud800"}), "set: tags.x: the text holds a lone surrogate"),
]


@pytest.mark.parametrize(("make", "told"), WRONG, ids=[told[:50] for _, told in WRONG])
def test_what_cannot_work_is_refused_where_it_is_written(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        make()
    assert told in str(refused.value)


URLS = ["", "hooks.example/secret", "ftp://a/secret", "https://", "https:///secret", "https://a b/", "http://[x", 5]


@pytest.mark.parametrize("url", [*URLS, "https://a/\n", "http://a:99999/secret", f"https://a/{'x' * 2000}"])
def test_a_url_that_nobody_can_post_to_is_refused_and_not_told(url: Any) -> None:
    with pytest.raises(RuleRefused) as refused:
        do.notify(url)
    assert "notify: url must begin with 'http://' or 'https://' and a host" in str(refused.value)
    assert "secret" not in str(refused.value)


STORED: list[tuple[Any, str]] = [
    ("retry", "a primitive is 'retry'; it must be a table of names and values"),
    ({"target": "run"}, "{'target': 'run'} has no 'do'; write do = \"retry\", for example"),
    ({"do": "suspnd"}, "'suspnd' is nothing that an exlet can do; did you mean 'suspend'?"),
    ({"do": "resume"}, "'resume' is nothing that an exlet can do; did you mean 'continue'?"),
    ({"do": "xyz"}, "'xyz' is nothing that an exlet can do; there are 'suspend', 'continue', 'remove'"),
    ({"do": ["retry"]}, "['retry'] is nothing that an exlet can do"),
    ({"do": "suspend", "targt": "run"}, "suspend: 'targt' is not a field of it; did you mean 'target'?"),
    ({"do": "retry", "x": 1}, "retry: 'x' is not a field of it; there are 'level', 'ladder', 'after'"),
    ({"do": "restart", "x": 1}, "restart: 'x' is not a field of it; it takes nothing"),
    ({"do": "fail"}, "fail: 'message' is missing"),
    ({"do": "suspend"}, "suspend: 'target' is missing"),
    ({"do": "retry", "after": "x"}, "retry: after: 'x' is not a duration"),
]


@pytest.mark.parametrize(("stored", "told"), STORED, ids=[told[:50] for _, told in STORED])
def test_what_is_read_is_refused_by_name(stored: Any, told: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        decode(stored)
    assert told in str(refused.value)


def _refuses(make: Callable[[], object], error: type[Exception]) -> bool:
    try:
        make()
    except error:
        return True
    return False


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="0123456789msh*, .", min_size=1, max_size=20).filter(str.strip))
def test_a_ladder_is_read_here_exactly_if_recovery_reads_it(text: str) -> None:
    assert _refuses(lambda: do.retry(ladder=text), RuleRefused) == _refuses(lambda: Ladder.parse(text), ValueError)


def test_a_ladder_is_given_as_activities_and_settings_have_it() -> None:
    spelled = do.retry(ladder="5s*3, 1m")
    assert do.retry(ladder=["5s*3", "1m"]) == do.retry(ladder=[Level("5s", tries=3), Level("1m")]) == spelled
    assert do.retry(ladder=["5s*3", 60]) == do.retry(ladder=("5s*3", timedelta(minutes=1))) == spelled
    assert decode({"do": "retry", "ladder": ["5s*3", "1m"]}) == spelled
    assert str(spelled) == "retry by ladder '5s*3, 1m'"


@pytest.mark.parametrize("ladder", [[], ["5s*"], [True], [None], [["5s"]], {"5s": 3}])
def test_a_ladder_that_is_none_is_refused(ladder: Any) -> None:
    with pytest.raises(RuleRefused, match="retry: ladder"):
        do.retry(ladder=ladder)


@pytest.mark.parametrize("url", ["https://user:secret@hooks.example.com/", "https://hooks.example.com/häuser"])
def test_a_notice_that_could_never_be_sent_is_refused_where_it_is_written(url: str) -> None:
    with pytest.raises(RuleRefused, match="url must begin with") as refused:
        do.notify(url)
    assert "secret" not in str(refused.value)
