"""Random flows end completed or exactly undone, whatever fails, dies, passes its deadline or comes in between.

A flow is drawn as data (``plans``); ``oracle`` says from that data alone what has to stand in the end, and in which
order things are undone. ``make test`` draws the same few plans each time. To hunt, draw many others, on one processor:

    AFT_TEST_EXAMPLES=2000 nice .venv/bin/pytest tests/acceptance/test_random_flows.py -k "plain and sqlite"

A failing plan is printed as it is written; ``Plan(…)`` as printed can be executed again with ``plan_checks.execute``.
``AFT_TEST_FEATURES=pivot,child`` draws only these features besides activities and savepoints.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

import aft
from tests.acceptance import forest, plan_checks
from tests.acceptance.forest import Fate
from tests.acceptance.plans import Failure, Part, Plan
from tests.conftest import make_setup
from tests.setups import ENDS

#: What plans may have besides activities and savepoints.
ALL = "anew,child,deadline,beside,base,undone,kills,waits,parallel,pivot,ails,raises"
FEATURES = frozenset(os.environ.get("AFT_TEST_FEATURES", ALL).split(","))
EXAMPLES = int(os.environ.get("AFT_TEST_EXAMPLES", "0"))
# The dispatcher's threads draw their back-off from it while a plan is drawn; no plan does.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


def bounded(examples: int) -> settings:
    """A bounded number of plans that are always the same; many others if a person asks for them."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=False,
        phases=[Phase.explicit, Phase.generate, *([] if os.environ.get("AFT_TEST_SHRINK") == "0" else [Phase.shrink])],
        suppress_health_check=list(plan_checks.UNHURRIED),
    )


def _rarely(value: Any, usual: Any, *, of: int = 4) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * (of - 1) + [value])


def _with(feature: str, values: list[Any]) -> list[Any]:
    return values if feature in FEATURES else []


_FAILURES: list[Failure] = ["nope", "nope", "value", "exhausts"]
_FAILURES += _with("base", ["base", "exit", "generator", "cancelled", "group", "stop"])
_RAISES: list[Failure] = ["value", "bug", *_with("base", ["base", "exit", "generator", "cancelled"])]


def acts(
    *, how: tuple[str, ...] = ("plain", "plain", "plain", "async", "transactional"), fails: int = 5
) -> st.SearchStrategy[Part]:
    """Activities; every so many of them fails for good."""
    return st.builds(
        Part,
        how=st.sampled_from(how),
        undo=st.sampled_from(["plain", "plain", "plain", "plain", "none", "started"]),
        busy=st.sampled_from([0, 0, 0, 0, 1, TWICE]),
        fails=st.one_of(*[st.just("")] * (fails - 1), st.sampled_from(_FAILURES)) if fails else st.just(""),
        undo_busy=_rarely(1, 0),
        undo_fails=st.sampled_from(["", "", "", "", "", *_with("ails", ["nope"]), *_with("base", ["base"])]),
        pause=st.sampled_from([0, 0, 0, 1, 4]),
        blocking=_rarely(True, False),
    ).map(_sound)


TWICE = 2


def _sound(part: Part) -> Part:
    """Only plain activities may have no compensator, or one for what was only begun."""
    changes: dict[str, Any] = {}
    if part.how != "plain":
        changes["undo"] = "plain"
    if part.fails:
        changes["busy"] = 0
    if part.fails == "stop" and part.how == "async":
        changes["fails"] = "nope"  # Python itself makes another exception of it
    return part.model_copy(update=changes)


def waits(deadline: bool) -> st.SearchStrategy[Part]:
    sent = ["early", "during", "late", *(["overdue"] * 3 if deadline else [])]
    return st.one_of(
        st.builds(Part, kind=st.just("wait"), sent=st.sampled_from(sent)),
        st.builds(Part, kind=st.sampled_from(["perhaps", "sleep"])),
    )


def _scopes(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.builds(
        Part,
        kind=st.sampled_from(["savepoint", "savepoint", "try"]),
        caught=_rarely(False, True),
        branches=st.lists(st.lists(inner, min_size=1, max_size=3), min_size=1, max_size=1),
    )


@st.composite
def _generations(draw: st.DrawFn, parts: st.SearchStrategy[Part], *, most: int, longest: int = 3) -> list[list[Part]]:
    """Generations of a run; often each does the same, and only the last one fails, as in a flow that begins monthly."""
    count = draw(st.integers(1, most)) if "anew" in FEATURES else 1
    if count > 1 and draw(st.booleans()):
        last = draw(st.lists(parts, min_size=1, max_size=longest))
        return [*([_without_failures(part) for part in last] for _ in range(count - 1)), last]
    return [draw(st.lists(parts, min_size=1, max_size=longest)) for _ in range(count)]


def _without_failures(part: Part) -> Part:
    if part.kind in ("pivot", "raise"):
        return Part()
    branches = [[_without_failures(inner) for inner in branch] for branch in part.branches]
    return part.model_copy(update={"fails": "", "branches": branches})


def _children(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    """Children, plain and async: what only one of them can do is not in them."""
    return st.builds(
        Part, kind=st.just("child"), is_async=st.booleans(), branches=_generations(inner, most=2, longest=2)
    )


def _parallels(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    calls = st.one_of(acts(), acts(), *_with("child", [_children(inner)]))
    mapped = acts(how=("plain",)).map(lambda part: part.model_copy(update={"undo": "plain"}))
    return st.one_of(
        st.builds(Part, kind=st.just("parallel"), branches=_lists_of_one(calls, 2, 4)),
        st.builds(Part, kind=st.just("map"), most=st.integers(1, 3), branches=_lists_of_one(mapped, 1, 5)),
    )


def _lists_of_one(parts: st.SearchStrategy[Part], least: int, most: int) -> st.SearchStrategy[list[list[Part]]]:
    return st.lists(parts.map(lambda part: [part]), min_size=least, max_size=most)


def _gathers(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.builds(
        Part,
        kind=st.just("gather"),
        branches=st.lists(st.lists(inner, min_size=1, max_size=3), min_size=2, max_size=3),
    )


def _waits_beside() -> st.SearchStrategy[Part]:
    """A wait, then an activity; beside it one that only ends when that was begun."""
    wait = st.one_of(
        st.builds(Part, kind=st.just("wait"), sent=st.sampled_from(["early", "during"])),
        st.builds(Part, kind=st.just("sleep")),
    )
    steady = acts(how=("plain",), fails=0).map(lambda part: part.model_copy(update={"blocking": False}))
    return st.builds(
        lambda wait, first, second: Part(kind="gather", branches=[[wait, first], [second]]), wait, steady, steady
    )


def parts(*, is_async: bool, deadline: bool) -> st.SearchStrategy[Part]:
    """Parts of a flow of one spelling."""
    leaf = st.one_of(
        acts(),
        acts(),
        acts(),
        *_with("waits", [waits(deadline)]),
        *_with("pivot", [_rarely(Part(kind="pivot"), None, of=3).flatmap(_or_act)]),
        *_with("raises", [st.builds(Part, kind=st.just("raise"), fails=st.sampled_from(_RAISES)).flatmap(_half_act)]),
    )
    common = st.one_of(acts(), *_with("waits", [waits(deadline)]))  # what a child, or a branch, is made of
    inner = st.recursive(common, _scopes, max_leaves=3)
    return st.recursive(
        st.one_of(leaf, *([_waits_beside()] if is_async and "beside" in FEATURES else [])),
        lambda deeper: st.one_of(
            _scopes(deeper),
            _scopes(deeper),
            *_with("child", [_children(st.one_of(inner, leaf)), _children(inner)]),
            *_with("parallel", [_gathers(inner) if is_async else _parallels(inner)]),
        ),
        max_leaves=6,
    )


def _or_act(part: Part | None) -> st.SearchStrategy[Part]:
    return acts() if part is None else st.just(part)


def _half_act(part: Part) -> st.SearchStrategy[Part]:
    return st.one_of(acts(), acts(), st.just(part))


_KINDS: list[Fate] = ["die before", "die after", "refused", "answer lost", "signal", "suspend", "yield"]


@st.composite
def plans(draw: st.DrawFn, *, is_async: bool) -> Plan:
    """Whole plans."""
    deadline = "deadline" in FEATURES and draw(st.integers(0, 4)) == 4
    fates: dict[int, str] = {}
    if "kills" in FEATURES and draw(st.booleans()):
        fates = draw(st.dictionaries(st.integers(1, 18), st.sampled_from(_KINDS + _KINDS[:2]), max_size=4))
    return Plan(
        generations=draw(_generations(parts(is_async=is_async, deadline=deadline), most=3)),
        is_async=is_async,
        deadline=deadline,
        undone="undone" in FEATURES and draw(st.integers(0, 3)) == 3,
        fates=fates,
    )


@pytest.fixture(scope="module", params=ENDS)
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[aft.Aft]:
    setup = make_setup(request.param, request, tmp_path_factory.mktemp("plans"))
    made = setup.app(lease=60.0, grace=2.0)
    made.check()
    with made.store.write() as connection:
        connection.execute(text("DROP TABLE IF EXISTS plan_effects"))
        connection.execute(text("CREATE TABLE plan_effects (id VARCHAR(200) PRIMARY KEY)"))
    with pytest.MonkeyPatch.context() as patch, forest.fates(patch), made.dispatcher(concurrency=6):
        yield made
    with made.store.write() as connection:
        connection.execute(text("DROP TABLE plan_effects"))
    setup.close()


@bounded(6)
@given(plan=plans(is_async=False))
def test_a_plain_flow_ends_as_its_plan_says(app: aft.Aft, plan: Plan, tmp_path: Path) -> None:
    plan_checks.execute(app, plan, tmp_path / secrets.token_hex(6))


@bounded(6)
@given(plan=plans(is_async=True))
def test_an_async_flow_ends_as_its_plan_says(app: aft.Aft, plan: Plan, tmp_path: Path) -> None:
    plan_checks.execute(app, plan, tmp_path / secrets.token_hex(6))


_OVERDUE = Part(kind="wait", sent="overdue")
_STOPPED = Part(kind="child", branches=[[Part(), _OVERDUE]])
_EXIT = Part(kind="raise", fails="exit")
#: Plans that ended otherwise once.
KNOWN = {
    "a savepoint undoes its own generation": Plan(
        generations=[
            [Part(kind="savepoint", branches=[[Part()]])],
            [Part(kind="savepoint", branches=[[Part(), Part(fails="nope")]])],
        ]
    ),
    "a pivot outlives its generation": Plan(generations=[[Part(), Part(kind="pivot")], [Part(), Part(fails="nope")]]),
    "a child past its pivot is not undone": Plan(
        generations=[[Part(kind="child", branches=[[Part(), Part(kind="pivot"), Part()]]), Part(fails="nope")]]
    ),
    "a deadline reaches every child": Plan(
        generations=[[Part(kind="parallel", branches=[[_STOPPED], [_STOPPED], [Part()]])]], deadline=True
    ),
    "a child does not outlive a caught deadline": Plan(
        generations=[[Part(), Part(kind="try", branches=[[_STOPPED]]), Part()]], deadline=True
    ),
    "a deadline reaches every branch": Plan(
        generations=[[Part(kind="gather", branches=[[Part(), _OVERDUE], [Part(), _OVERDUE]])]],
        is_async=True,
        deadline=True,
    ),
    "a sleep ends beside an activity": Plan(
        generations=[[Part(kind="gather", branches=[[Part(kind="sleep"), Part()], [Part()]])]], is_async=True
    ),
    "a base exception is a failure": Plan(
        generations=[[Part(), Part(kind="try", branches=[[Part(fails="base")]]), Part(fails="base")]]
    ),
    "StopIteration is a failure in an async flow": Plan(
        generations=[[Part(), Part(kind="try", branches=[[Part(fails="stop")]]), Part(fails="stop")]], is_async=True
    ),
    "sys.exit in a savepoint undoes nothing, and parks": Plan(
        generations=[[Part(), Part(kind="savepoint", branches=[[Part(), _EXIT]]), Part()]]
    ),
}


@pytest.mark.parametrize("which", KNOWN)
def test_a_known_plan_ends_as_it_says(app: aft.Aft, which: str, tmp_path: Path) -> None:
    plan_checks.execute(app, KNOWN[which], tmp_path / secrets.token_hex(6))
