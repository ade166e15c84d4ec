"""Whose turn is it? Orders go before other work, the urgent before the others, and nobody waits for ever."""

from __future__ import annotations

import aft
from aft.runs.states import Status
from tests.acceptance.agency import do
from tests.setups import Setup, eventually
from tests.world import apps, gates, ledger, shut


@aft.activity(name="turns_note")
def note(family: str, what: str) -> None:
    do(family, what)


@aft.flow(name="turns_plain")
def plain(family: str, what: str) -> str:
    if what == "waits":
        aft.wait_for("never")
    note(family, what)
    return what


@aft.activity(name="turns_renew")
def renew(family: str) -> None:
    """Begin another of the same kind: there is always one that is due."""
    if not gates[family].is_set():
        apps[family].submit(greedy.options(priority=1_000_000), family)


@aft.flow(name="turns_greedy")
def greedy(family: str) -> None:
    renew(family)


def test_an_order_is_carried_out_before_runs_that_were_waiting_when_it_was_given(setup: Setup, family: str) -> None:
    app = setup.app(grace=30.0)
    gate = shut(family, "first")
    with app.dispatcher(concurrency=1):
        held = app.submit(plain, family, "waits")
        eventually(lambda: held.status is Status.WAITING)
        others = [app.submit(plain, family, "first")]
        assert gate.reached.wait(60)
        others += [app.submit(plain, family, str(number)) for number in range(200)]
        held.cancel()
        gate.set()
        eventually(lambda: held.status is Status.COMPENSATED)
        done = len(ledger[family])
        for run in others:
            run.result(60)
    assert done < 100


def test_a_run_without_a_priority_has_its_turn_however_many_have_one(setup: Setup, family: str) -> None:
    app = apps[family] = setup.app()
    for _ in range(3):
        app.submit(greedy.options(priority=1_000_000), family)
    with app.dispatcher(concurrency=1):
        for number in range(10):
            assert app.submit(plain, family, str(number)).result(60) == str(number)
        gates[family].set()
        eventually(lambda: not [run for run in app.runs(flow="turns_greedy") if run.row.ended_as is None])
