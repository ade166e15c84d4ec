"""The rules in force, as one process knows them: read when they have changed, compiled once, asked from memory.

Who may run at the same time: every thread of a process that asks, and editors anywhere. What is in force here is at
most ``FRESH`` seconds old: whoever asks first after that looks at the version, one small read; the others go on with
what there is, but not with what is ``TOO_OLD``. Counted from when a look began: an editor may come while it lasts. An
editor in this process has the book look again before its call returns. A database that is away, or a tree that cannot
be read, leaves the last good rules in force.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection

from aft import forked
from aft.clock import Clock
from aft.errors import AftError, StoreError
from aft.rules import rows, sources
from aft.rules.asking import keys
from aft.rules.defaults import DEFAULTS
from aft.rules.exlets import BUILT_IN, Exlet
from aft.rules.kinds import On
from aft.rules.rows import Key, Revision
from aft.rules.tree import CompiledTree, Tree
from aft.store import Store
from aft.telemetry import RulesRefused, Telemetry

#: Seconds for which the rules are not looked at again, and after which nobody goes on without a look: a change is in
#: force everywhere within a second.
FRESH, TOO_OLD = 0.5, 1.0
#: Seconds that one waits for somebody else's look; after that the rules that were seen last are in force.
LOOK_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules and exlets at one version. Immutable, but for what was looked up."""

    version: int
    trees: Mapping[Key, CompiledTree]
    exlets: Mapping[str, Exlet]
    #: Types of exception that there are rules for, beyond what is built in.
    taught: frozenset[On]
    _found: dict[Key, list[CompiledTree]] = field(default_factory=dict, repr=False)

    def find(self, on: On, flow: str, activity: str) -> list[CompiledTree]:
        """The trees that may answer, the most special first; empty: nobody has said anything about this."""
        key = (flow, on, activity)
        found = self._found.get(key)
        if found is None:
            found = [tree for one in keys(on, flow, activity) if (tree := self.trees.get(one)) is not None]
            self._found[key] = found
        return found

    def is_taught(self, on: On, flow: str, activity: str) -> bool:
        """Whether somebody has taught something about this: if not, only what is built in can answer."""
        return on in self.taught and any(tree.tree.revision > 0 for tree in self.find(on, flow, activity))


def built_in() -> Rules:
    """The rules where nobody has taught any."""
    return Rules(0, {_key(tree): CompiledTree(tree) for tree in DEFAULTS.values()}, dict(BUILT_IN), frozenset())


class Book:
    """The rules of a namespace, kept fresh. Thread-safe. Emits: RulesRefused."""

    def __init__(self, store: Store, namespace: str, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._telemetry = telemetry
        self._rules = built_in()
        self._looked = float("-inf")
        self._looking = threading.Lock()
        forked.tell(self)

    def forget_in_child(self) -> None:
        """After a fork: who was looking may not be here."""
        self._looking = threading.Lock()

    def current(self) -> Rules:
        """The rules in force; while nobody can look, because the database does not answer, the last that were seen.

        Another thread may be looking, on a connection that has fallen silent, or that a fork keeps from being opened.
        """
        age = self._clock.ticks() - self._looked
        if age >= FRESH and self._looking.acquire(timeout=LOOK_PATIENCE if age >= TOO_OLD else 0):
            try:
                if self._clock.ticks() - self._looked >= FRESH:
                    self._look()
            except StoreError:
                self._looked = self._clock.ticks()  # the last good ones stay in force
            finally:
                self._looking.release()
        return self._rules

    def look_again(self) -> Rules:
        """The rules in force now, whatever was seen just before."""
        with self._looking, suppress(StoreError):
            self._look()
        return self._rules

    def _look(self) -> None:
        began = self._clock.ticks()
        with self._store.read() as connection:
            if (version := rows.version(connection, self._namespace)) != self._rules.version:
                self._rules = self._load(connection, version)
        self._looked = began

    def _load(self, connection: Connection, version: int) -> Rules:
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
        return Rules(version, trees, exlets, taught)

    def _last_good(self, connection: Connection, revision: Revision) -> CompiledTree | None:
        """The newest revision of a tree that can be read, for a process that has seen none yet."""
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
    # It was checked when it was saved: what mentions a source that this process has not does not hold here.
    return CompiledTree(rows.read_tree(revision), {name: one.type for name, one in sources.declared.items()})


def _key(tree: Tree) -> Key:
    return tree.flow, tree.on, tree.activity
