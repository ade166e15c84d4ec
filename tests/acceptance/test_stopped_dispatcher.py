"""What a dispatcher says when it has stopped: which runs it left unfinished, and who goes on with them."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

import aft
from tests.acceptance.commands import PATIENCE, Dispatcher, until
from tests.setups import Setup, eventually

STOPSHOP = """
    from __future__ import annotations

    import time
    from pathlib import Path

    import aft


    @aft.activity
    def stop_step(name: str) -> str:
        Path(f"{name}-called").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        return name


    @aft.flow
    def stop_order() -> str:
        stop_step("first")
        return stop_step("second")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> aft.Flow[[], str]:
    """A flow of two steps, the first of which waits for a file ``go``."""
    (tmp_path / "stopshop.py").write_text(textwrap.dedent(STOPSHOP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stopshop", raising=False)
    found: aft.Flow[[], str] = __import__("stopshop").stop_order
    return found


def start(setup: Setup) -> Dispatcher:
    return Dispatcher("dispatcher", "stopshop", **setup.environ())


def stop_in_first_step(dispatcher: Dispatcher, here: Path) -> str:
    """Stop a dispatcher while it executes a run's first step, and return its last line."""
    until((here / "first-called").exists, "the first step is called")
    dispatcher.terminate()
    dispatcher.until_it_says("draining: 1 run is still going on")
    (here / "go").touch()
    assert dispatcher.status() == 0
    return dispatcher.said.splitlines()[-1]


def test_a_dispatcher_that_interrupts_a_run_names_it_and_says_that_nobody_goes_on_with_it(
    setup: Setup, shop: aft.Flow[[], str], tmp_path: Path
) -> None:
    app = setup.app()
    with start(setup) as dispatcher:
        dispatcher.until_it_says("ready")
        run = app.submit(shop)
        last = stop_in_first_step(dispatcher, tmp_path)
    assert last == (
        f"stopped; 1 run was interrupted between two steps, and no attempt counted: {run.id} (stop_order); "
        "no live dispatcher has stop_order@1: start one, which goes on with it"
    )
    assert not (tmp_path / "second-called").exists()
    with start(setup):
        assert eventually(lambda: run.status == "completed", within=PATIENCE)


def test_a_dispatcher_that_interrupts_a_run_says_that_another_one_goes_on_with_it(
    setup: Setup, shop: aft.Flow[[], str], tmp_path: Path
) -> None:
    app = setup.app()
    with start(setup) as first:
        first.until_it_says("ready")
        run = app.submit(shop)
        until((tmp_path / "first-called").exists, "the first step is called")
        with start(setup) as second:
            second.until_it_says("ready")
            last = stop_in_first_step(first, tmp_path)
            assert last.endswith(f"no attempt counted: {run.id} (stop_order); another dispatcher goes on with it")
            assert run.result(timeout=PATIENCE) == "second"


def test_a_dispatcher_without_a_run_says_that_it_interrupted_none(setup: Setup, shop: aft.Flow[[], str]) -> None:
    with start(setup) as dispatcher:
        dispatcher.until_it_says("ready")
        dispatcher.terminate()
        assert dispatcher.status() == 0
    assert dispatcher.said.splitlines()[-1] == "stopped; no run was interrupted"


ACTS = """
    import aft


    def untie(knot: str) -> None:
        open("untied", "w").close()


    @aft.compensate_with(untie)
    @aft.activity
    def tie(knot: str) -> str:
        return knot
"""
FLOWS = """
    import acts
    import aft


    @aft.flow
    def tie_knot() -> str:
        return acts.tie("bowline")
"""


def test_a_dispatcher_of_compensators_alone_undoes_runs(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("acts", ACTS), ("knots", FLOWS)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = setup.app()
    run = app.start(__import__("knots").tie_knot)
    assert run.result(PATIENCE) == "bowline"
    run.compensate()
    with Dispatcher("dispatcher", "acts", **setup.environ()) as dispatcher:
        dispatcher.until_it_says("flows        none: runs are only undone here")
        until((tmp_path / "untied").exists, "its knot is untied")
        until(lambda: run.status == "compensated", "it is undone")
