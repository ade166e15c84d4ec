"""Writes exlets and rules as TOML, for version control; ``rules.toml.read`` reads it again.

The same document always gives the same text. Rules stand in the order in which they are asked, one block each: adding a
rule adds lines and changes no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from aft.codec.tags import MARK
from aft.rules.exlets.exlet import Exlet
from aft.rules.toml.documents import RuleDocument, RuleText, TreeText

#: TOML has no null: this table stands for it.
NONE = {MARK: "none"}

_HOW = """\
# Rules are asked from top to bottom until one holds. Then those that refine it are asked, in the same way:
# the last one that held says what is done. A rule that refines none is asked if none before it held.
"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROL_OR_QUOTE = re.compile(r'[\x00-\x1f\x7f"\\]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def write(sheet: RuleDocument) -> str:
    """Write exlets and trees as one file."""
    parts = [_write_exlet(one) for one in sheet.exlets]
    if sheet.trees:
        parts.append(_HOW)
    parts += [_write_tree(one) for one in sheet.trees]
    return "\n".join(parts)


def _write_exlet(exlet: Exlet) -> str:
    about = _line("about", exlet.about) if exlet.about else ""
    steps = "".join(f"    {_inline_step(one.encode())},\n" for one in exlet.steps)
    return f"[exlet.{_key(exlet.name)}]\n{about}steps = [\n{steps}]\n"


def _inline_step(step: dict[str, Any]) -> str:
    # Its word first, and its fields in their own order.
    return "{" + ", ".join(f"{_key(name)} = {_value(value)}" for name, value in step.items()) + "}"


def _write_tree(tree: TreeText) -> str:
    activity = _line("activity", tree.activity) if tree.activity else ""
    head = f"[[tree]]\n{_line('flow', tree.flow)}{_line('on', tree.on.value)}{activity}"
    return "\n".join([head, *_write_rules(tree)])


def _write_rules(tree: TreeText) -> Iterator[str]:
    rules = TreeText.of(*_place(tree), dict(enumerate(tree.rules)), 0 if tree.rules else None).rules
    labels = _label(rules)
    above: dict[int, int | None] = {}  # the rule that each one refines
    for number, rule in enumerate(rules):
        parent = above.get(number)
        if rule.refined is not None:
            above[rule.refined] = number
        if rule.otherwise is not None:
            above[rule.otherwise] = parent
        yield _write_rule(rule, labels.get(number), None if parent is None else labels[parent])


def _place(tree: TreeText) -> tuple[str, Any, str]:
    return tree.flow, tree.on, tree.activity


def _write_rule(rule: RuleText, label: str | None, parent: str | None) -> str:
    lines = ["[[tree.rules]]\n"]
    if label is not None:
        lines.append(_line("id", label))
    if parent is not None:
        lines.append(_line("refines", parent))
    lines += [_line("if", rule.condition), _line("then", rule.exlet)]
    if rule.note:
        lines.append(_line("note", rule.note))
    if rule.cornerstone is not None:
        lines.append("\n[tree.rules.cornerstone]\n")
        lines += [_line(name, rule.cornerstone[name]) for name in sorted(rule.cornerstone)]
    return "".join(lines)


def _label(rules: tuple[RuleText, ...]) -> dict[int, str]:
    """Name the rules by their ids; one that others refer to needs a name, and gets a number if it has none."""
    labels: dict[int, str] = {}
    taken: set[str] = set()
    for number, rule in enumerate(rules):
        if rule.id and rule.id not in taken:
            labels[number] = rule.id
            taken.add(rule.id)
    for number, rule in enumerate(rules):
        if rule.refined is not None and number not in labels:
            labels[number] = next(label for label in map(str, count(number + 1)) if label not in taken)
            taken.add(labels[number])
    return labels


def _line(name: str, value: Any) -> str:
    text = _long(value) if isinstance(value, str) and "\n" in value else _value(value)
    return f"{_key(name)} = {text}\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return _value(NONE)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)  # a number: TOML writes them as Python does


def _text(text: str) -> str:
    """Quote a text without escapes where possible: conditions are full of quotes."""
    plain = _CONTROL.search(text) is None and "'" not in text
    return f"'{text}'" if plain and ('"' in text or "\\" in text) else _quoted(text)


def _long(text: str) -> str:
    """Quote a text of several lines as such, if possible."""
    odd = _CONTROL.search(text.replace("\n", "")) or "'''" in text or text.endswith("'")
    return _quoted(text) if odd else f"'''\n{text}'''"


def _quoted(text: str) -> str:
    return '"' + _CONTROL_OR_QUOTE.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}"
