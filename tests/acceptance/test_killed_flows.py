"""Random flows end as their plans say though their processes are killed, and others go on with other hashes.

Plans are drawn as in ``test_random_flows``, and executed by a dispatcher in a process of its own. Activities,
compensators and the flow's own code kill it (SIGKILL), each once; the next process has another PYTHONHASHSEED, so that
every set of texts or things has another order there. A process takes its time to start: few examples, several plans in
each. To hunt, draw many others:

    AFT_TEST_EXAMPLES=100 nice .venv/bin/pytest tests/acceptance/test_killed_flows.py -k sqlite
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

import aft
from aft.runs.states import Status
from tests.acceptance import plans as flows
from tests.acceptance.commands import PATIENCE
from tests.acceptance.plan_checks import Check, Helper, describe, has_pivot, submit
from tests.acceptance.plans import Part, Plan, Thing, everything, prepare
from tests.acceptance.test_random_flows import acts, bounded, plans
from tests.conftest import make_setup
from tests.setups import ENDS, Setup

_SETS = ["given texts", "given things", "returned texts", "returned things"]
#: Parts in which a list of parts is gone through one after the other.
_SEQUENCES = ("savepoint", "try", "child", "gather")


def _sets() -> st.SearchStrategy[Part]:
    return st.builds(
        Part,
        kind=st.just("set"),
        of=st.sampled_from(_SETS),
        branches=st.lists(st.lists(acts(), min_size=3, max_size=5), min_size=1, max_size=1),
    )


def _unordered() -> st.SearchStrategy[Part]:
    """A set of the flow's own making: its run is parked, or by chance the order is the same."""
    return st.builds(
        Part, kind=st.just("unordered"), most=st.integers(2, 4), busy=st.integers(0, 4), caught=st.booleans()
    )


def _sequences(generations: Sequence[list[Part]]) -> Iterator[list[Part]]:
    """The lists of parts that are gone through one after the other."""
    yield from generations
    for part in everything(generations):
        if part.kind in _SEQUENCES:
            yield from part.branches


@st.composite
def killed_plans(draw: st.DrawFn) -> Plan:
    """Plans with sets in them, and with moments at which their process is killed."""
    drawn = draw(plans(is_async=draw(st.booleans()))).model_copy(update={"fates": {}})
    plan = Plan.model_validate_json(drawn.model_dump_json())  # no list is in it twice
    insertions = [_sets(), _sets(), st.just(Part(kind="die")), _unordered()]
    for part in draw(st.lists(st.one_of(*insertions), max_size=2)):
        parts = draw(st.sampled_from([*_sequences(plan.generations)]))
        parts.insert(draw(st.integers(0, len(parts))), part)
    found = [part for part in everything(plan.generations) if part.kind == "act"]
    for part in found:
        part.texts, part.things = set("abcd"), {Thing(name) for name in "abcd"}
    for part in draw(st.lists(st.sampled_from(found), min_size=1, max_size=2)) if found else []:
        setattr(part, draw(st.sampled_from(["dies", "dies", "undo_dies"])), draw(st.sampled_from(["before", "after"])))
    return plan


class Processes:
    """A dispatcher's process; when it was killed, another one, whose texts have other hashes."""

    def __init__(self, setup: Setup, log: Path) -> None:
        self.environ = {**os.environ, **setup.environ(), "PYTHONPATH": str(Path.cwd()), "AFT_GRACE": "1s"}
        self.log = log
        self.deaths = 0
        self.process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """See to it that there is one."""
        if self.process is not None and (code := self.process.poll()) is None:
            return
        if self.process is not None:
            assert code == -signal.SIGKILL, f"the dispatcher ended with {code}:\n{self.log.read_text()[-5000:]}"
            self.deaths += 1
        command = [sys.executable, "-m", "aft", "dispatcher", flows.__name__, "--log-level", "warning"]
        with self.log.open("a") as log:
            seed = {"PYTHONHASHSEED": str(self.deaths + 1)}
            self.process = subprocess.Popen(command, env=self.environ | seed, stdout=log, stderr=log)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE)


@dataclass
class Place:
    app: aft.Aft
    processes: Processes


@pytest.fixture(scope="module", params=ENDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("killed")
    setup = make_setup(request.param, request, folder)
    app = setup.app()
    with app.store.write() as connection:
        connection.execute(text("DROP TABLE IF EXISTS plan_effects"))
        connection.execute(text("CREATE TABLE plan_effects (id VARCHAR(200) PRIMARY KEY)"))
    processes = Processes(setup, folder / "log")
    yield Place(app, processes)
    processes.stop()
    with app.store.write() as connection:
        connection.execute(text("DROP TABLE plan_effects"))
    setup.close()


class Case:
    """One plan under way."""

    def __init__(self, app: aft.Aft, plan: Plan, folder: Path) -> None:
        self.app = app
        self.plan = prepare(plan)
        self.name = str(folder / secrets.token_hex(6))
        self.run = submit(app, self.plan, self.name)
        self.helper = Helper(app, self.plan, self.name, self.run)
        self.undoing = False

    def goes_on(self) -> bool:
        """Help where somebody has to; tells whether anything may still happen."""
        if self.helper.help(undone=self.undoing):
            return True
        if self.plan.undone and not self.undoing and self.run.status is Status.COMPLETED and not has_pivot(self.plan):
            self.run.compensate()
            self.undoing = True
            return True
        return False

    def check(self, deaths: int) -> None:
        try:
            Check(self.app, self.plan, self.name, self.run, deaths).all()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def describe(self) -> str:
        return f"{self.plan!r}\n{describe(self.app, self.name, self.run)}"


def execute(place: Place, drawn: Sequence[Plan], folder: Path) -> None:
    """Let plans come to their end, however often their process is killed, and check what must be true then."""
    cases = [Case(place.app, plan, folder) for plan in drawn]
    before, limit = place.processes.deaths, time.monotonic() + PATIENCE
    under_way = cases
    while under_way := [case for case in under_way if case.goes_on()]:
        place.processes.keep()
        if time.monotonic() > limit:
            pytest.fail("\n".join([f"not ended within {PATIENCE} s:", *(case.describe() for case in under_way)]))
        time.sleep(0.1)
    for case in cases:
        case.check(place.processes.deaths - before)
        Path(case.name).unlink(missing_ok=True)


@bounded(2)
@given(drawn=st.lists(killed_plans(), min_size=2, max_size=2))
def test_flows_whose_processes_are_killed_end_as_their_plans_say(
    place: Place, drawn: list[Plan], tmp_path: Path
) -> None:
    execute(place, drawn, tmp_path)


def _all_sets(*last: Part) -> list[Part]:
    """Sets of every origin, one after the other."""
    return [Part.model_validate({"kind": "set", "of": of, "branches": [[Part(), Part(), *last]]}) for of in _SETS]


def test_sets_have_the_same_order_in_every_process(place: Place, tmp_path: Path) -> None:
    child = Part(kind="child", branches=[[*_all_sets(Part(), Part()), Part(dies="after")]])
    execute(
        place, [Plan(generations=[[*_all_sets(), child, *_all_sets(), Part(dies="before")]], undone=True)], tmp_path
    )
