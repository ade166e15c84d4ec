"""What depends on a member of an enum has an answer for each of them: a new member shows here, or to mypy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "aft"
FILES = sorted(PACKAGE.rglob("*.py"))
#: Dicts that leave members out on purpose: where the rest is asked for with ``get`` or ``in``, or cannot come.
PARTIAL = {
    ("cli/show/sentences.py", "StoryEventKind"),
    ("app/views/timeline.py", "Outcome"),
    ("app/views/timeline.py", "RuleType"),
    ("cli/commands/runs/signal.py", "Status"),
    ("flows/orders/apply.py", "InboxVerb"),
    ("flows/orders/rulings.py", "RulingAction"),
    ("flows/steps/run_constraints.py", "RuleType"),
    ("rules/trees/defaults.py", "RuleType"),
    ("rules/cases/facts.py", "FactType"),
}


def enums() -> dict[str, list[set[str]]]:
    """The members of each enum, by its name; several classes may share one."""
    found: dict[str, list[set[str]]] = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in ("Enum", "StrEnum") for base in node.bases):
                assigned = [one for one in node.body if isinstance(one, ast.Assign)]
                members = {target.id for one in assigned for target in one.targets if isinstance(target, ast.Name)}
                found.setdefault(node.name, []).append(members)
    return found


ENUMS = enums()


def member(node: ast.expr | None) -> tuple[str, str] | None:
    known = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ENUMS
    return (node.value.id, node.attr) if known else None  # type: ignore[union-attr]


def incomplete_dicts(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Dict):
            continue
        keys = [key for key in map(member, node.keys) if key is not None]
        if not keys or len(keys) < len(node.keys):
            continue
        enum, has = keys[0][0], {name for _, name in keys}
        if (file.relative_to(PACKAGE).as_posix(), enum) not in PARTIAL and has not in ENUMS[enum]:
            yield f"line {node.lineno}: {enum} has more members than {sorted(has)}"


def alternatives(pattern: ast.pattern) -> list[ast.pattern]:
    return pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]


def open_matches(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Match):
            continue
        patterns = [
            part for case in node.cases for part in alternatives(case.pattern) if isinstance(part, ast.MatchValue)
        ]
        if any(member(part.value) for part in patterns) and "assert_never" not in ast.unparse(node.cases[-1]):
            yield f"line {node.lineno}: its last case is not `case _: assert_never(…)`"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_what_depends_on_an_enum_is_complete(file: Path) -> None:
    assert not [*incomplete_dicts(file), *open_matches(file)]


def test_there_are_enums_to_look_at() -> None:
    assert len(ENUMS) > 20
