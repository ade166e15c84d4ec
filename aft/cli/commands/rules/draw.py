"""A tree of rules drawn for a terminal: one rule after the other, as they are asked.

::

    buy × fault × reserve  revision 2

      1  if fault.name == 'Busy' → patient
         the shelf is locked on Mondays · ann, 14:03:10 · for fault 5f0d7bc1a2e4
      3    but if activity.attempts > 3 → give_up
           ann, 14:05:11 · for fault 9a3b11c0de77
      2  else if fault.text.contains('gone') → park
         bob, 14:04:00 · without a case

What refines a rule is indented under it; alternatives stand on the same level, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from aft.app.rules.rule_documents import in_order
from aft.app.rules.rule_store import format_key, key_of, original
from aft.cli.errors import one_line
from aft.cli.show.output import moment, print_text, short_id
from aft.cli.show.sentences import LEAST_ROOM
from aft.rules.trees.tree import Node, Tree

#: Refinements that are indented; deeper ones say what they refine instead.
MOST_DEPTH = 8


def draw_tree(console: Console, tree: Tree, about: str = "") -> None:
    """Draw a tree: its name and ``about``, then its rules."""
    print_text(console, title(tree, about))
    if not tree.nodes:
        print_text(console, Text("  no rules", "dim"))
        return
    console.print()
    width = len(str(max(tree.nodes)))
    first_of: set[int | None] = set()
    for node, depth, above in in_order(tree):
        word = "else if" if above in first_of else "but if" if depth else "if"
        first_of.add(above)
        draw_rule(console, f"{node.id:>{width + 2}}  ", depth, _says(word, node, above, depth), _about(tree, node))


def title(tree: Tree, about: str = "") -> Text:
    """Return a tree's name, and where it comes from."""
    return Text.assemble((format_key(key_of(tree)), "bold"), (f"  {about or _origin(tree)}", "dim"))


def _origin(tree: Tree) -> str:
    if tree.revision == 0:
        return "built in" if tree.nodes else "no rules taught"
    built_in = bool(original(key_of(tree)).nodes)
    return f"revision {tree.revision}{', instead of what is built in' if built_in else ''}"


def rule_text(word: str, condition: str, exlet: str, style: str = "cyan") -> Text:
    """Format a rule on one line; without an exlet, only its condition."""
    parts: list[str | tuple[str, str]] = [(f"{word} ", "dim") if word else "", one_line(condition)]
    if exlet:
        parts += [(" → ", "dim"), (exlet, style)]
    return Text.assemble(*parts)


def draw_rule(console: Console, margin: str | Text, depth: int, *lines: Text) -> None:
    """Print the lines of one rule beside its number; what does not fit goes on below."""
    head = Text.assemble((margin, "dim") if isinstance(margin, str) else margin)
    indent = "  " * min(depth, MOST_DEPTH)
    room = max(LEAST_ROOM, console.width - head.cell_len - len(indent))
    first = True
    for line in lines:
        for number, part in enumerate(line.wrap(console, room - 2) if line else ()):
            part.rstrip()
            beside = head if first else Text(" " * head.cell_len)
            hang = "  " if number else ""
            drawn = Text.assemble(beside, indent, hang, part)
            print_text(console, drawn)
            first = False


def _says(word: str, node: Node, above: int | None, depth: int) -> Text:
    line = rule_text(word, node.condition, node.exlet)
    return line.append(f"  (refines {above})", "dim") if depth > MOST_DEPTH else line


def _about(tree: Tree, node: Node) -> Text:
    """Format the author of a rule, the time, its case, and its note."""
    built_in = original(key_of(tree)).nodes.get(node.id)
    if built_in is not None and (built_in.condition, built_in.exlet) == (node.condition, node.exlet):
        made, case = "built in" if tree.revision else "", ""
    else:
        made, case = ", ".join(part for part in (node.made_by, moment(node.made_at)) if part), "without a case"
    if node.cornerstone is not None:
        case = f"for fault {short_id(node.fault_id)}" if node.fault_id else "with a case of its own"
    parts: Iterable[str] = (node.note, made, case)
    return Text(" · ".join(one_line(part) for part in parts if part), "dim")
