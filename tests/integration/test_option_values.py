"""What is given to an option and is none of its values is refused where it is given, and says what would be right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import aft
from tests.setups import migrate


@aft.flow
def counted(number: int) -> int:
    return number


@aft.activity(name="options_fails", levels=["1h"], recoverable=(OSError,))
def fails() -> None:
    raise OSError("away")


@aft.flow(name="options_recovering")
def recovering() -> None:
    fails()


@pytest.fixture
def app(tmp_path: Path) -> aft.Aft:
    url = f"sqlite:///{tmp_path / 'aft.db'}"
    migrate(url)
    return aft.Aft(url)


def schedule(app: aft.Aft, **given: Any) -> None:
    app.schedule("nightly", counted.call(1), every="1h", **given)


def make_activity(**given: Any) -> None:
    @aft.activity(**given)
    def never_declared() -> None: ...


MISTAKES: list[tuple[Callable[[aft.Aft], Any], str]] = [
    (
        lambda app: counted.options(key="schedule/nightly/x"),
        "key='schedule/nightly/x' begins as the keys of schedules'",
    ),
    (lambda app: schedule(app, overlap="no"), "schedule 'nightly': overlap='no' must be True or False"),
    (lambda app: schedule(app, pinned=0), "schedule 'nightly': pinned=0 must be True or False"),
    (lambda app: make_activity(transactional="no"), "transactional='no' must be True or False"),
    (lambda app: app.dispatcher(concurrency=0), "concurrency=0 must be a whole number from 1 to 1000"),
    (lambda app: app.dispatcher(concurrency=True), "concurrency=True must be a whole number from 1 to 1000"),
    (lambda app: app.runs(limit=-1), "limit=-1 must be a whole number from 0"),
    (lambda app: app.faults(limit="5"), "limit='5' must be a whole number from 0"),  # type: ignore[arg-type]
    (lambda app: app.runs(overdue="no"), "overdue='no' must be True or False"),  # type: ignore[arg-type]
    (lambda app: app.runs(priority="high"), "priority='high' must be a whole number"),  # type: ignore[arg-type]
    (lambda app: app.runs(owner=7), "owner=7 must be a text"),  # type: ignore[arg-type]
    (lambda app: app.runs(flow=len), "flow=.* must be a flow or its name"),  # type: ignore[arg-type]
    (lambda app: app.start(counted, 1).cancel(compensate="no"), "compensate='no' must be"),  # type: ignore[arg-type]
    (lambda app: app.start(counted, 1).compensate(dry_run="no"), "dry_run='no' must be"),  # type: ignore[arg-type]
    (lambda app: app.start(counted, 1).result(timeout="soon"), "timeout: 'soon' is not a duration"),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES, ids=[told for _, told in MISTAKES])
def test_an_option_of_the_wrong_kind_is_refused(app: aft.Aft, mistake: Callable[[aft.Aft], Any], told: str) -> None:
    with pytest.raises(aft.DefinitionError, match=told):
        mistake(app)
    assert app.schedules() == []


def test_runs_are_found_by_their_flow_or_its_name(app: aft.Aft) -> None:
    made = app.start(counted, 1)
    assert [run.id for run in app.runs(flow=counted)] == [made.id] == [run.id for run in app.runs(flow="counted")]


@pytest.mark.parametrize("timeout", ["30s", timedelta(seconds=30), 30, 30.0, None])
def test_how_long_a_result_is_waited_for_is_written_as_any_length_of_time(app: aft.Aft, timeout: Any) -> None:
    assert app.start(counted, 7).result(timeout=timeout) == 7


def test_no_time_at_all_is_a_look(app: aft.Aft) -> None:
    assert app.start(counted, 7).result(0) == 7
    with pytest.raises(TimeoutError, match=r"within 0 s; it is running.*; no live worker knows flow counted@1"):
        app.submit(counted, 7).result("0s")


def test_who_does_not_wait_for_the_warning_is_told_in_the_end_that_nobody_goes_on(app: aft.Aft) -> None:
    run = app.start(recovering)
    with pytest.raises(TimeoutError, match=r"it is recovering.*; no live worker knows flow options_recovering@1"):
        run.result(0.1)
