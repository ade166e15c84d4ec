"""Claims about files of rules: what is read from TOML, what is written, and how problems are told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aft.errors import RuleRefused
from aft.rules.cel.conditions import Expression
from aft.rules.exlets import do
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.rule_types import RUN_LEVEL, RuleType
from aft.rules.toml.read import RuleDocument, RuleText, TreeText, read_document, read_text, write

CONCERT = """\
[exlet.change_to_mid_venue]
about = "Move to a smaller hall."
steps = [
    {do = "suspend", target = "activity"},
    {do = "set", args = {venue = "mid"}},
    {do = "continue", target = "activity"},
]

# Rules are asked from top to bottom until one holds. Then those that refine it are asked, in the same way:
# the last one that held says what is done. A rule that refines none is asked if none before it held.

[[tree]]
flow = "organise_concert"
on = "activity_pre"
activity = "do_show"

[[tree.rules]]
id = "under 75%"
if = "activity.args.sold < activity.args.seats * 3 / 4"
then = "change_to_mid_venue"

[tree.rules.cornerstone]
"activity.args" = {seats = 1000, sold = 700}
"activity.result" = {"$aft" = "none"}

[[tree.rules]]
refines = "under 75%"
if = 'activity.args.sold < 200 || run.tags.state == "broken up"'
then = "cancel_show"
note = '''
The band asked for it.
See "minutes".'''

[[tree.rules]]
refines = "under 75%"
if = "activity.args.sold < activity.args.seats / 2"
then = "change_to_small_venue"

[[tree.rules]]
if = "true"
then = "park"
"""

SHEET = RuleDocument(
    (
        Exlet(
            "change_to_mid_venue",
            [do.suspend("activity"), do.set(args={"venue": "mid"}), do.resume("activity")],
            about="Move to a smaller hall.",
        ),
    ),
    (
        TreeText(
            "organise_concert",
            RuleType.ACTIVITY_PRE,
            "do_show",
            (
                RuleText(
                    "activity.args.sold < activity.args.seats * 3 / 4",
                    "change_to_mid_venue",
                    cornerstone={"activity.args": {"seats": 1000, "sold": 700}, "activity.result": None},
                    refined=1,
                    otherwise=3,
                    id="under 75%",
                ),
                RuleText(
                    'activity.args.sold < 200 || run.tags.state == "broken up"',
                    "cancel_show",
                    'The band asked for it.\nSee "minutes".',
                    otherwise=2,
                ),
                RuleText("activity.args.sold < activity.args.seats / 2", "change_to_small_venue"),
                RuleText("true", "park"),
            ),
        ),
    ),
)


def test_a_file_is_read() -> None:
    assert read_text(CONCERT) == SHEET


def test_a_file_is_written_as_people_would_write_it() -> None:
    assert write(SHEET) == CONCERT


def test_nothing_is_written_and_read_as_nothing() -> None:
    assert write(RuleDocument()) == ""
    assert read_text("") == RuleDocument()


def test_a_tree_may_have_no_rules() -> None:
    sheet = RuleDocument((), (TreeText("f", RuleType.RUN_PRE, ""),))
    assert read_text(write(sheet)) == sheet


def test_the_order_of_files_is_not_what_they_say() -> None:
    one, two = Exlet("a", [do.retry()]), Exlet("b", [do.unwind()])
    assert RuleDocument((two, one)) == RuleDocument((one, two))


def test_rules_may_stand_far_from_what_they_refine() -> None:
    rules = '[[tree.rules]]\nid = 1\nif = "a"\nthen = "x"\n[[tree.rules]]\nif = "b"\nthen = "y"\n'
    late = '[[tree.rules]]\nrefines = 1\nif = "c"\nthen = "z"\n'
    [tree] = read_text('[[tree]]\nflow = "f"\non = "run_pre"\n' + rules + late).trees
    assert tree.rules == (RuleText("a", "x", refined=1, otherwise=2), RuleText("c", "z"), RuleText("b", "y"))


def _chain(length: int, **link: bool) -> TreeText:
    numbers = [number + 1 if number + 1 < length else None for number in range(length)]
    rules = [RuleText(f"run.priority == {n}", "park", **dict.fromkeys(link, after)) for n, after in enumerate(numbers)]
    return TreeText("f", RuleType.FAULT, "*", tuple(rules))


@pytest.mark.parametrize("link", ["otherwise", "refined"])
def test_a_chain_of_a_thousand_rules_is_written_and_read(link: str) -> None:
    sheet = RuleDocument((), (_chain(1_000, **{link: True}),))
    text = write(sheet)
    assert read_text(text) == sheet
    assert max(map(len, text.splitlines()[2:])) < 40


def test_a_rule_that_is_added_changes_no_other_line() -> None:
    [tree] = SHEET.trees
    more = (*tree.rules[:2], RuleText(tree.rules[2].condition, tree.rules[2].exlet, otherwise=4), tree.rules[3])
    grown = TreeText(tree.flow, tree.on, tree.activity, (*more, RuleText("false", "unwind")))
    before, after = CONCERT.splitlines(), write(RuleDocument(SHEET.exlets, (grown,))).splitlines()
    assert [line for line in before if line not in after] == []
    assert len(after) == len(before) + 5


def test_rules_that_others_refine_get_an_id_that_is_free() -> None:
    rules = (RuleText("a", "x", refined=1), RuleText("b", "x", refined=2, id="1"), RuleText("c", "x", id="1"))
    text = write(RuleDocument((), (TreeText("f", RuleType.FAULT, "*", rules),)))
    assert [line for line in text.splitlines() if line.startswith(("id", "refines"))] == [
        'id = "2"',
        'id = "1"',
        'refines = "2"',
        'refines = "1"',
    ]


@pytest.mark.parametrize(
    ("rules", "root", "told"),
    [
        ({1: RuleText("a", "x", refined=2)}, 1, "rule 2 is missing"),
        ({1: RuleText("a", "x", refined=1)}, 1, "rule 1 is led to twice"),
        ({1: RuleText("a", "x", refined=2, otherwise=2), 2: RuleText("b", "x")}, 1, "rule 2 is led to twice"),
        ({1: RuleText("a", "x"), 2: RuleText("b", "x")}, 1, "no rule leads to 2"),
        ({1: RuleText("a", "x")}, None, "no rule leads to 1"),
    ],
)
def test_rules_that_form_no_tree_are_refused(rules: dict[int, RuleText], root: int | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TreeText.of("f", RuleType.FAULT, "*", rules, root)


TREE = '[[tree]]\nflow = "f"\non = "fault"\nactivity = "a"\n'
RULE = '[[tree.rules]]\nif = "true"\nthen = "park"\n'

WRONG: list[tuple[str, str]] = [
    ("x =", "t.toml: it is not TOML: Invalid value (at end of document)"),
    ("[exlet.a]\n[exlet.a]", "t.toml: it is not TOML: Cannot declare ('exlet', 'a') twice (at line 2, column 9)"),
    ("x = " + "[" * 5_000, "t.toml: it is nested too deeply"),
    ("x = " + "1" * 5_000, "t.toml: it is not TOML: Exceeds the limit"),
    ("[[trees]]", "t.toml: 'trees' is not a key of such a file; did you mean 'tree'?"),
    ("exlet = 1", "t.toml: exlet is 1; it must be a table of names and values"),
    ("[tree]", "t.toml: tree must be a list; write [[tree]]"),
    ("exlet.a = 1", "t.toml: exlet 'a' is 1; it must be a table of names and values"),
    ("[exlet.a]\nstep = []", "t.toml: exlet 'a': 'step' is not a key of an exlet; did you mean 'steps'?"),
    ("[exlet.a]\nsteps = []", "t.toml: exlet 'a' does nothing; give it steps"),
    ('[exlet."a/b"]\nsteps = []', "t.toml: 'a/b' cannot name an exlet"),
    (
        "[exlet.park]\nsteps = [{do = 'retry'}]",
        "t.toml: exlet 'park' is built in and stays as it is; choose another name",
    ),
    (
        "[exlet.a]\nsteps = [{do = 'retry', level = '2'}]",
        "t.toml: exlet 'a', primitive 1: retry: level '2' must be a whole",
    ),
    (
        "[exlet.a]\nsteps = [{do = 'suspend', target = 'run'}]",
        "t.toml: exlet 'a', primitive 1: suspend run: the run would stay",
    ),
    (
        "[exlet.a]\nsteps = [{do = 'complete', computed = 'run.argz'}]",
        "t.toml: exlet 'a', primitive 1: complete with run.argz: ",
    ),
    (
        "[exlet.a]\nsteps = [{do = 'set', args = {day = 2024-02-29}}]",
        "t.toml: exlet 'a'.steps[0].args.day is a date or a time, which is a text in exlets and facts; "
        "write it as one: '2024-02-29'",
    ),
    ("[exlet.a]\nsteps = [{do = 'complete', result = nan}]", "primitive 1: complete: result cannot be stored: "),
    ("[exlet.a]\nabout = " + "[" * 70 + "]" * 70, "is nested more than 64 deep"),
    (TREE + "[[tree.rule]]", "t.toml: tree 1: 'rule' is not a key of a tree; did you mean 'rules'?"),
    ("[[tree]]\non = 'fault'", "t.toml: None cannot name the flow of tree 1"),
    ("[[tree]]\nflow = 'f'", "t.toml: tree 1: 'on' is missing; there are 'fault', 'abort'"),
    (
        "[[tree]]\nflow = 'f'\non = 'timeoute'",
        "t.toml: tree 1: on = 'timeoute' is not a rule type; did you mean 'timeout'?",
    ),
    ("[[tree]]\nflow = 'f'\non = []", "t.toml: tree 1: on = [] is not a rule type; there are 'fault'"),
    ("[[tree]]\nflow = 'f'\non = 'fault'", "t.toml: tree 1: 'activity' is missing; write its name, or '*' for all"),
    ("[[tree]]\nflow = 'f'\non = 'fault'\nactivity = 1", "t.toml: 1 cannot name the activity of tree 1"),
    (
        "[[tree]]\nflow = 'f'\non = 'run_pre'\nactivity = '*'",
        "tree 1: on = 'run_pre' is about a run as a whole; leave 'activity' out",
    ),
    ("tree = [1]", "t.toml: tree 1 is 1; it must be a table of names and values"),
    (TREE + "rules = 1", "t.toml: tree 1 (f fault a): rules must be a list; write [[tree.rules]]"),
    (TREE + "rules = [1]", "t.toml: tree 1 (f fault a), rule 1: it is 1; it must be a table of names and values"),
    (
        TREE + RULE + "els = 1",
        "t.toml: tree 1 (f fault a), rule 1: 'els' is not a key of a rule; there are 'id', 'refines'",
    ),
    (TREE + RULE + "exlet = 'x'", "rule 1: 'exlet' is not a key of a rule; did you mean 'then'?"),
    (
        TREE + "[[tree.rules]]\nthen = 'park'",
        "t.toml: tree 1 (f fault a), rule 1: 'if' is missing; a rule needs 'if' and 'then'",
    ),
    (TREE + "[[tree.rules]]\nif = 'true'", "rule 1: 'then' is missing; a rule needs 'if' and 'then'"),
    (
        TREE + "[[tree.rules]]\nif = true\nthen = 'park'",
        "rule 1: if is True; it must be a text of 1 to 10000 characters",
    ),
    (TREE + "[[tree.rules]]\nif = 'true'\nthen = 1", "rule 1: 1 cannot name the exlet in 'then'"),
    (TREE + RULE + "note = 1", "rule 1: note is 1; it must be a text of up to 10000 characters"),
    (TREE + RULE + "id = 1.5", "rule 1: id is 1.5; it must be a text of 1 to 200 characters"),
    (TREE + RULE + "cornerstone = 1", "rule 1: cornerstone is 1; it must be a table of names and values"),
    (TREE + RULE + "cornerstone.x = 10:00:00", "rule 1: cornerstone.x is a date or a time"),
    (
        TREE + RULE + "id = 'first'\n" + RULE + "refines = 'frist'",
        "tree 1 (f fault a), rule 2: it refines 'frist', but no rule before it has that id; did you mean 'first'?",
    ),
    (
        TREE + RULE + "id = 'a'\nrefines = 'a'",
        "rule 1: it refines 'a', but no rule before it has that id; there are none",
    ),
    (TREE + RULE + "id = 'a'\n" + RULE + "id = 'a'", "rule 2: rule 1 has the id 'a' as well; choose another"),
    (TREE + TREE, "t.toml: tree 2 (f fault a) is in t.toml as well; keep one of them"),
]


@pytest.mark.parametrize(("text", "told"), WRONG, ids=[told[:60] for _, told in WRONG])
def test_a_problem_names_file_and_key(text: str, told: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        read_text(text, "t.toml")
    assert told in str(refused.value)


def test_several_problems_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text("[exlet.a]\nsteps = [{do = 'fly'}]\n[exlet.b]\nsteps = []\n[[tree]]\nflw = 1\n")
    (tmp_path / "a.toml").write_text("x =")
    (tmp_path / "c.toml").write_text(TREE + "[[tree.rules]]\nid = 'x'\n" + RULE + "refines = 'x'\nelse = 1\n")
    with pytest.raises(RuleRefused) as refused:
        read_document(tmp_path)
    assert [line[:60] for line in str(refused.value).splitlines()] == [
        "a.toml: it is not TOML: Invalid value (at end of document)",
        "b.toml: exlet 'a', primitive 1: 'fly' is nothing that an exlet can do"[:60],
        "b.toml: exlet 'b' does nothing; give it steps, [aft.do.retry"[:60],
        "b.toml: tree 1: 'flw' is not a key of a tree; did you mean 'flow'?"[:60],
        "b.toml: None cannot name the flow of tree 1: 1 to 200 printable"[:60],
        "c.toml: tree 1 (f fault a), rule 1: 'if' is missing; a rule needs"[:60],
        "c.toml: tree 1 (f fault a), rule 2: 'else' is not a key of a rule"[:60],
    ]


def test_of_very_many_problems_some_are_told() -> None:
    with pytest.raises(RuleRefused) as refused:
        read_text("".join(f"k{number} = 1\n" for number in range(25)))
    assert len(str(refused.value).splitlines()) == 21
    assert str(refused.value).endswith("\nand 5 more")


def test_a_directory_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "z.toml").write_text("[exlet.a]\nsteps = [{do = 'retry'}]")
    (tmp_path / "a.toml").write_text(TREE + RULE)
    (tmp_path / "notes.md").write_text("no TOML")
    found = read_document(tmp_path)
    assert found == RuleDocument(
        (Exlet("a", [do.retry()]),), (TreeText("f", RuleType.FAULT, "a", (RuleText("true", "park"),)),)
    )


def test_what_two_files_hold_is_told_with_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[exlet.x]\nsteps = [{do = 'retry'}]\n" + TREE)
    (tmp_path / "b.toml").write_text("[exlet.x]\nsteps = [{do = 'unwind'}]\n" + TREE)
    with pytest.raises(RuleRefused) as refused:
        read_document(tmp_path)
    assert str(refused.value).splitlines() == [
        "b.toml: exlet 'x' is in a.toml as well; keep one of them",
        "b.toml: tree 1 (f fault a) is in a.toml as well; keep one of them",
    ]


def test_a_file_may_be_read_alone_and_begin_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbf[exlet.a]\r\nsteps = [{do = 'retry'}]\r\n")
    assert read_document(file) == RuleDocument((Exlet("a", [do.retry()]),))


def test_what_cannot_be_read_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleRefused, match=r"holds no file \*\.toml"):
        read_document(tmp_path)
    with pytest.raises(RuleRefused, match=r"nowhere\.toml: it cannot be read: No such file"):
        read_document(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe4")
    with pytest.raises(RuleRefused, match=r"latin\.toml: it is not UTF-8: byte 2 is none"):
        read_document(tmp_path)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aft.rules.toml.read.MOST_BYTES", 10)
    (tmp_path / "a.toml").write_text("# 123456789")
    with pytest.raises(RuleRefused, match=r"a\.toml: it has more than 10 bytes; make several files of it"):
        read_document(tmp_path)


def test_expressions_are_compiled_with_the_sources_that_users_register(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Any]] = []
    monkeypatch.setattr(Expression, "compile", lambda *given: seen.append(given))
    read_text("[exlet.a]\nsteps = [{do = 'complete', computed = 'x'}]", sources={"weather": "dyn"})
    assert seen == [("x", {"weather": "dyn"})]


@pytest.mark.parametrize(
    "text",
    [
        "it's",
        'say "x"',
        'it\'s "x"',
        "a\\d",
        "'",
        "a\nb",
        "a\nb'",
        "a'''\nb",
        "\na\n",
        "\t\r\ufeff\n",
        "ü🎸",
    ],
)
def test_every_text_comes_back(text: str) -> None:
    exlet = Exlet("a", [do.park(f"_{text}"), do.notify("https://x.example", note=text)], about=text)
    rule = RuleText(f"_{text}", "park", text, {text: [text, {text: text}]})
    sheet = RuleDocument((exlet,), (TreeText("f", RuleType.FAULT, "a", (rule,)),))
    assert read_text(write(sheet)) == sheet


characters = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], include_characters="\n\t"), max_size=10)
said = characters.filter(lambda text: bool(text.strip()) and text != "$aft")
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda one: one.isprintable() and one == one.strip() and not {"/", "@"} & set(one) and one not in BUILT_IN
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | characters,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(characters, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "$aft" not in json.dumps(value))
tables = st.dictionaries(characters, values, max_size=3)
deciding = st.one_of(
    st.builds(do.complete, values),
    st.builds(do.fail, said, st.booleans()),
    st.builds(do.retry, st.none() | st.integers(1, 2), st.none() | st.just("5s*3, 1m"), st.none() | st.just("30s")),
    st.builds(do.unwind, st.none() | said),
    st.builds(do.park, said),
    st.builds(do.remove, st.sampled_from(["activity", "run"]), st.booleans()),
)
before = st.builds(do.set, st.dictionaries(st.just("x"), values), st.dictionaries(said, values), values)
exlets = st.builds(
    lambda name, first, last, about: Exlet(name, [*first, last], about),
    names,
    st.lists(before, max_size=2),
    deciding,
    characters,
)


def _grow(texts: list[tuple[str, str, str, dict[str, Any] | None]], seed: int) -> dict[int, RuleText]:
    """Hang each rule under a random one that has a branch to spare."""
    rules: dict[int, RuleText] = {}
    free: list[tuple[int, str]] = []
    chance = random.Random(seed)
    for number, (condition, exlet, note, cornerstone) in enumerate(texts):
        rules[number] = RuleText(condition, exlet, note, cornerstone, id=chance.choice(["", "a", str(number)]))
        if free:
            above, branch = free.pop(chance.randrange(len(free)))
            object.__setattr__(rules[above], branch, number)
        free += [(number, "refined"), (number, "otherwise")]
    return rules


@st.composite
def trees(draw: st.DrawFn) -> TreeText:
    """A tree of any shape."""
    on = draw(st.sampled_from(RuleType))
    texts = draw(st.lists(st.tuples(said, names, characters, st.none() | tables), max_size=8))
    rules = _grow(texts, draw(st.integers(0, 10**6)))
    return TreeText.of(draw(names), on, "" if on in RUN_LEVEL else draw(names), rules, 0 if rules else None)


sheets = st.builds(
    lambda some, others: RuleDocument(tuple(some), tuple(others)),
    st.lists(exlets, max_size=3, unique_by=lambda one: one.name),
    st.lists(trees(), max_size=3, unique_by=lambda one: one.key),
)


@settings(deadline=None, max_examples=100)
@given(sheets)
def test_what_is_written_is_read_again(sheet: RuleDocument) -> None:
    text = write(sheet)
    assert read_text(text) == sheet
    assert write(read_text(text)) == write(RuleDocument(sheet.exlets[::-1], sheet.trees[::-1]))
