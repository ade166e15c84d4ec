"""Reads exlets and rules from TOML, one file or all of a directory; problems are reported together.

::

    [exlet.change_to_mid_venue]
    about = "Move to a smaller hall."
    steps = [
        {do = "suspend", target = "activity"},
        {do = "set", args = {venue = "mid"}},
        {do = "continue", target = "activity"},
    ]

    [[tree]]
    flow = "organise_concert"
    on = "activity_pre"
    activity = "do_show"

    [[tree.rules]]
    id = "under 75%"
    if = "activity.args.sold < activity.args.seats * 3 / 4"
    then = "change_to_mid_venue"

    [[tree.rules]]
    refines = "under 75%"
    if = "activity.args.sold < activity.args.seats / 2"
    then = "change_to_small_venue"

Rules are a list, not tables in tables: those that refine the same rule (or none) are asked from top to bottom, each as
the alternative of the one before. That is the whole tree, and no rule moves when another is added.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aft.errors import RuleRefused
from aft.rules.exlets import exlet as exlets
from aft.rules.exlets import validate
from aft.rules.exlets.exlet import Exlet
from aft.rules.rule_types import RUN_LEVEL, RuleType
from aft.rules.toml.documents import RuleDocument, RuleText, TreeText
from aft.rules.toml.write import NONE, write
from aft.texts import find_choice, format_value

__all__ = ["RuleDocument", "RuleText", "TreeText", "read_document", "read_text", "write"]

#: Bytes of one file.
MOST_BYTES = 16_777_216
#: Problems that are reported at once.
MOST_TOLD = 20
#: Characters of a condition, or of a note: the condition itself is checked where it is compiled.
MOST_TEXT = 10_000
#: Tables and lists in one another.
MOST_DEPTH = 64

_TREE_KEYS = ("flow", "on", "activity", "rules")
_RULE_KEYS = ("id", "refines", "if", "then", "note", "cornerstone")
_NO_SOURCES: Mapping[str, str] = MappingProxyType({})


def read_document(path: Path, sources: Mapping[str, str] = _NO_SOURCES) -> RuleDocument:
    """Read a file, or all ``*.toml`` of a directory in the order of their names; raises RuleRefused.

    ``sources`` are the types of the sources that users have registered, for what exlets compute.
    """
    reader = _Reader(sources)
    for file in _find(path):
        with reader.within(file.name):
            reader.take(_load(file), file.name)
    return reader.done()


def read_text(text: str, name: str = "text", sources: Mapping[str, str] = _NO_SOURCES) -> RuleDocument:
    """Read the content of a file; ``name`` names it in problems. Raises RuleRefused."""
    reader = _Reader(sources)
    with reader.within(name):
        reader.take(_parse(text), name)
    return reader.done()


def _find(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        found = sorted((one for one in path.iterdir() if one.suffix == ".toml"), key=lambda one: one.name)
    except OSError as error:
        raise RuleRefused(f"{path} cannot be read: {error.strerror or error}") from None
    if not found:
        raise RuleRefused(f"{path} holds no file *.toml")
    return found


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            found = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise RuleRefused(f"it cannot be read: {error.strerror or error}") from None
    if len(found) > MOST_BYTES:
        raise RuleRefused(f"it has more than {MOST_BYTES} bytes; make several files of it")
    try:
        return _parse(found.decode("utf-8-sig"))  # some editors mark the beginning
    except UnicodeDecodeError as error:
        raise RuleRefused(f"it is not UTF-8: byte {error.start} is none") from None


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise RuleRefused("it is nested too deeply") from None
    except ValueError as error:
        raise RuleRefused(f"it is not TOML: {error}") from None


@dataclass
class _Reader:
    """Collects the content of files, and the problems in them."""

    sources: Mapping[str, str]
    exlets: dict[str, tuple[Exlet, str]] = field(default_factory=dict)
    trees: dict[tuple[str, str, str], tuple[TreeText, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def within(self, where: str) -> Iterator[None]:
        """Record a refusal in this block as a problem, and continue after it."""
        try:
            yield
        except RuleRefused as refused:
            self.problems.append(f"{where}: {refused}")

    def done(self) -> RuleDocument:
        """Return what was read; raises RuleRefused with all problems if there are any."""
        if self.problems:
            more = len(self.problems) - MOST_TOLD
            raise RuleRefused("\n".join([*self.problems[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])]))
        return RuleDocument(tuple(one for one, _ in self.exlets.values()), tuple(one for one, _ in self.trees.values()))

    def take(self, found: dict[str, Any], file: str) -> None:
        """Read the content of one file."""
        self._unknown(found, ("exlet", "tree"), file, "a key of such a file")
        for name, value in validate.table(found.get("exlet", {}), "exlet").items():
            with self.within(file):
                self._take_exlet(name, value, file)
        for number, value in enumerate(_tables(found.get("tree", []), "tree"), start=1):
            with self.within(file):
                self._take_tree(number, value, file)

    def _unknown(self, found: Mapping[str, Any], known: Iterable[str], where: str, what: str) -> None:
        names = list(known)
        for key in found:
            if key not in names:
                self.problems.append(f"{where}: {key!r} is not {what}; {validate.hint(key, names)}")

    def _take_exlet(self, name: str, value: Any, file: str) -> None:
        where = f"exlet {name!r}"
        exlet = exlets.read_exlet(name, validate.table(_to_json(value, where), where))
        exlets.check(exlet, self.sources)
        if name in self.exlets:
            raise RuleRefused(f"{where} is in {self.exlets[name][1]} as well; keep one of them")
        self.exlets[name] = exlet, file

    def _take_tree(self, number: int, value: Any, file: str) -> None:
        where = f"tree {number}"
        found = validate.table(value, where)
        self._unknown(found, _TREE_KEYS, f"{file}: {where}", "a key of a tree")
        flow = validate.name(found.get("flow"), f"the flow of {where}")
        on = _read_on(found.get("on"), where)
        tree = TreeText(flow, on, _read_activity(found.get("activity", ""), on, where))
        where = f"{where} ({tree})"
        if tree.key in self.trees:
            raise RuleRefused(f"{where} is in {self.trees[tree.key][1]} as well; keep one of them")
        self.trees[tree.key] = tree, file
        known_problems = len(self.problems)
        rules = self._read_rules(_tables(found.get("rules", []), f"{where}: rules"), f"{file}: {where}")
        if len(self.problems) == known_problems:
            self.trees[tree.key] = TreeText.of(flow, on, tree.activity, _link(rules), 0 if rules else None), file

    def _read_rules(self, tables: list[Any], where: str) -> list[tuple[RuleText, int | None]]:
        """Return the rules of one tree, each with the position of the one that it refines."""
        rules: list[tuple[RuleText, int | None]] = []
        named: dict[str, int] = {}
        for number, value in enumerate(tables):
            with self.within(f"{where}, rule {number + 1}"):
                found = validate.table(value, "it")
                self._unknown(found, _RULE_KEYS, f"{where}, rule {number + 1}", "a key of a rule")
                parent = _find_parent(found.get("refines"), named)
                _claim(found.get("id"), number, named)
                rules.append((_read_rule(found), parent))
        return rules


def _link(rules: list[tuple[RuleText, int | None]]) -> dict[int, RuleText]:
    """Link the list into a tree: of the rules that refine the same one, each is the alternative of the one before."""
    linked = {number: rule for number, (rule, _) in enumerate(rules)}
    before: dict[int | None, int] = {}
    for number, (_, parent) in enumerate(rules):
        if (last := before.get(parent)) is not None:
            linked[last] = replace(linked[last], otherwise=number)
        elif parent is not None:
            linked[parent] = replace(linked[parent], refined=number)
        before[parent] = number
    return linked


def _find_parent(refines: Any, named: Mapping[str, int]) -> int | None:
    if refines is None:
        return None
    label = _label(refines, "refines")
    if label not in named:
        raise RuleRefused(f"it refines {label!r}, but no rule before it has that id; {validate.hint(label, named)}")
    return named[label]


def _claim(label: Any, number: int, named: dict[str, int]) -> None:
    if label is None:
        return
    found = _label(label, "id")
    if found in named:
        raise RuleRefused(f"rule {named[found] + 1} has the id {found!r} as well; choose another")
    named[found] = number


def _label(value: Any, where: str) -> str:
    return str(value) if type(value) is int else validate.text(value, where, most=validate.MOST_NAME)


def _read_rule(found: dict[str, Any]) -> RuleText:
    for key in ("if", "then"):
        if key not in found:
            raise RuleRefused(f"{key!r} is missing; a rule needs 'if' and 'then'")
    cornerstone = found.get("cornerstone")
    if cornerstone is not None:
        cornerstone = validate.table(_to_json(cornerstone, "cornerstone"), "cornerstone")
    return RuleText(
        validate.text(found["if"], "if", most=MOST_TEXT),
        validate.name(found["then"], "the exlet in 'then'"),
        validate.text(found.get("note", ""), "note", most=MOST_TEXT, empty=True),
        cornerstone,
        id="" if found.get("id") is None else str(found["id"]),
    )


def _read_on(value: Any, where: str) -> RuleType:
    if value is None:
        raise RuleRefused(f"{where}: 'on' is missing; there are {', '.join(map(repr, map(str, RuleType)))}")
    if (found := find_choice(value, RuleType)) is None:
        hint = validate.hint(value, [one.value for one in RuleType])
        raise RuleRefused(f"{where}: on = {format_value(value)} is not a rule type; {hint}")
    return found


def _read_activity(value: Any, on: RuleType, where: str) -> str:
    if on in RUN_LEVEL:
        if value != "":
            raise RuleRefused(f"{where}: on = {on.value!r} is about a run as a whole; leave 'activity' out")
        return ""
    if value == "":
        raise RuleRefused(f"{where}: 'activity' is missing; write its name, or '*' for all")
    return validate.name(value, f"the activity of {where}")


def _tables(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise RuleRefused(f"{where} must be a list; write [[{'tree.rules' if 'rules' in where else 'tree'}]]")
    return value


def _to_json(value: Any, where: str, depth: int = 0) -> Any:
    """Convert what TOML writes differently from JSON."""
    if isinstance(value, datetime | date | time):
        raise RuleRefused(
            f"{where} is a date or a time, which is a text in exlets and facts; write it as one: '{value.isoformat()}'"
        )
    if not isinstance(value, dict | list):
        return value
    if depth > MOST_DEPTH:
        raise RuleRefused(f"{where[:60]}… is nested more than {MOST_DEPTH} deep")
    if isinstance(value, list):
        return [_to_json(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
    if value == NONE:
        return None
    return {name: _to_json(item, f"{where}.{name}", depth + 1) for name, item in value.items()}
