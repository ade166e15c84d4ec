"""Rules that hold in every file of aft, read from its syntax: what is called, what is imported, how long it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "aft").rglob("*.py"))

#: Lines after which a file is asked whether two ideas live there.
MOST_LINES = 400
#: Lines that a function may have, and a class.
MOST_OF_FUNCTION, MOST_OF_CLASS = 40, 250
#: Long because it is a list: tables. Migrations are, too.
LISTS = {"aft/store/tables.py"}

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""


def called(tree: ast.AST) -> Iterator[str]:
    """The name of every plain function, and of every function of a module, that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = node.func.value
            yield f"{base.id}.{node.func.attr}" if isinstance(base, ast.Name) else node.func.attr


def importers(package: str) -> list[str]:
    return [
        name_of(path)
        for path in FILES
        if any(module.partition(".")[0] == package for module in imported(tree_of(path)))
    ]


each_file = pytest.mark.parametrize("path", FILES, ids=name_of)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 50


@each_file
def test_nothing_is_pickled_evaluated_or_executed(path: Path) -> None:
    tree = tree_of(path)
    assert {module.partition(".")[0] for module in imported(tree)}.isdisjoint(FORBIDDEN_MODULES)
    assert set(called(tree)).isdisjoint(FORBIDDEN_CALLS)
    assert set(called(tree)).isdisjoint({"yaml.load", "yaml.unsafe_load", "builtins.eval", "builtins.exec"})


def test_only_the_rabbitmq_broker_imports_pika() -> None:
    found = importers("pika")
    assert found
    assert [name for name in found if not name.startswith("aft/brokers/rabbitmq")] == []


def test_only_the_command_line_imports_click() -> None:
    assert [name for name in importers("click") if not name.startswith("aft/cli/")] == []


def test_flows_and_dispatcher_do_not_know_each_other() -> None:
    pairs = [(name_of(path), module) for path in FILES for module in imported(tree_of(path))]
    assert [pair for pair in pairs if pair[0].startswith("aft/flows/") and pair[1].startswith("aft.dispatcher")] == []
    assert [pair for pair in pairs if pair[0].startswith("aft/dispatcher/") and pair[1].startswith("aft.flows")] == []


@each_file
def test_every_module_says_what_it_is_for(path: Path) -> None:
    if path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(tree_of(path))


@each_file
def test_a_file_holds_one_idea(path: Path) -> None:
    if name_of(path) not in LISTS and "/migrations/" not in name_of(path):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@each_file
def test_functions_and_classes_are_short(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        most = MOST_OF_CLASS if isinstance(node, ast.ClassDef) else MOST_OF_FUNCTION
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            assert (node.end_lineno or 0) - node.lineno < most, node.name


@each_file
def test_no_module_is_a_drawer_for_everything(path: Path) -> None:
    assert not {"utils", "util", "helpers", "common", "misc", "manager"} & {path.stem, path.parent.name}


@each_file
def test_time_is_asked_of_a_clock(path: Path) -> None:
    """Reading the wall clock is the clock's; ids, plain functions outside a run, and faces may ask it too."""
    allowed = {"aft/clock.py", "aft/ids.py", "aft/flows/declare/context.py"}
    if name_of(path) not in allowed and not name_of(path).startswith(("aft/cli/", "aft/scenarios/")):
        assert set(called(tree_of(path))).isdisjoint({"datetime.now", "datetime.utcnow", "time.time", "time.time_ns"})


def test_a_class_name_means_one_thing() -> None:
    """Private classes of a module may share a name: nobody else meets them."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
