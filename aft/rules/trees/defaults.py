"""The built-in trees: aft's own decisions, as rules that people can see and refine.

They are asked after all others: for every flow and every activity. ``ladder``, ``unwind`` and ``park`` are built-in
exlets.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aft.rules.rule_types import RuleType
from aft.rules.trees.tree import ALL, Node, Tree

_FAULT = (
    Node(1, "true", "unwind", refined=2, note="what cannot be put right is undone"),
    Node(
        2,
        "fault.recoverable && !fault.exhausted",
        "ladder",
        otherwise=3,
        note="what may pass is tried again, while a level is left",
    ),
    Node(3, "fault.kind == 'compensator'", "park", note="what cannot be undone waits for a person"),
)
_ABORT = (
    Node(1, "true", "ladder", refined=2, note="what was lost with its worker is tried again"),
    Node(2, "fault.exhausted", "park", note="what kills its worker again and again waits for a person"),
)


def _tree(on: RuleType, nodes: tuple[Node, ...]) -> Tree:
    return Tree(ALL, on, ALL, nodes={node.id: node for node in nodes}, root=1)


#: An activity or a compensator raised.
FAULT = _tree(RuleType.FAULT, _FAULT)
#: A worker was lost; ``fault.exhausted`` says that this has happened too often.
ABORT = _tree(RuleType.ABORT, _ABORT)
#: The built-in trees by type; the other types have none: without rules for them, nothing happens.
DEFAULTS: Mapping[RuleType, Tree] = MappingProxyType({RuleType.FAULT: FAULT, RuleType.ABORT: ABORT})
