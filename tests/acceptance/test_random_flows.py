"""Whatever fails, however often: a run ends completed, or with exactly what it did undone in reverse order."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import aft
from tests.setups import Setup

#: What happened to a run's effects, by plan: +n for an effect, -n for its undo.
effects: dict[str, list[int]] = defaultdict(list)
#: Failures still to come, by (plan, function, step).
left: dict[tuple[str, str, int], int] = {}


class Step(BaseModel):
    """A step: how often it and its undo fail for a while, and whether it fails for good in the end."""

    number: int
    busy: int = 0
    fatal: bool = False
    undo_busy: int = 0
    under: list[Step] = []  # a savepoint instead of an activity
    caught: bool = False


class Nope(Exception):
    """For good."""


def fail_for_a_while(plan: str, what: str, number: int, times: int) -> None:
    remaining = left.setdefault((plan, what, number), times)
    if remaining:
        left[plan, what, number] = remaining - 1
        raise ConnectionError("busy")


def revert(plan: str, step: Step, result: int) -> None:
    fail_for_a_while(plan, "revert", step.number, step.undo_busy)
    effects[plan].append(-result)


@aft.compensate_with(revert)
@aft.activity(levels=[aft.Level("1ms", tries=3)], unrecoverable=(Nope,))
def act(plan: str, step: Step) -> int:
    fail_for_a_while(plan, "act", step.number, step.busy)
    if step.fatal:
        raise Nope(step.number)
    effects[plan].append(step.number)
    return step.number


@aft.flow
def random_flow(plan: str, steps: list[Step]) -> str:
    walk(plan, steps)
    return "done"


def walk(plan: str, steps: list[Step]) -> None:
    for step in steps:
        if not step.under:
            act(plan, step)
            continue
        try:
            with aft.savepoint():
                walk(plan, step.under)
        except Nope:
            if not step.caught:
                raise


def expected(steps: list[Step], done: list[int]) -> None:
    """What a run without crashes and delays would do: the same in plain Python."""
    for step in steps:
        if not step.under:
            if step.fatal:
                raise Nope(step.number)
            done.append(step.number)
            continue
        mark = len(done)
        try:
            expected(step.under, done)
        except Nope:
            standing = _standing(done[mark:])
            done.extend(-number for number in reversed(standing))
            if not step.caught:
                raise


def _standing(done: list[int]) -> list[int]:
    return [number for number in done if number > 0 and -number not in done]


def numbered(steps: list[Step], count: Iterator[int]) -> list[Step]:
    return [step.model_copy(update={"number": next(count), "under": numbered(step.under, count)}) for step in steps]


plain = st.builds(
    Step,
    number=st.just(0),
    busy=st.sampled_from([0, 0, 0, 1, 3]),
    fatal=st.sampled_from([False, False, False, True]),
    undo_busy=st.sampled_from([0, 0, 1]),
)
trees = st.recursive(
    plain,
    lambda inner: st.builds(
        Step, number=st.just(0), under=st.lists(inner, min_size=1, max_size=3), caught=st.booleans()
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[aft.Aft]:
    folder: Path = tmp_path_factory.mktemp("random")
    setup = Setup("sqlite", f"sqlite:///{folder / 'aft.db'}", "embedded")
    made = setup.app()
    with made.dispatcher(concurrency=4):
        yield made
    setup.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(trees, min_size=1, max_size=5))
def test_a_run_completes_or_is_exactly_undone(app: aft.Aft, steps: list[Step]) -> None:
    steps = numbered(steps, iter(range(1, 1000)))
    plan = secrets.token_hex(6)
    should: list[int] = []
    try:
        expected(steps, should)
        status = "completed"
    except Nope:
        should.extend(-number for number in reversed(_standing(should)))
        status = "compensated"
    run = app.submit(random_flow, plan, steps)
    try:
        run.result(60)
    except aft.FlowCompensated:
        pass
    assert run.status == status
    assert effects[plan] == should
