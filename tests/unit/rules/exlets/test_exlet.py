"""Claims about exlets: which can be carried out to their end, how the others are refused, how they are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aft.errors import RuleRefused
from aft.rules.cel.conditions import Expression
from aft.rules.exlets import do
from aft.rules.exlets.exlet import BUILT_IN, MOST_BYTES, Exlet, check, check_for
from aft.rules.exlets.primitives import Continue, Primitive, Remove, Suspend, Target, is_deciding, is_final
from aft.rules.rule_types import RUN_LEVEL, RuleType

HOOK = "https://hooks.example/x"

RIGHT: list[list[Primitive]] = [
    [do.retry()],
    [do.notify(HOOK)],
    [do.suspend("activity"), do.set(args={"venue": "mid"}), do.resume("activity")],
    [do.suspend("run"), do.complete(1), do.resume("run")],
    [
        do.suspend("flow"),
        do.suspend("ancestors"),
        do.retry(),
        do.notify(HOOK),
        do.resume("ancestors"),
        do.resume("flow"),
    ],
    [do.suspend("activity"), do.complete(1)],
    [do.suspend("activity"), do.remove("flow")],
    [do.suspend("run"), do.remove("run", undo=True), do.notify(HOOK)],
    [do.suspend("run"), do.suspend("flow"), do.remove("flow")],
    [do.suspend("ancestors"), do.remove("ancestors"), do.unwind()],
    [do.suspend("flow"), do.remove("run"), do.resume("flow")],
    [do.suspend("run"), do.resume("run"), do.suspend("run"), do.resume("run"), do.park("look")],
    [do.remove("activity"), do.set(tags={"removed": True}), do.notify(HOOK), do.suspend("run"), do.resume("run")],
    [do.set(computed={"tags.seats": "run.args.seats"}), do.complete(computed="run.args")],
    [do.notify(HOOK)] * 50,
]

WRONG: list[tuple[Sequence[Any], str]] = [
    ([], "exlet 'x' does nothing; give it steps"),
    ([do.notify(HOOK)] * 51, "exlet 'x' has more than 50 primitives; make two of it"),
    (["retry"], "exlet 'x', primitive 1: 'retry' is none; make it with aft.do"),
    (
        [do.notify(HOOK), do.suspend("run")],
        "exlet 'x', primitive 2: suspend run: the run would stay suspended; add continue run, or remove run, after it",
    ),
    (
        [do.suspend("flow"), do.remove("run")],
        "primitive 1: suspend flow: the flow would stay suspended; add continue flow",
    ),
    (
        [do.suspend("ancestors"), do.remove("flow")],
        "primitive 1: suspend ancestors: the ancestors would stay suspended",
    ),
    (
        [do.suspend("activity"), do.notify(HOOK)],
        "primitive 1: suspend activity: the activity would stay suspended; "
        "add continue activity, or what else shall become of it, after it",
    ),
    (
        [do.resume("run")],
        "primitive 1: continue run: nothing before it suspends the run; only what an exlet has suspended",
    ),
    ([do.suspend("flow"), do.resume("run")], "primitive 2: continue run: nothing before it suspends the run"),
    (
        [do.suspend("run"), do.remove("run"), do.resume("run")],
        "primitive 3: continue run: nothing before it suspends the run",
    ),
    ([do.resume("run"), do.suspend("run")], "primitive 1: continue run: nothing before it suspends the run"),
    (
        [do.suspend("run"), do.suspend("run"), do.resume("run")],
        "primitive 2: suspend run: primitive 1 (suspend run) has done so already; leave one of the two out",
    ),
    (
        [do.unwind(), do.retry()],
        "primitive 2: retry: primitive 1 (unwind) has decided already what becomes of it; keep one of the two",
    ),
    (
        [do.suspend("activity"), do.complete(1), do.resume("activity")],
        "primitive 3: continue activity: primitive 2 (complete with 1) has decided already",
    ),
    (
        [do.remove("activity"), do.remove("run")],
        "primitive 2: remove run: primitive 1 (remove activity) has decided already",
    ),
    (
        [do.park("look"), do.set(tags={"a": 1})],
        "primitive 2: set tags.a: nothing but notify and continue may follow primitive 1 (park: look), which is final; "
        "put it before",
    ),
    (
        [do.remove("flow"), do.unwind()],
        "primitive 2: unwind: nothing but notify and continue may follow primitive 1 (remove flow)",
    ),
    (
        [do.retry(), do.suspend("run"), do.resume("run")],
        "primitive 2: suspend run: nothing but notify and continue may follow",
    ),
    (
        [do.remove("activity"), do.set(args={"a": 1})],
        "primitive 2: set args.a: it comes too late: primitive 1 (remove activity) has decided about the activity; "
        "put it before",
    ),
    (
        [do.suspend("activity"), do.resume("activity"), do.suspend("activity")],
        "primitive 3: suspend activity: it comes too late: primitive 2 (continue activity) has decided",
    ),
    ([do.set(tags={"a": "x" * MOST_BYTES})], f"bytes as JSON; {MOST_BYTES} are the most; store data elsewhere"),
    ([do.notify(HOOK), do.complete(computed="run.argz")], "exlet 'x', primitive 2: complete with run.argz: computed: "),
    ([do.set(computed={"args.a": "1 +"})], "exlet 'x', primitive 1: set args.a: computed.args.a: "),
]


@pytest.mark.parametrize("steps", RIGHT, ids=lambda steps: ", ".join(map(str, steps[:4])))
def test_an_exlet_that_comes_to_its_end_is_taken(steps: list[Primitive]) -> None:
    exlet = Exlet("x", steps)
    assert check(exlet) is exlet


@pytest.mark.parametrize(("steps", "told"), WRONG, ids=[told[:60] for _, told in WRONG])
def test_an_exlet_that_cannot_be_carried_out_is_refused_by_the_primitive(steps: Sequence[Any], told: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        check(Exlet("x", steps))
    assert told in str(refused.value)


def test_expressions_are_compiled_with_the_sources_that_users_register(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Any]] = []
    monkeypatch.setattr(Expression, "compile", lambda *given: seen.append(given))
    check(Exlet("x", [do.set(computed={"args.a": "1", "tags.b": "2"}), do.complete(computed="3")]), {"weather": "dyn"})
    assert seen == [("1", {"weather": "dyn"}), ("2", {"weather": "dyn"}), ("3", {"weather": "dyn"})]


@pytest.mark.parametrize("name", ["", "a/b", "a@b", " a", "a\n", "x" * 201, 5, None])
def test_a_name_can_be_shown_and_stored(name: Any) -> None:
    with pytest.raises(RuleRefused, match="cannot name an exlet: 1 to 200 printable characters"):
        check(Exlet(name, [do.retry()]))


@pytest.mark.parametrize("steps", ["retry", {"do": "retry"}, do.retry(), 5])
def test_steps_are_a_list(steps: Any) -> None:
    with pytest.raises(RuleRefused, match=r"exlet 'x': steps must be a list of primitives: \[aft\.do\.retry\(\)\]"):
        Exlet("x", steps)


def test_about_is_a_text() -> None:
    about: Any = 5
    with pytest.raises(RuleRefused, match="exlet 'x': about is 5; it must be a text of up to"):
        check(Exlet("x", [do.retry()], about))


def test_an_exlet_is_a_value() -> None:
    assert Exlet("x", [do.retry()]) == Exlet("x", (do.retry(),), "")
    assert Exlet("x", [do.retry()]) != Exlet("x", [do.retry()], "other")


def test_the_one_that_decides_is_found() -> None:
    decisive = do.complete(1)
    assert Exlet("x", [do.suspend("run"), decisive, do.resume("run")]).decides is decisive
    assert Exlet("x", [do.set(tags={"a": 1}), do.notify(HOOK)]).decides is None


def test_what_only_decides_needs_no_plan() -> None:
    assert Exlet("x", [do.fail("sold out")]).only_decides
    assert not Exlet("x", [do.notify(HOOK)]).only_decides
    assert not Exlet("x", [do.notify(HOOK), do.unwind()]).only_decides


def test_what_decides_and_what_is_final() -> None:
    every: list[Primitive] = [do.restart(), do.complete(1), do.fail("x"), do.retry(), do.unwind(), do.park("x")]
    assert all(is_deciding(one) and is_final(one) for one in every)
    assert [one for one in Target if is_deciding(Remove(one))] == ["activity", "run"]
    assert [one for one in Target if is_final(Remove(one))] == ["run", "flow"]
    assert [one for one in Target if is_deciding(Continue(one))] == ["activity"]
    rest: list[Primitive] = [do.notify(HOOK), do.set(tags={"a": 1}), *map(Suspend, Target)]
    assert not any(is_deciding(one) or is_final(one) for one in rest)


OF_ACTIVITY: list[Primitive] = [
    do.restart(),
    do.complete(1),
    do.fail("x", proceed=True),
    do.retry(),
    do.set(args={"a": 1}),
    do.set(result=1),
    do.set(tags={"a": 1}, computed={"args.b": "1"}),
    do.suspend("activity"),
    do.resume("activity"),
    do.remove("activity"),
]
OF_RUN: list[Primitive] = [
    do.fail("x"),
    do.unwind(),
    do.unwind("booked"),
    do.park("x"),
    do.notify(HOOK),
    do.set(tags={"a": 1}),
    do.remove("run"),
    do.remove("flow"),
    do.suspend("run"),
    do.resume("ancestors"),
]


@pytest.mark.parametrize("on", RuleType)
def test_what_needs_an_activity_is_refused_where_there_is_none(on: RuleType) -> None:
    for one in OF_ACTIVITY:
        exlet = Exlet("x", [do.notify(HOOK), one])
        if on not in RUN_LEVEL:
            assert check_for(exlet, on) is exlet
            continue
        with pytest.raises(RuleRefused) as refused:
            check_for(exlet, on)
        assert str(refused.value) == (
            f"exlet 'x', primitive 2: {one}: '{on}' is about a run as a whole, and there is no activity to do this to"
        )
    check_for(Exlet("x", OF_RUN), on)


@pytest.mark.parametrize("name", ["ladder", "unwind", "park"])
def test_built_in_exlets_are_right_plain_and_not_to_be_changed(name: str) -> None:
    assert check(BUILT_IN[name]).only_decides
    with pytest.raises(RuleRefused, match=f"exlet '{name}' is built in and stays as it is; choose another name"):
        check(Exlet(name, [do.notify(HOOK)]))


STORED: list[tuple[Any, str]] = [
    ([], "an exlet is []; it must be a table"),
    ({"steps": []}, "None cannot name an exlet"),
    ({"name": "x"}, "exlet 'x': steps is missing; it must be a list: [{do = \"retry\"}], for example"),
    ({"name": "x", "steps": {}}, "exlet 'x': steps is {}; it must be a list"),
    ({"name": "x", "step": []}, "exlet 'x': 'step' is not a key of an exlet; did you mean 'steps'?"),
    ({"name": "x", "steps": [], "about": 1}, "exlet 'x': about is 1; it must be a text"),
    (
        {"name": "x", "steps": [{"do": "retry"}, {"do": "suspend", "target": "rum"}]},
        "exlet 'x', primitive 2: suspend: 'rum' is not a target; did you mean 'run'?",
    ),
    ({"name": "x", "steps": ["retry"]}, "exlet 'x', primitive 1: a primitive is 'retry'; it must be a table"),
]


@pytest.mark.parametrize(("stored", "told"), STORED, ids=[told[:50] for _, told in STORED])
def test_what_was_not_written_by_encode_is_refused(stored: Any, told: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        Exlet.decode(stored)
    assert told in str(refused.value)


def test_an_exlet_is_stored_as_people_would_write_it() -> None:
    exlet = Exlet("move", [do.set(args={"venue": "mid"}), do.retry(after="5s")], about="Move.")
    assert exlet.encode() == {
        "name": "move",
        "about": "Move.",
        "steps": [{"do": "set", "args": {"venue": "mid"}}, {"do": "retry", "after": "5s"}],
    }


storable = st.characters(codec="utf-8", exclude_categories=["Cc"], include_characters="\n\t")
names = st.text(storable, min_size=1, max_size=8)
keys = names.filter(lambda name: name != "$aft")
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(storable, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
sentences = st.text(storable, min_size=1, max_size=12).filter(str.strip)
arguments = st.dictionaries(st.sampled_from(["venue", "seats", "größe"]), values, min_size=1, max_size=3)
steps = st.one_of(
    st.builds(do.suspend, st.sampled_from(Target)),
    st.builds(do.resume, st.sampled_from(Target)),
    st.builds(do.remove, st.sampled_from(Target), st.booleans()),
    st.builds(do.restart),
    st.builds(do.complete, values),
    st.builds(lambda source: do.complete(computed=source), sentences),
    st.builds(do.fail, sentences, st.booleans()),
    st.builds(do.retry, st.none() | st.integers(1, 2), st.none() | st.just("5s*3, 1m"), st.none() | st.just("30s")),
    st.builds(do.unwind, st.none() | sentences),
    st.builds(do.park, sentences),
    st.builds(do.notify, st.just(HOOK), sentences),
    st.builds(do.set, arguments, st.dictionaries(sentences, values, max_size=2), values),
    st.builds(lambda source: do.set(computed={"args.x": source, "tags.y": source, "result": source}), sentences),
)
exlets = st.builds(
    Exlet,
    names.filter(str.isprintable),
    st.lists(steps, max_size=5),
    st.text(storable, max_size=20),
)


@settings(deadline=None, max_examples=100)
@given(exlets.filter(lambda one: one.name == one.name.strip() and not {"/", "@"} & set(one.name)))
def test_what_is_stored_is_read_again(exlet: Exlet) -> None:
    assert Exlet.decode(json.loads(json.dumps(exlet.encode()))) == exlet
