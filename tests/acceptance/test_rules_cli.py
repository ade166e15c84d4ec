"""Rules and exlets, as a person meets them on the command line: seen, taught, explained, kept in files, taken back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import click
import pytest
from sqlalchemy import update

import aft
from aft.cli.commands.rules.meanings import MEANINGS
from aft.fault import Fault
from aft.rules.cases import sources
from aft.rules.cases.facts import FACT_TYPES
from aft.rules.cases.sources import source
from aft.rules.exlets import plans
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import AskedTree, RuleChoice
from aft.rules.trees.defaults import DEFAULTS
from aft.rules.trees.tree import Node, Tree
from aft.runs.records import faults as fault_rows
from aft.runs.records import notices, quarantine
from aft.store import tables
from aft.store.db_time import now
from aft.store.tables import exlets, faults, rule_trees
from tests.acceptance import hall
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually

SEAT = ("hall_visit", "fault", "hall_seat")
KEY = ("hall_visit", RuleType.FAULT, "hall_seat")
EXLETS = """
[exlet.stand]
about = "Let them stand."
steps = [{do = "fail", message = "no seat", proceed = true}]

[exlet.give_up]
steps = [{do = "set", tags = {gave = "up"}}, {do = "unwind"}]
"""


@pytest.fixture(autouse=True)
def plain(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those that a command is given, a name to be known by, and a terminal of 80 columns."""
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def taught(terminal: Terminal, tmp_path: Path) -> Terminal:
    """The same with two exlets."""
    (tmp_path / "exlets.toml").write_text(EXLETS)
    terminal.good("exlets", "add", str(tmp_path / "exlets.toml"))
    return terminal


def fault_of(terminal: Terminal, run: aft.Run) -> Fault:
    with terminal.app.store.read() as connection:
        return fault_rows.of_run(connection, run.id)[-1]


def fails(terminal: Terminal, order: str) -> Fault:
    """A fault that nobody has decided about yet."""
    return fault_of(terminal, terminal.app.start(hall.visit, order))


def ended(terminal: Terminal, run: aft.Run) -> aft.Run:
    """Let a dispatcher bring a run to its end, whatever that is."""
    terminal.app.rule_cache.refresh()  # what was taught just now counts at once
    with terminal.app.dispatcher():
        eventually(lambda: run.status.ended)
    return run


def refusal(terminal: Terminal, *arguments: str, typed: str | None = None, status: int = 1) -> list[str]:
    """Run a command that fails, and return the lines that say why."""
    result = terminal.call(*arguments, typed=typed)
    assert result.exit_code == status, result.output
    lines = result.stderr.splitlines()
    assert any(line.startswith("aft: ") for line in lines), result.output
    return lines


def add(terminal: Terminal, fault: Fault, condition: str, exlet: str, *more: str) -> str:
    return terminal.good("rules", "add", fault.id, "--if", condition, "--then", exlet, "--yes", *more).output


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody else do something while a person thinks about the answer, which is yes."""

    def confirm(*_: object, **__: object) -> bool:
        act()
        return True

    monkeypatch.setattr(click, "confirm", confirm)


# Trees ----------------------------------------------------------------------------------------------------------


def test_what_aft_does_by_itself_is_a_tree_like_any_other(terminal: Terminal) -> None:
    shown = terminal.good("rules", "tree")
    assert "* × fault × *  built in" in shown.stdout
    assert "  2    but if fault.recoverable && !fault.exhausted → ladder" in shown.stdout
    assert "  3    else if fault.kind == 'compensator' → park" in shown.stdout
    assert "No rules are taught yet" in shown.stderr
    found = terminal.data("rules", "tree")
    assert [(one["on"], one["built_in"], one["revision"]) for one in found] == [("fault", True, 0), ("abort", True, 0)]
    assert [rule["refines"] for rule in found[0]["rules"]] == [None, 1, 1]


def test_it_is_shown_without_a_database_which_is_not_made_by_looking(tmp_path: Path) -> None:
    small = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded")
    terminal = Terminal(small, check=False)
    assert len(terminal.data("rules", "tree")) == len(DEFAULTS)
    assert [one["name"] for one in terminal.data("exlets", "list")] == ["ladder", "unwind", "park"]
    assert len(terminal.data("rules", "facts")) == len(FACT_TYPES)
    assert terminal.data("rules", "history") == []
    assert "there is no database" in terminal.refused("exlets", "show", "nix")
    assert not (tmp_path / "aft.db").exists()
    small.close()


def test_a_tree_tells_of_each_rule_who_made_it_and_for_which_case(taught: Terminal) -> None:
    gone, locked = fails(taught, "gone-1"), fails(taught, "locked-1")
    add(taught, gone, "fault.name == 'Gone'", "stand", "--note", "they paid")
    add(taught, locked, "activity.attempts > 0", "ladder")
    lines = taught.good("rules", "tree", *SEAT).stdout.splitlines()
    assert lines[0] == "hall_visit × fault × hall_seat  revision 2"
    assert lines[2] == "  1  if fault.name == 'Gone' → stand"
    assert lines[3].startswith("     they paid · ann, ")
    assert lines[3].endswith(f" · for fault {gone.id[-12:]}")
    assert lines[4] == "  2  else if activity.attempts > 0 → ladder"
    first, second = taught.data("rules", "tree", "hall_visit")[0]["rules"]
    assert (first["made_by"], first["fault"], first["note"]) == ("ann", gone.id, "they paid")
    assert second["cornerstone"]["fault.text"] == "somebody has the key"


def test_trees_are_chosen_by_what_they_are_for(taught: Terminal) -> None:
    gone = fails(taught, "gone-1")
    add(taught, gone, "true", "stand")
    add(taught, gone, "true", "stand", "--scope", "flow")
    assert len(taught.data("rules", "tree")) == 4
    assert [one["activity"] for one in taught.data("rules", "tree", "hall_visit")] == ["hall_seat", "*"]
    assert [one["activity"] for one in taught.data("rules", "tree", "hall_visit", "fault", "*")] == ["*"]
    assert "No rules are taught for nix" in taught.good("rules", "tree", "nix").stderr
    assert "is not one of 'fault'" in refusal(taught, "rules", "tree", "hall_visit", "nix", status=2)[0]
    assert "do not go together" in refusal(taught, "rules", "tree", "--toml", "--json", status=2)[0]


@pytest.mark.parametrize("branch", ["otherwise", "refined"])
def test_a_thousand_rules_stay_within_the_terminal(terminal: Terminal, branch: str) -> None:
    count = 1_000
    rules = [Node(n, f"run.priority < {n}", "park") for n in range(1, count + 1)]
    below = [replace(rule, refined=rule.id + 1) for rule in rules[:-1]]
    beside = [replace(rule, otherwise=rule.id + 1) for rule in rules[:-1]]
    nodes = {rule.id: rule for rule in [*(below if branch == "refined" else beside), rules[-1]]}
    terminal.app.rules.save_all([Tree("long", RuleType.FAULT, "*", 0, nodes, 1)], [])
    lines = terminal.good("rules", "tree", "long").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if "→" in line] == [str(n) for n in range(1, count + 1)]
    if branch == "refined":
        assert "(refines 999)" in lines[-2]
    else:
        assert {len(line) - len(line.lstrip("0123456789 ")) for line in lines[2:] if "else" in line} == {8}


# Teaching -------------------------------------------------------------------------------------------------------


def test_a_rule_is_shown_previewed_asked_about_and_then_in_force(taught: Terminal) -> None:
    fault = fails(taught, "gone-1")
    typed = ("rules", "add", fault.id[-12:], "--if", "fault.name == 'Gone'", "--then", "stand")
    declined = refusal(taught, *typed, typed="n\n")
    assert declined[-1].endswith("aft: nothing was changed")
    assert "--yes" in refusal(taught, *typed, typed="")[-1]
    assert taught.data("rules", "history") == []
    told = taught.good(*typed, typed="y\n")
    assert "+ 1  if fault.name == 'Gone' → stand" in told.stdout
    assert "Would change 1 of 1 decision." in told.stdout
    assert "Rule 1 is in force, as revision 1" in told.stderr
    assert ended(taught, taught.app.submit(hall.visit, "gone-2")).result(60) == "stands"


def test_a_rule_for_a_run_is_one_for_its_latest_fault(taught: Terminal) -> None:
    run = taught.app.start(hall.visit, "gone-1")
    taught.good("rules", "add", run.id, "--if", "true", "--then", "stand", "--yes")
    (rule,) = taught.data("rules", "tree", *SEAT)[0]["rules"]
    assert rule["fault"] == fault_of(taught, run).id


def test_what_cannot_be_a_rule_is_refused_where_it_is_wrong(taught: Terminal) -> None:
    fault = fails(taught, "gone-1")

    def refused(condition: str, exlet: str = "stand", of: str = fault.id) -> list[str]:
        return refusal(taught, "rules", "add", of, "--if", condition, "--then", exlet, "--yes")

    first, source_line, caret, hint = refused("run.flow == 'x' && fault.nam == 'x'")
    assert first == "aft: line 1, column 20: nothing is named 'fault.nam'"
    assert source_line == "  run.flow == 'x' && fault.nam == 'x'"
    assert caret.index("^") == source_line.index("fault.nam")
    assert "fault.name" in hint
    assert "does not hold for the case" in refused("fault.name == 'Locked'")[0]
    assert "there is no exlet 'sit'" in refused("true", "sit")[0]
    assert "no fault, no refused message" in refused("true", of="123456789")[0]
    with taught.app.store.write() as connection:
        quarantine.add(connection, taught.app.namespace, [("queue", b"{", "not JSON")])
    (held,) = taught.data("faults", "list", "--quarantined")
    assert "is a refused message" in refused("true", of=held["id"])[0]
    assert taught.data("rules", "history") == []


def test_bugs_in_a_flow_have_no_rules(taught: Terminal) -> None:
    run = taught.app.start(hall.broken)
    typed = ("rules", "add", run.id, "--if", "true", "--then", "stand", "--yes")
    assert "the flow's own code" in refusal(taught, *typed)[0]
    assert "no rule is asked about that" in taught.good("rules", "explain", run.id).stdout
    assert taught.data("rules", "explain", run.id)["told"] == "never"


def test_the_case_of_another_rule_is_taken_over_only_if_that_is_accepted(taught: Terminal) -> None:
    first, second = fails(taught, "gone-1"), fails(taught, "gone-2")
    add(taught, first, "fault.name == 'Gone'", "stand")
    typed = ("rules", "add", second.id, "--if", "activity.attempts > 0", "--then", "give_up", "--yes")
    result = taught.call(*typed)
    assert result.exit_code == 1
    assert f"1  fault.name == 'Gone' → stand, made for fault {first.id[-12:]}" in result.stdout
    assert "add --accept" in result.stderr
    told = taught.good(*typed, "--accept").stdout
    assert "+ 2    but if activity.attempts > 0 → give_up" in told


def test_who_teaches_second_is_told(taught: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = fails(taught, "gone-1")
    other = taught.app.rules.propose(fault.id, "fault.text != ''", "give_up", by="bob")
    meanwhile(monkeypatch, lambda: taught.app.rules.add(other))
    lines = refusal(taught, "rules", "add", fault.id, "--if", "true", "--then", "stand")
    assert "has changed since you looked at revision 0: revision 1 by bob" in lines[-1]
    assert [rule["exlet"] for rule in taught.data("rules", "tree", *SEAT)[0]["rules"]] == ["give_up"]


def test_it_is_said_if_a_more_special_tree_answers_before(taught: Terminal) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "true", "stand")
    told = add(taught, fault, "true", "give_up", "--scope", "all")
    assert "another rule answers first for this fault: rule 1 of hall_visit × fault × hall_seat" in told
    assert "Would change 0 of 1 decision." in told


def test_the_way_to_a_rule_after_a_thousand_is_cut(terminal: Terminal) -> None:
    nodes = {n: Node(n, f"run.priority == {n}", "park", otherwise=n + 1 if n < 1000 else None) for n in range(1, 1001)}
    terminal.app.rules.save_all([Tree(*KEY, 0, nodes, 1)], [])
    told = add(terminal, fails(terminal, "gone-1"), "true", "park")
    assert "995 rules before" in told
    assert "+ 1001  else if true → park" in told


def test_a_preview_counts_what_would_be_decided_otherwise_and_saves_nothing(taught: Terminal) -> None:
    gone = [fails(taught, f"gone-{n}") for n in range(3)]
    fails(taught, "locked-1")
    typed = ("rules", "preview", gone[0].id, "--if", "fault.name == 'Gone'", "--then", "stand")
    lines = taught.good(*typed).stdout.splitlines()
    assert "Would change 3 of 4 decisions." in lines
    (row,) = [line.split() for line in lines if line.startswith(gone[1].id[-12:])]
    assert row[-2:] == ["unwind", "stand"]
    found = taught.data(*typed, "--limit", "2")
    assert (found["preview"]["examined"], len(found["preview"]["changes"])) == (2, 1)
    assert found["tree"] == {"flow": "hall_visit", "on": "fault", "activity": "hall_seat", "revision": 0}
    assert (found["rule"]["number"], found["conflicts"]) == (1, [])
    assert taught.data("rules", "history") == []


def test_a_fault_of_a_rule_type_that_there_is_not_is_named_and_left_out_of_a_preview(taught: Terminal) -> None:
    sound, spoilt = (fails(taught, f"gone-{n}") for n in range(2))
    with taught.app.store.write() as connection:
        connection.execute(
            update(faults).where(faults.c.id == spoilt.id).values(rule_type="of tomorrow", decision=None)
        )
    rule = ("--if", "fault.name == 'Gone'", "--then", "stand")
    assert len(taught.data("rules", "preview", sound.id, *rule)["preview"]["changes"]) == 1
    for command in (("rules", "explain", spoilt.id), ("rules", "preview", spoilt.id, *rule)):
        assert "'of tomorrow', which this version of aft does not know" in taught.refused(*command)


def test_a_constraint_is_previewed_with_what_was_known_when_it_was_asked(taught: Terminal) -> None:
    rule = Tree("hall_visit", RuleType.ACTIVITY_PRE, "hall_seat", 0, {1: Node(1, "run.priority == 0", "stand")}, 1)
    taught.app.rules.save_all([rule], [])
    run = ended(taught, taught.app.submit(hall.visit, "free"))
    fault = fault_of(taught, run)
    found = taught.data("rules", "preview", fault.id, "--if", "activity.args.order == 'free'", "--then", "give_up")
    assert found["preview"]["changes"][0]["before"] == "stand"
    # There is no fault yet when a constraint is asked.
    assert taught.data("rules", "test", fault.id, "--if", "fault.name == ''")["holds"] is True
    assert "constraint before it: run.priority == 0" in taught.good("runs", "show", run.id).stdout


def test_a_condition_is_tried_on_a_fault(terminal: Terminal) -> None:
    fault = fails(terminal, "gone-1")
    told = terminal.good("rules", "test", fault.id, "--if", "fault.name == 'Gone' && activity.attempts == 1").stdout
    assert told.startswith(f"It holds for fault {fault.id[-12:]}, hall_seat: Gone: no gone-1 is left")
    assert [line.split() for line in told.splitlines()[3:]] == [["activity.attempts", "1"], ["fault.name", '"Gone"']]
    assert "It does not hold" in terminal.good("rules", "test", fault.id, "--if", "fault.status > 400").stdout
    missing = terminal.good("rules", "test", fault.id, "--if", "run.tags.gold == 1")
    assert "It could not be asked: there is no key" in missing.stderr
    found = terminal.data("rules", "test", fault.id, "--if", "fault.status > 400")
    assert (found["holds"], found["warning"], found["facts"]) == (False, None, {"fault.status": 0})
    assert "not true or false" in refusal(terminal, "rules", "test", fault.id, "--if", "fault.name")[0]


def test_every_fact_has_a_meaning_and_sources_are_listed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(MEANINGS) == set(FACT_TYPES)
    lines = terminal.good("rules", "facts").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["run.tags", "map", "its", "tags,", "by", "name"] in [line.split() for line in lines]
    monkeypatch.setattr(sources, "declared", {})
    fault = fails(terminal, "gone-1")
    assert "source.mood" in refusal(terminal, "rules", "test", fault.id, "--if", "source.mood > 3")[0]
    source(default=0, name="mood")(_mood)
    assert terminal.data("rules", "facts")[-1] == {
        "name": "source.mood",
        "type": "int",
        "meaning": "declared with @aft.source",
    }
    assert terminal.data("rules", "test", fault.id, "--if", "source.mood > 3")["facts"] == {"source.mood": 7}


def _mood() -> int:
    return 7


# Why ------------------------------------------------------------------------------------------------------------


def test_a_decision_is_explained_rule_by_rule(taught: Terminal) -> None:
    first = fails(taught, "gone-1")
    add(taught, first, "run.tags.gold == true || fault.name == 'Gone'", "stand")
    add(taught, first, "fault.text.contains('one-2')" + " || fault.text.contains('one-1')", "give_up", "--accept")
    run = ended(taught, taught.app.submit(hall.visit, "gone-3"))
    taught.good("rules", "undo", *SEAT, "--to", "0")  # told is the tree as it was then
    lines = taught.good("rules", "explain", run.id).stdout.splitlines()
    assert "hall_visit × fault × hall_seat  revision 2" in lines
    assert "  1  held                run.tags.gold == true || fault.name == 'Gone' → stand" in lines
    assert any(line.startswith("  2  did not hold          fault.text.contains(") for line in lines)
    assert "→ stand, by rule 1: the last one that held" in lines
    assert ["fault.name", '"Gone"'] in [line.split() for line in lines]
    assert "step       it has failed for good, and the flow goes on with aft.FAILED" in lines
    found = taught.data("rules", "explain", run.id)
    assert (found["told"], found["exlet"], found["rule"], found["on"]) == ("decided", "stand", 1, "fault")
    assert [(rule["number"], rule["held"]) for rule in found["asked"][0]["rules"]] == [(1, True), (2, False)]


def test_what_could_not_be_asked_says_why(taught: Terminal) -> None:
    tree = Tree(*KEY, 0, {1: Node(1, "run.tags.gold == true", "give_up", otherwise=2), 2: Node(2, "true", "stand")}, 1)
    taught.app.rules.save_all([tree], [])
    run = ended(taught, taught.app.submit(hall.visit, "gone-1"))
    lines = taught.good("rules", "explain", run.id).stdout.splitlines()
    assert "  1  could not be asked  run.tags.gold == true" in lines
    assert any("there is no key" in line for line in lines)


def test_a_fault_that_nobody_taught_about_is_told_by_what_is_built_in(terminal: Terminal) -> None:
    run = ended(terminal, terminal.app.submit(hall.visit, "gone-1"))
    told = terminal.good("rules", "explain", run.id).stdout
    assert "No rules were taught about it" in told
    assert "  2  did not hold          fault.recoverable && !fault.exhausted" in told
    assert "→ unwind, by rule 1" in told
    assert "why        unrecoverable: 'hall_seat' declares Gone unrecoverable" in told
    assert terminal.data("rules", "explain", run.id)["told"] == "built_in"


def test_a_fault_that_nobody_has_decided_about_is_told_by_the_rules_as_they_are(taught: Terminal) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "true", "stand")
    told = taught.good("rules", "explain", fault.id).stdout
    assert "It is not decided yet" in told
    assert "→ stand, by rule 1" in told
    assert taught.data("rules", "explain", fault.id)["told"] == "now"


def test_a_long_way_is_folded_unless_all_of_it_is_wanted(terminal: Terminal) -> None:
    nodes = {n: Node(n, f"run.priority == {n}", "park", otherwise=n + 1) for n in range(1, 1000)}
    nodes[1000] = Node(1000, "true", "park")
    terminal.app.rules.save_all([Tree(*KEY, 0, nodes, 1)], [])
    fault = fails(terminal, "gone-1")
    folded = terminal.good("rules", "explain", fault.id).stdout
    assert "991 more did not hold; --all shows them" in folded
    assert len(folded.splitlines()) < 40
    assert len(terminal.good("rules", "explain", fault.id, "--all").stdout.splitlines()) > 1_000


# History --------------------------------------------------------------------------------------------------------


def test_changes_are_listed_and_undone(taught: Terminal) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "fault.name == 'Gone'", "stand", "--note", "they paid")
    add(taught, fault, "true", "give_up", "--accept")
    newest, oldest = taught.data("rules", "history", *SEAT)
    assert (newest["revision"], newest["what"], newest["note"]) == (2, "rule 2 added", None)
    assert (oldest["revision"], oldest["made_by"], oldest["note"]) == (1, "ann", "they paid")
    assert "rule 1 added: they paid" in taught.good("rules", "history").stdout
    undone = taught.good("rules", "undo", *SEAT)
    assert '  - then = "give_up"' in undone.stdout
    assert "as it was at revision 1; that is revision 3" in undone.stderr
    assert [rule["exlet"] for rule in taught.data("rules", "tree", *SEAT)[0]["rules"]] == ["stand"]
    taught.good("rules", "undo", *SEAT, "--to", "2")
    assert len(taught.data("rules", "tree", *SEAT)[0]["rules"]) == 2
    assert (
        "  no rules"
        in (taught.good("rules", "undo", *SEAT, "--to", "0"), taught.good("rules", "tree", *SEAT))[1].stdout
    )


def test_what_cannot_be_undone_says_so(taught: Terminal) -> None:
    assert "was never changed" in taught.refused("rules", "undo", *SEAT)
    add(taught, fails(taught, "gone-1"), "true", "stand")
    assert "has no revision 7" in taught.refused("rules", "undo", *SEAT, "--to", "7")
    assert "is at revision 1 already" in taught.refused("rules", "undo", *SEAT, "--to", "1")
    assert "which activity?" in taught.refused("rules", "undo", "hall_visit", "fault", status=2)
    assert "leave 'x' out" in taught.refused("rules", "undo", "hall_visit", "run_pre", "x", status=2)
    assert "which tree?" in taught.refused("rules", "history", "hall_visit", status=2)
    assert "Nobody has changed hall_visit × run_pre" in taught.good("rules", "history", "hall_visit", "run_pre").stderr


def test_a_damaged_tree_is_named_and_can_be_undone(taught: Terminal) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "fault.name == 'Gone'", "stand")
    add(taught, fault, "true", "give_up", "--accept")
    with taught.app.store.write() as connection:
        connection.execute(update(rule_trees).where(rule_trees.c.revision == 2).values(tree='{"nodes": 1}'))
    assert "revision 2 of hall_visit × fault × hall_seat cannot be read" in taught.good("rules", "tree").stderr
    assert taught.data("rules", "history")[0]["what"] == "it cannot be read"
    assert "as it was at revision 1" in taught.good("rules", "undo", *SEAT).stderr
    assert len(taught.data("rules", "tree", *SEAT)[0]["rules"]) == 1


def test_a_damaged_exlet_is_named_and_can_be_added_anew(taught: Terminal, tmp_path: Path) -> None:
    with taught.app.store.write() as connection:
        connection.execute(update(exlets).where(exlets.c.name == "stand").values(exlet="{}"))
    assert "revision 1 of exlet 'stand' cannot be read" in taught.good("exlets", "list").stderr
    taught.good("exlets", "add", str(tmp_path / "exlets.toml"), "--yes")
    assert taught.data("exlets", "show", "stand")["revision"] == 2


# Files ----------------------------------------------------------------------------------------------------------


def written(terminal: Terminal, path: Path, *options: str) -> str:
    path.write_text(text := terminal.good("rules", "tree", "--toml", *options).stdout)
    return text


def test_what_is_written_is_in_force_already(taught: Terminal, tmp_path: Path) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "fault.name == 'Gone'", "stand", "--note", "they\npaid")
    add(taught, fault, "history.same_1h > 0", "give_up", "--accept")
    for options in ((), ("--cornerstones",)):
        text = written(taught, tmp_path / "rules.toml", *options)
        assert sorted(tomllib.loads(text)["exlet"]) == ["give_up", "stand"]
        assert ("cornerstone" in text) == bool(options)
        told = taught.good("rules", "apply", str(tmp_path / "rules.toml"))
        assert "hall_visit × fault × hall_seat  the same" in told.stdout
        assert "Everything is in force already" in told.stderr
    assert len(taught.data("rules", "history")) == 2
    assert "goes with --toml" in taught.refused("rules", "tree", "--cornerstones", status=2)


def test_files_are_applied_after_a_look_at_what_is_different(taught: Terminal, tmp_path: Path) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "fault.name == 'Gone'", "stand", "--note", "they paid")
    add(taught, fails(taught, "locked-1"), "true", "give_up")
    folder = tmp_path / "rules"
    folder.mkdir()
    text = written(taught, folder / "a.toml")
    (folder / "a.toml").write_text(text.replace('if = "true"', 'if = "activity.attempts > 7"').replace('"up"', '"in"'))
    (folder / "b.toml").write_text(
        '[exlet.calm]\nsteps = [{do = "complete"}]\n[[tree]]\nflow = "hall_visit"\non = "run_pre"\n'
        '[[tree.rules]]\nif = "run.age > 60"\nthen = "give_up"\n'
    )
    declined = taught.call("rules", "apply", str(folder), typed="n\n")
    assert declined.exit_code == 1
    lines = declined.stdout.splitlines()
    assert "exlet stand  the same" in lines
    assert "exlet calm  new" in lines
    assert '  -     {do = "set", tags = {gave = "up"}},' in lines
    assert "hall_visit × fault × hall_seat  changed, revision 3" in lines
    assert [line for line in lines if line.startswith(("  - if", "  + if"))] == [
        '  - if = "true"',
        '  + if = "activity.attempts > 7"',
    ]
    assert "  Would change 1 of 2 decisions." in lines
    assert "hall_visit × run_pre  new" in lines
    assert len(taught.data("rules", "history")) == 2
    done = taught.good("rules", "apply", str(folder), typed="y\n")
    assert "In force: 2 trees and 2 exlets" in done.stderr
    first, second = taught.data("rules", "tree", *SEAT)[0]["rules"]
    assert (first["fault"], first["note"], first["made_by"]) == (fault.id, "they paid", "ann")
    assert first["cornerstone"]["fault.name"] == "Gone"
    assert (second["number"], second["condition"], second["cornerstone"]) == (2, "activity.attempts > 7", None)
    assert taught.data("rules", "history")[0]["note"] == "applied rules"
    assert taught.data("exlets", "show", "give_up")["revision"] == 2


def test_rules_keep_their_cases_wherever_they_are_moved(taught: Terminal, tmp_path: Path) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "fault.name == 'Gone'", "stand")
    (tmp_path / "rules.toml").write_text(
        '[[tree]]\nflow = "hall_visit"\non = "fault"\nactivity = "hall_seat"\n'
        '[[tree.rules]]\nif = "run.priority > 5"\nthen = "give_up"\n'
        '[[tree.rules]]\nif = "fault.name == \'Gone\'"\nthen = "stand"\n'
    )
    taught.good("rules", "apply", str(tmp_path / "rules.toml"), "--yes")
    rules = taught.data("rules", "tree", *SEAT)[0]["rules"]
    assert [(rule["number"], rule["fault"]) for rule in rules] == [(2, None), (1, fault.id)]


def test_it_is_said_whose_case_gets_another_answer_by_a_file(taught: Terminal, tmp_path: Path) -> None:
    add(taught, fails(taught, "gone-1"), "fault.name == 'Gone'", "stand")
    text = written(taught, tmp_path / "rules.toml")
    (tmp_path / "rules.toml").write_text(text.replace('then = "stand"', 'then = "park"'))
    told = taught.good("rules", "apply", str(tmp_path / "rules.toml"), "--yes").stderr
    assert "cases that rule 1 of hall_visit × fault × hall_seat was made for get another answer" in told


def test_files_with_problems_change_nothing(taught: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    head = (
        '[exlet.new]\nsteps = [{do = "unwind"}]\n[[tree]]\nflow = "x"\non = "fault"\nactivity = "*"\n[[tree.rules]]\n'
    )

    def refused(text: str) -> list[str]:
        path.write_text(text)
        return refusal(taught, "rules", "apply", str(path), "--yes")

    assert "rules.toml: it is not TOML" in refused("[[tree")[0]
    both = refused('[exlet.a]\nsteps = []\n[[tree]]\nflow = "x"\non = "nix"\n')
    assert len(both) == 2
    assert "chooses exlet 'sit', which there is not" in refused(head + 'if = "true"\nthen = "sit"\n')[-1]
    lines = refused(head + 'if = "fault.nam == 1"\nthen = "new"\n')
    assert "rule 1 of x × fault × *: line 1, column 1" in lines[-4]
    assert lines[-2].index("^") == lines[-3].index("fault.nam")
    assert "No such file" in taught.refused("rules", "apply", str(tmp_path / "nix.toml"))
    assert "holds no file *.toml" in taught.refused("rules", "apply", str(_folder(tmp_path)))
    assert "new" not in [one["name"] for one in taught.data("exlets", "list")]
    assert taught.data("rules", "history") == []


def _folder(path: Path) -> Path:
    (made := path / "empty").mkdir()
    return made


def test_who_applies_second_is_told_and_nothing_is_changed_by_half(
    taught: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = fails(taught, "gone-1")
    add(taught, fault, "fault.name == 'Gone'", "stand")
    text = written(taught, tmp_path / "rules.toml")
    (tmp_path / "rules.toml").write_text(
        text.replace('then = "stand"', 'then = "calm"') + '\n[exlet.calm]\nsteps = [{do = "complete"}]\n'
    )
    meanwhile(monkeypatch, lambda: taught.app.rules.undo(KEY, 0, by="bob"))
    lines = refusal(taught, "rules", "apply", str(tmp_path / "rules.toml"))
    assert "has changed since you looked at revision 1: revision 2 by bob" in lines[-1]
    assert "calm" not in [one["name"] for one in taught.data("exlets", "list")]


def test_an_exlet_that_somebody_else_changed_meanwhile_is_not_overwritten(
    taught: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more.toml").write_text('[exlet.stand]\nsteps = [{do = "unwind"}]\n')
    meanwhile(monkeypatch, lambda: taught.app.rules.add_exlet(aft.Exlet("stand", [aft.do.park("wait")]), by="bob"))
    lines = refusal(taught, "exlets", "add", str(tmp_path / "more.toml"))
    assert "exlet 'stand' has changed since you looked at revision 1: revision 2 by bob" in lines[-1]


# Exlets ---------------------------------------------------------------------------------------------------------


def test_exlets_are_listed_shown_and_added(terminal: Terminal, tmp_path: Path) -> None:
    assert "These are built in" in terminal.good("exlets", "list").stderr
    path = tmp_path / "exlets.toml"
    path.write_text(EXLETS)
    added = terminal.good("exlets", "add", str(path), "--note", "first")
    assert "  1  fail and proceed with 'no seat'" in added.stdout
    assert "In force: 2 exlets" in added.stderr
    add(terminal, fails(terminal, "gone-1"), "fault.name == 'Gone'", "stand")
    lines = terminal.good("exlets", "list").stdout.splitlines()
    assert lines[0] == "give_up  set tags.gave; unwind"
    assert lines[3].strip() == "Let them stand. · chosen by 1 rule"
    shown = terminal.good("exlets", "show", "stand").stdout
    assert tomllib.loads(shown)["exlet"]["stand"]["about"] == "Let them stand."
    assert "# revision 1 by ann, " in shown
    assert "# chosen by rule 1 of hall_visit × fault × hall_seat: fault.name == 'Gone'" in shown
    found = terminal.data("exlets", "show", "stand")
    assert (found["revision"], found["history"][0]["note"], found["built_in"]) == (1, "first", False)
    assert found["chosen_by"] == [{"flow": "hall_visit", "on": "fault", "activity": "hall_seat", "rule": 1}]
    assert "there is no exlet 'nix'; there are give_up" in terminal.refused("exlets", "show", "nix")


def test_an_exlet_that_is_there_is_changed_only_after_a_look(taught: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "more.toml"
    path.write_text(EXLETS.replace("no seat", "no chair"))
    declined = taught.call("exlets", "add", str(path), typed="n\n")
    assert declined.exit_code == 1
    assert "exlet give_up  the same" in declined.stdout
    assert '  +     {do = "fail", message = "no chair", proceed = true},' in declined.stdout
    assert "In force: 1 exlet;" in taught.good("exlets", "add", str(path), "--yes").stderr
    assert taught.data("exlets", "show", "stand")["revision"] == 2
    assert "Everything is in force already" in taught.good("exlets", "add", str(path)).stderr


def test_files_that_are_no_exlets_are_refused(taught: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "more.toml"
    problems = {
        '[exlet.park]\nsteps = [{do = "unwind"}]\n': "is built in",
        '[exlet.a]\nsteps = [{do = "suspend", target = "run"}]\n': "would stay suspended",
        '[exlet.a]\nsteps = [{do = "retri"}]\n': "retry",
        '[[tree]]\nflow = "x"\non = "fault"\nactivity = "*"\n': "aft rules apply",
        "": "holds no exlet",
    }
    for text, told in problems.items():
        path.write_text(text)
        assert told in taught.refused("exlets", "add", str(path))


def test_an_exlet_cannot_become_what_its_rules_cannot_use(taught: Terminal, tmp_path: Path) -> None:
    tree = Tree("hall_visit", RuleType.RUN_PRE, "", 0, {1: Node(1, "true", "give_up")}, 1)
    taught.app.rules.save_all([tree], [])
    (tmp_path / "more.toml").write_text('[exlet.give_up]\nsteps = [{do = "restart"}]\n')
    lines = refusal(taught, "exlets", "add", str(tmp_path / "more.toml"), "--yes")
    assert "rule 1 of hall_visit × run_pre chooses it" in lines[-1]


# Faults and runs ------------------------------------------------------------------------------------------------


def test_a_fault_that_is_being_handled_says_by_which_rule_and_how_far(taught: Terminal) -> None:
    run = taught.app.start(hall.visit, "gone-1")
    fault = fault_of(taught, run)
    asked = AskedTree("hall_visit", "hall_seat", 3, [(1, True, None)])
    decision = RuleChoice("fault", "give_up", 1, "fault.name == 'Gone'", [asked], {"fault.name": "Gone"}, [])
    with taught.app.store.write() as connection:
        plans.begin(connection, taught.app.namespace, run.id, fault.id, taught.app.rules.exlet("give_up"), {})
        handled = {"state": "handled", "decision": decision.encode(), "decided_at": now(), "traceback": ""}
        connection.execute(update(faults).where(faults.c.id == fault.id).values(handled))
    shown = taught.good("faults", "show", fault.id).stdout
    assert "rule         rule 1 of hall_visit × fault × hall_seat: fault.name == 'Gone'" in shown
    assert "exlet        give_up: 0 of 2 done, next: set tags.gave" in shown
    story = " ".join(taught.good("runs", "show", run.id).stdout.replace("│", "").split())
    assert "§ exlet give_up by rule 1 of hall_visit × fault × hall_seat; 0 of 2 done, next: set tags.gave" in story
    assert "exlet give_up: 0 of 2 done" in taught.good("runs", "list").stdout
    found = taught.data("faults", "show", fault.id)
    assert (found["decision"]["exlet"], found["plan"]["position"], found["plan"]["state"]) == ("give_up", 0, "open")
    assert [one["state"] for one in taught.data("faults", "list", "--state", "handled")] == ["handled"]


@pytest.mark.parametrize(
    ("exlet", "told"),
    [
        (aft.Exlet("e", [aft.do.fail("no", proceed=True)]), "↷ hall_seat #1  failed for good; the flow goes on with"),
        (aft.Exlet("e", [aft.do.remove("activity")]), "⌫ hall_seat #1  removed: its branch ends here"),
        (aft.Exlet("e", [aft.do.complete("x")]), '✓ hall_seat #1  "x"'),
    ],
)
def test_what_an_exlet_made_of_a_step_is_told(terminal: Terminal, exlet: aft.Exlet, told: str) -> None:
    tree = Tree("hall_group", RuleType.FAULT, "hall_seat", 0, {1: Node(1, "true", "e")}, 1)
    terminal.app.rules.save_all([tree], [exlet])
    run = ended(terminal, terminal.app.submit(hall.group, "gone-1"))
    story = terminal.good("runs", "show", run.id).stdout
    assert told in story
    assert "side by side  2 of 2" in story
    assert "■ final" not in story
    assert "by rule 1 of hall_group × fault × hall_seat" in story


def test_a_run_whose_constraint_was_settled_tells_it(terminal: Terminal) -> None:
    tree = Tree("hall_visit", RuleType.RUN_PRE, "", 0, {1: Node(1, "run.tags.gold == true", "mark")}, 1)
    terminal.app.rules.save_all([tree], [aft.Exlet("mark", [aft.do.set(tags={"seen": 1})])])
    run = ended(terminal, terminal.app.submit(hall.visit.options(tags={"gold": True}), "free"))
    story = terminal.good("runs", "show", run.id).stdout
    assert "✗ hall_visit  constraint before it begins: run.tags.gold == true" in story
    assert "§ hall_visit  its constraint was decided; it goes on" in story
    assert "tags gold=true, seen=1" in story
    assert terminal.data("runs", "show", run.id)["tags"] == {"gold": True, "seen": 1}


def test_a_wait_that_a_rule_chose_is_told(terminal: Terminal) -> None:
    tree = Tree(*KEY, 0, {1: Node(1, "activity.attempts == 1", "patient")}, 1)
    terminal.app.rules.save_all([tree], [aft.Exlet("patient", [aft.do.retry(after="20ms")])])
    story = terminal.good("runs", "show", ended(terminal, terminal.app.submit(hall.visit, "locked")).id).stdout
    assert "◷ by its rule: waits 20ms" in story


def test_a_run_is_started_with_tags(terminal: Terminal) -> None:
    target = "tests.acceptance.hall:visit"
    tags = ("--tag", "gold=true", "--tag", "seats=3", "--tag", "who=ann=bob", "--tag", "empty=")
    run = terminal.good("runs", "start", target, "free", *tags).stdout.strip()
    expected = {"gold": True, "seats": 3, "who": "ann=bob", "empty": ""}
    assert terminal.data("runs", "show", run)["tags"] == expected
    assert json.loads(json.dumps(expected)) == terminal.app.run(run).row.tags
    assert "write --tag NAME=VALUE" in terminal.refused("runs", "start", target, "free", "--tag", "gold")
    assert "given twice" in terminal.refused("runs", "start", target, "x", "--tag", "a=1", "--tag", "a=2")


# Health ---------------------------------------------------------------------------------------------------------


def test_the_doctor_tells_of_notices_that_nobody_hears_and_of_exlets_that_are_stuck(terminal: Terminal) -> None:
    fault = fails(terminal, "gone-1")
    healthy = terminal.call("doctor").stdout
    assert "notice" not in healthy
    assert "exlet" not in healthy
    exlet = aft.Exlet("stand", [aft.do.notify("http://127.0.0.1:9/"), aft.do.retry()])
    with terminal.app.store.write() as connection:
        for url in ("http://127.0.0.1:9/a", "http://127.0.0.1:9/b"):
            notices.put(connection, terminal.app.namespace, fault.run_id, url, {})
        states = iter(({"attempts": 1}, {"attempts": 9, "state": "given_up"}))
        for one in notices.of_run(connection, fault.run_id):
            connection.execute(update(tables.notices).where(tables.notices.c.id == one.id).values(**next(states)))
        plan = plans.begin(connection, terminal.app.namespace, fault.run_id, fault.id, exlet, {})
        long_ago = fault.raised_at - timedelta(hours=1)
        connection.execute(update(tables.plans).where(tables.plans.c.id == plan).values(due_at=long_ago))
    told = terminal.call("doctor").stdout
    assert "1 notice not acknowledged yet, 1 given up" in told
    assert "1 exlet stuck, the oldest for 1h" in told
    assert '"notices_given_up": 1' in terminal.call("doctor", "--json").stdout
