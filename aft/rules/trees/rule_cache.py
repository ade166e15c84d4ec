"""The rule cache: the rules in force in one process, reloaded when they have changed, and compiled once.

Who may run at the same time: every thread of a process that asks rules, and editors anywhere. After ``FRESH`` seconds
the first thread that asks reads the version, one small query; the others use what there is, unless it is ``TOO_OLD``:
then they wait for that read. The age counts from the beginning of a read: an edit may commit during it. An editor in
this process makes the cache read again before its call returns. If the database is away, or a tree cannot be decoded,
the last good rules stay in force.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection

from aft import after_fork
from aft.clock import Clock
from aft.errors import AftError, StoreError
from aft.rules.cases import sources
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.rule_types import RuleType
from aft.rules.trees import rows
from aft.rules.trees.choose import keys
from aft.rules.trees.defaults import DEFAULTS
from aft.rules.trees.rows import Key, Revision
from aft.rules.trees.tree import CompiledTree, Tree
from aft.store import Store
from aft.telemetry import RulesRefused, Telemetry

#: Seconds for which the rules are not read again, and after which no thread goes on without a read: a change is in
#: force everywhere within a second.
FRESH, TOO_OLD = 0.5, 1.0
#: Seconds that a thread waits for another's read; after that it uses the rules that were read last.
LOOK_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules and exlets at one version. Immutable, except for its lookup cache."""

    version: int
    trees: Mapping[Key, CompiledTree]
    exlets: Mapping[str, Exlet]
    #: Rule types that there are rules for, besides the built-in ones.
    taught: frozenset[RuleType]
    _found: dict[Key, list[CompiledTree]] = field(default_factory=dict, repr=False)

    def find(self, on: RuleType, flow: str, activity: str) -> list[CompiledTree]:
        """Return the trees that may answer, the most specific first."""
        key = (flow, on, activity)
        found = self._found.get(key)
        if found is None:
            found = [tree for one in keys(on, flow, activity) if (tree := self.trees.get(one)) is not None]
            self._found[key] = found
        return found

    def is_taught(self, on: RuleType, flow: str, activity: str) -> bool:
        """Return whether a rule was taught about this: if not, only the built-in trees can answer."""
        return on in self.taught and any(tree.tree.revision > 0 for tree in self.find(on, flow, activity))


def built_in() -> RuleSet:
    """Return the rules of a namespace in which none was taught."""
    return RuleSet(0, {_key(tree): CompiledTree(tree) for tree in DEFAULTS.values()}, dict(BUILT_IN), frozenset())


class RuleCache:
    """The rules of a namespace, kept fresh. Thread-safe. Emits: RulesRefused."""

    def __init__(self, store: Store, namespace: str, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._telemetry = telemetry
        self._rules = built_in()
        self._read_at = float("-inf")
        self._reading = threading.Lock()
        after_fork.register(self)

    def forget_in_child(self) -> None:
        """After a fork: replace the lock, whose holder may not exist here."""
        self._reading = threading.Lock()

    def current(self) -> RuleSet:
        """Return the rules in force; while the database does not answer, the last that were read.

        Another thread may be reading, on a connection that has fallen silent, or that a fork keeps from being opened.
        """
        age = self._clock.ticks() - self._read_at
        if age >= FRESH and self._reading.acquire(timeout=LOOK_PATIENCE if age >= TOO_OLD else 0):
            try:
                if self._clock.ticks() - self._read_at >= FRESH:
                    self._read()
            except StoreError:
                self._read_at = self._clock.ticks()  # the last good ones stay in force
            finally:
                self._reading.release()
        return self._rules

    def refresh(self) -> RuleSet:
        """Read the rules now, even if they were read just before, and return them."""
        with self._reading, suppress(StoreError):
            self._read()
        return self._rules

    def _read(self) -> None:
        began = self._clock.ticks()
        with self._store.read() as connection:
            version = rows.version(connection, self._namespace)
            if version != self._rules.version or version == rows.UNREADABLE:
                self._rules = self._load(connection, version)
        self._read_at = began

    def _load(self, connection: Connection, version: int) -> RuleSet:
        before = self._rules
        trees = {_key(tree): CompiledTree(tree) for tree in DEFAULTS.values()}
        for revision in rows.latest_trees(connection, self._namespace):
            known = next((tree for key, tree in before.trees.items() if key == revision.key), None)
            try:
                key = rows.decode_key(revision.key)
                same = known is not None and known.tree.revision == revision.number
                trees[key] = known if same and known is not None else _compile(revision)
            except (AftError, ValueError, TypeError, KeyError, RecursionError) as error:
                self._refuse(" × ".join(revision.key), error)
                known = known or self._last_good(connection, revision)
                if known is not None:
                    trees[_key(known.tree)] = known
        exlets = dict(BUILT_IN)
        for revision in rows.latest_exlets(connection, self._namespace):
            name = revision.key[0]
            try:
                exlets[name] = Exlet.decode(json.loads(revision.text))
            except (AftError, ValueError, TypeError, KeyError, RecursionError) as error:
                self._refuse(f"exlet {name!r}", error)
                if name in before.exlets:
                    exlets[name] = before.exlets[name]
        taught = frozenset(key[1] for key, tree in trees.items() if tree.tree.revision > 0)
        return RuleSet(version, trees, exlets, taught)

    def _last_good(self, connection: Connection, revision: Revision) -> CompiledTree | None:
        """Return the newest revision of a tree that can be decoded, for a process that has loaded none yet."""
        try:
            earlier = rows.tree_history(connection, self._namespace, rows.decode_key(revision.key))
        except ValueError:
            return None
        for one in earlier:
            with suppress(AftError, ValueError, TypeError, KeyError, RecursionError):
                return _compile(one)
        return None

    def _refuse(self, what: str, error: Exception) -> None:
        self._telemetry.emit(RulesRefused(what=what, why=str(error)))


def _compile(revision: Revision) -> CompiledTree:
    # It was checked when it was saved: a condition with a source that this process lacks does not hold here.
    return CompiledTree(rows.read_tree(revision), {name: one.type for name, one in sources.declared.items()})


def _key(tree: Tree) -> Key:
    return tree.flow, tree.on, tree.activity
