"""Teaching: reads rules and exlets, adds to them from a real fault, and previews what that would change.

Nothing here is needed to execute runs; what is saved is in force in every process within a second. Who may run at the
same time: several people. Each edit names the revision that it was made from; the second of two is refused
(``rules.trees.rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aft.app.actors import name_of
from aft.app.components import Components
from aft.app.rules.past_faults import ChangedDecision, PastFaults, Preview, stored_decision
from aft.app.rules.rule_store import RuleStore, compile_all, format_key, key_of, make_key, scoped_key
from aft.dispatcher.classify import classify
from aft.dispatcher.fault_rules import FaultRules, activity_of, rule_types_of
from aft.dispatcher.route import route
from aft.errors import RuleRefused
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.declare import options as checks
from aft.rules.cases import sources
from aft.rules.cases.case import Facts
from aft.rules.cases.facts import blank, complete
from aft.rules.cel.conditions import Condition
from aft.rules.exlets import exlet as exlets
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.rule_types import RuleType
from aft.rules.trees import preview as teaching
from aft.rules.trees import rows
from aft.rules.trees.choose import RuleChoice
from aft.rules.trees.preview import Proposal
from aft.rules.trees.rows import Key, Revision
from aft.rules.trees.rule_cache import RuleSet, built_in
from aft.rules.trees.tree import CompiledTree, Node, Tree
from aft.store.leases import known_sources
from aft.texts import MOST_NOTE, check_storable, format_value, require_text

__all__ = [
    "ChangedDecision",
    "Explanation",
    "ExplanationSource",
    "Preview",
    "RuleDesk",
    "Trial",
    "format_key",
    "key_of",
    "make_key",
    "scoped_key",
]

#: Past faults that a preview asks about.
MOST_LOOKED_AT = 1_000


class ExplanationSource(StrEnum):
    """Where an explanation comes from."""

    DECIDED = "decided"  #: rules were asked when the fault was decided about
    BUILT_IN = "built_in"  #: no rule was taught about it: aft's own decision held
    NOW = "now"  #: not decided yet; this is what the rules answer now
    NEVER = "never"  #: rules are not asked about it


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a fault was decided about; ``decision`` is None if no rule was asked, and aft's own decision held."""

    fault: Fault
    flow: str
    decision: RuleChoice | None
    #: The facts of its case, as far as they are known now.
    facts: Facts = field(repr=False)
    default: str
    source: ExplanationSource = ExplanationSource.DECIDED
    #: How rules were asked, would be asked now, or how the built-in ones express aft's own decision.
    walk: RuleChoice | None = None
    #: The trees of that walk, as they were then; one that cannot be read any more is not here.
    trees: dict[Key, Tree] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """Whether a condition holds for a fault, and the facts that it mentions."""

    fault: Fault
    flow: str
    holds: bool
    warning: str | None
    #: As the condition sees them: what is not known is blank.
    facts: Facts = field(repr=False)


class RuleDesk:
    """The operations of people on rules. Thread-safe."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._namespace = components.namespace
        self._rule_store = RuleStore(components.namespace, components.store)
        fault_rules = FaultRules(components.namespace, components.store, components.rule_cache)
        self._past = PastFaults(components.namespace, components.store, fault_rules)

    # Looking ----------------------------------------------------------------------------------------------------

    def trees(self, *, damaged: bool = False) -> list[Tree]:
        """Return every tree in force, built-in ones included; ``damaged``: without those that cannot be read."""
        with self._read() as connection:
            return list(self._rule_store.trees(connection, damaged=damaged).values())

    def tree(self, flow: str, on: RuleType | str, activity: str = "") -> Tree:
        """Return one tree; an empty one of revision 0 if it was never taught anything."""
        key = make_key(flow, on, activity)
        with self._read() as connection:
            return self._rule_store.trees(connection).get(key) or Tree(*key)

    def tree_at(self, key: Key, revision: int) -> Tree:
        """Return a revision of a tree; 0 is the built-in one, or an empty one. Raises RuleRefused if there is none."""
        checks.check_count("revision", revision, least=0)
        with self._read() as connection:
            return self._rule_store.tree_at(connection, key, revision)

    def exlets(self, *, damaged: bool = False) -> list[Exlet]:
        """Return every exlet in force, built-in ones included; ``damaged``: without those that cannot be read."""
        with self._read() as connection:
            return list(self._rule_store.exlets(connection, damaged=damaged).values())

    def find_damaged(self) -> list[str]:
        """Return why trees and exlets in force cannot be read; empty if all can."""
        with self._read() as connection:
            return self._rule_store.find_damaged(connection)

    def exlet(self, name: str) -> Exlet:
        """Return one exlet; raises RuleRefused if there is none of that name."""
        found = {one.name: one for one in self.exlets()}
        if not isinstance(name, str) or name not in found:
            raise RuleRefused(f"there is no exlet {format_value(name)}; there are {', '.join(sorted(found))}")
        return found[name]

    def history(self, key: Key | None = None, limit: int = 50) -> list[Revision]:
        """Return the revisions of one tree, or of all, newest first: who changed it, and when."""
        checks.check_count("limit", limit, least=0)
        with self._read() as connection:
            return rows.tree_history(connection, self._namespace, key, limit)

    def exlet_history(self, name: str) -> list[Revision]:
        """Return the revisions of an exlet, newest first; empty for a built-in or unknown one."""
        require_text("name", name, RuleRefused)
        with self._read() as connection:
            return rows.exlet_history(connection, self._namespace, name)

    def sources(self) -> dict[str, str]:
        """Return the outside sources that conditions may use, with their types: of this process and live workers."""
        own = {name: one.type for name, one in sources.declared.items()}
        with self._read() as connection:
            return {**known_sources(connection, self._namespace), **own}

    def explain(self, fault_id: str) -> Explanation:
        """Explain which rules were asked about a fault, with which facts, and why they chose what they did."""
        self._components.check()
        fault, run = self._past.find_fault(fault_id)
        decision = stored_decision(fault)
        case = self._past.case(fault, run)
        ruled = fault.kind in (FaultKind.CONSTRAINT, FaultKind.FLOW)
        default = "" if ruled else route(fault, classify(fault)).why
        if decision is not None:
            source, walk = ExplanationSource.DECIDED, decision
        elif not rule_types_of(fault):
            source, walk = ExplanationSource.NEVER, None
        else:
            source = ExplanationSource.NOW if fault.state is FaultState.OPEN else ExplanationSource.BUILT_IN
            rules = self._rules() if source is ExplanationSource.NOW else built_in()
            walk = self._past.decide(rules, fault, run, case)
        facts = {**case.facts, **(walk.facts if walk else {})}
        return Explanation(fault, run.flow, decision, facts, default, source, walk, self._trees_of(walk))

    def test(self, fault_id: str, condition: str) -> Trial:
        """Evaluate a condition on a fault; raises RuleRefused if it cannot be compiled."""
        self._components.check()
        fault, run = self._past.find_fault(fault_id)
        known = self.sources()
        compiled = Condition.compile(condition, known)
        facts = complete(self._past.case(fault, run).gather(compiled.names), blank(known), compiled.names)
        answer = compiled.holds(facts)
        return Trial(fault, run.flow, answer.holds, answer.warning, facts)

    def decide(self, fault_id: str, tree: Tree) -> RuleChoice | None:
        """Return what the rules would choose for a fault, with this tree replacing its revision in force."""
        self._components.check()
        fault, run = self._past.find_fault(fault_id)
        return self._past.decide(self._rules(tree), fault, run, self._past.case(fault, run))

    # Teaching ---------------------------------------------------------------------------------------------------

    def add_exlet(
        self, exlet: Exlet, *, by: str | None = None, note: str | None = None, base: int | None = None
    ) -> int:
        """Save an exlet, and return its revision; it is in force at once, where rules choose it. Raises RuleRefused."""
        maker = name_of(by, RuleRefused)
        self._components.check()
        self._rule_store.check([], [exlet], self.sources())
        if exlet.name in BUILT_IN:
            raise RuleRefused(f"exlet {exlet.name!r} is built in and stays as it is; choose another name")
        self._write([], [(exlet, base)], maker, note)
        return self.exlet_history(exlet.name)[0].number

    def propose(
        self,
        fault_id: str,
        condition: str,
        exlet: str,
        *,
        scope: str = "activity",
        note: str | None = None,
        by: str | None = None,
    ) -> Proposal:
        """Make a rule from a real fault, for its activity, its whole flow, or everything; nothing is saved yet.

        Raises RuleRefused if it would not hold for that fault.
        """
        made_by = name_of(by, RuleRefused)
        check_storable("note", note, RuleRefused, lines=True, most=MOST_NOTE)
        self._components.check()
        fault, run = self._past.find_fault(fault_id)
        if not rule_types_of(fault):
            raise RuleRefused(f"fault {fault.id} was raised by the flow's own code, which no rule is asked about")
        on = rule_types_of(fault)[0]
        key = scoped_key(run.flow, on, activity_of(fault), scope)
        exlets.check_for(self.exlet(exlet), on)
        known = self.sources()
        compiled, rule = CompiledTree(self.tree(*key), known), Condition.compile(condition, known)
        return teaching.propose(
            compiled,
            self._past.case(fault, run).gather({*compiled.names, *rule.names}),
            condition,
            exlet,
            fault_id=fault.id,
            note=note or "",
            made_by=made_by,
            made_at=self._components.clock.now(),
        )

    def add(self, proposal: Proposal, *, accept: bool = False) -> int:
        """Put a proposed rule in force; ``accept``: even if it changes the answer for cornerstones of other rules."""
        if proposal.conflicts and not accept:
            numbers = ", ".join(str(conflict.node.id) for conflict in proposal.conflicts)
            raise RuleRefused(
                f"the new rule would change the answer for the cornerstone of rule {numbers}; "
                "make its condition narrower, or accept that"
            )
        return self._save(proposal.tree, proposal.node.made_by, proposal.node.note or None, proposal.tree.revision)

    def undo(self, key: Key, to: int | None = None, *, by: str | None = None) -> int:
        """Put an earlier revision of a tree in force again: the one before the last, or ``to``; 0: the built-in one."""
        maker = name_of(by, RuleRefused)
        with self._read() as connection:
            latest = rows.tree_revision(connection, self._namespace, key)
            if latest is None:
                raise RuleRefused(f"{format_key(key)} was never changed; there is nothing to undo")
            wanted = latest.number - 1 if to is None else checks.check_count("to", to, least=0)
            if wanted == latest.number:
                raise RuleRefused(f"{format_key(key)} is at revision {wanted} already")
            tree = self._rule_store.tree_at(connection, key, wanted)
        return self._save(tree, maker, f"back to revision {wanted}", latest.number)

    def preview(self, tree: Tree, limit: int = MOST_LOOKED_AT) -> Preview:
        """Ask about past faults in the tree's scope again, with the rules in force and with this tree in its place."""
        checks.check_count("limit", limit, least=0)
        before, after = self._rules(), self._rules(tree)
        with self._read() as connection:
            past = self._past.past(connection, tree, limit)
        return self._past.compare(before, after, past)

    def conflicts(self, before: Tree, after: Tree) -> tuple[Node, ...]:
        """Return the rules of ``before`` whose own cornerstone would get another answer from ``after``."""
        known = self.sources()
        old, new = CompiledTree(before, known), CompiledTree(after, known)
        of = [node for node in before.nodes.values() if node.cornerstone is not None]
        return tuple(node for node in of if teaching.compare(old, new, [node.cornerstone or {}]))

    def save_all(
        self,
        trees: Iterable[Tree],
        made: Iterable[Exlet],
        *,
        by: str | None = None,
        note: str | None = None,
        bases: Mapping[str, int] | None = None,
    ) -> None:
        """Put many trees and exlets in force together; all of them or none.

        Each tree is made from its ``revision``, each exlet from the one that ``bases`` names, if any. Raises
        RuleRefused if one of them has changed since.
        """
        found, built, maker = list(trees), [one for one in made if not _is_built_in(one)], name_of(by, RuleRefused)
        _check_bases(bases)
        self._components.check()
        self._rule_store.check(found, built, self.sources())
        exlets_with = [(one, (bases or {}).get(one.name)) for one in built]
        self._write([(tree, tree.revision) for tree in found], exlets_with, maker, note)

    # Inside -----------------------------------------------------------------------------------------------------

    def _read(self) -> Any:
        self._components.check()
        return self._components.store.read()

    def _save(self, tree: Tree, by: str, note: str | None, base: int) -> int:
        self._rule_store.check([tree], [], self.sources())
        return self._write([(tree, base)], [], by, note)[0]

    def _write(
        self, trees: list[tuple[Tree, int]], made: list[tuple[Exlet, int | None]], by: str, note: str | None
    ) -> list[int]:
        """Save an edit. It is in force in this process when this returns; in others, when their rule caches reload."""
        numbers = self._rule_store.write(trees, made, by, note)
        self._components.rule_cache.refresh()
        return numbers

    def _rules(self, tree: Tree | None = None) -> RuleSet:
        """Return the rules in force, with this tree in its place."""
        known = self.sources()
        with self._read() as connection:
            trees = self._rule_store.trees(connection)
        if tree is not None:
            trees[key_of(tree)] = tree
        return RuleSet(0, compile_all(trees, known), {}, frozenset(RuleType))

    def _trees_of(self, walk: RuleChoice | None) -> dict[Key, Tree]:
        """Return the trees that were asked, at the revisions they had then."""
        found: dict[Key, Tree] = {}
        if walk is None:
            return found
        with self._read() as connection:
            for asked in walk.asked:
                key = (asked.flow, RuleType(walk.on), asked.activity)
                try:
                    found[key] = self._rule_store.tree_at(connection, key, asked.revision)
                except RuleRefused:
                    continue  # the walk still has the numbers of its rules
        return found


def _check_bases(bases: Mapping[str, int] | None) -> None:
    if bases is not None and not isinstance(bases, Mapping):
        raise RuleRefused(f"bases={format_value(bases)} must be the names of exlets, each with a revision")
    for name in bases or ():
        if not isinstance(name, str):
            raise RuleRefused(f"bases holds {format_value(name)}; each is the name of an exlet, with a revision")


def _is_built_in(exlet: Exlet) -> bool:
    return isinstance(exlet.name, str) and BUILT_IN.get(exlet.name) == exlet
