"""Whatever fails, dies or comes in between: a flow of branches ends completed or exactly undone, and sees one world.

``AFT_TEST_EXAMPLES`` says how many flows are drawn for each test.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

import aft
from tests.acceptance import forest, forest_checks
from tests.acceptance.forest import Act, Fate, Tree
from tests.setups import Setup

EXAMPLES = int(os.environ.get("AFT_TEST_EXAMPLES", "6"))
_WHENEVER: Any = {
    "max_examples": EXAMPLES,
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    # Branches race: what is shrunk may be another failure than the one that was found.
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


def _rarely(value: Any, usual: Any, *, of: int = 4) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * (of - 1) + [value])


def _act(how: st.SearchStrategy[Any]) -> st.SearchStrategy[Tree]:
    acts = st.builds(
        Act,
        undo=st.sampled_from(["none", "plain", "plain", "plain", "started"]),
        how=how,
        busy=st.sampled_from([0, 0, 0, 0, 1, 2, -1]),
        on_signal=_rarely(True, False),
        fatal=_rarely(True, False, of=6),
        undo_busy=_rarely(1, 0),
        pause=st.sampled_from([0, 0, 1, 4]),
        blocking=_rarely(True, False),
    )
    return st.builds(Tree, kind=st.just("act"), act=acts.map(_sound))


def _sound(act: Act) -> Act:
    return act.model_copy(update={"undo": "plain"} if act.how != "plain" else {})


anyhow = st.sampled_from(["plain", "plain", "plain", "async", "transactional"])
waits = st.one_of(
    st.builds(Tree, kind=st.just("wait"), sent=st.sampled_from(["early", "during", "late"])),
    st.builds(Tree, kind=st.sampled_from(["perhaps", "sleep"])),
)
leaves = st.one_of(_act(anyhow), _act(anyhow), _act(anyhow), waits)


def _scopes(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.builds(
        Tree,
        kind=st.sampled_from(["savepoint", "savepoint", "try"]),
        caught=_rarely(False, True),
        branches=st.lists(inner, min_size=1, max_size=3).map(lambda trees: [trees]),
    )


def _children(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.builds(
        Tree, kind=st.just("child"), branches=st.lists(inner, min_size=1, max_size=3).map(lambda trees: [trees])
    )


def _parallels(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    calls = st.one_of(_act(anyhow), _act(anyhow), _children(inner))
    return st.builds(
        Tree, kind=st.just("parallel"), branches=st.lists(calls.map(lambda tree: [tree]), min_size=2, max_size=4)
    )


maps = st.builds(
    Tree,
    kind=st.just("map"),
    most=st.integers(1, 3),
    branches=st.lists(_act(st.just("plain")).map(lambda tree: [_mapped(tree)]), min_size=1, max_size=5),
)


def _mapped(tree: Tree) -> Tree:
    return tree.model_copy(update={"act": tree.act.model_copy(update={"undo": "plain"})})


def _tasks(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.builds(
        Tree,
        kind=st.sampled_from(["gather", "group"]),
        branches=st.lists(st.lists(inner, min_size=1, max_size=3), min_size=2, max_size=3),
    )


def _asyncs(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return _children(inner).map(lambda tree: tree.model_copy(update={"is_async": True}))


plain_trees = st.recursive(
    st.one_of(leaves, maps), lambda inner: st.one_of(_scopes(inner), _parallels(inner), _children(inner)), max_leaves=6
)
async_trees = st.recursive(
    leaves,
    lambda inner: st.one_of(_tasks(inner), _tasks(inner), _scopes(inner), _children(plain_trees), _asyncs(inner)),
    max_leaves=6,
)


_KINDS: list[Fate] = ["die before", "die after", "refused", "answer lost", "signal", "suspend", "yield"]
fates = st.dictionaries(st.integers(1, 18), st.sampled_from(_KINDS + _KINDS[:2]), max_size=5)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[aft.Aft]:
    folder: Path = tmp_path_factory.mktemp("forest")
    setup = Setup("sqlite", f"sqlite:///{folder / 'aft.db'}", "embedded")
    made = setup.app(lease=30.0, grace=2.0)
    made.check()
    with made.store.write() as connection:
        connection.execute(text("CREATE TABLE forest (id TEXT PRIMARY KEY)"))
    with pytest.MonkeyPatch.context() as patch, forest.fates(patch), made.dispatcher(concurrency=6):
        yield made
    setup.close()


@settings(**_WHENEVER)
@given(st.lists(plain_trees, min_size=1, max_size=3), fates)
def test_a_plain_flow_completes_or_is_exactly_undone(app: aft.Aft, trees: list[Tree], fates: dict[int, Fate]) -> None:
    forest_checks.execute(app, trees, fates, secrets.token_hex(6), is_async=False)


@settings(**_WHENEVER)
@given(st.lists(async_trees, min_size=1, max_size=3), fates)
def test_an_async_flow_completes_or_is_exactly_undone(app: aft.Aft, trees: list[Tree], fates: dict[int, Fate]) -> None:
    forest_checks.execute(app, trees, fates, secrets.token_hex(6), is_async=True)
