"""Claims about states: every edge is listed, the ends are ends, and the document draws exactly this."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path

import pytest

from aft.runs.states import EDGES, ENDS, Status, allowed, sources

DOCUMENT = Path(__file__).parents[3] / "docs" / "states.md"

#: Where a run may go from each state, written down a second time.
EXPECTED = {
    "running": "waiting recovering compensating suspended parked completed cancelled",
    "waiting": "running recovering compensating suspended parked cancelled",
    "recovering": "running compensating suspended parked cancelled",
    "compensating": "compensated failed parked",
    "suspended": "running waiting recovering compensating parked cancelled",
    "parked": "running compensating recovering completed compensated failed cancelled",
    "completed": "compensating parked",
    "compensated": "parked failed",
    "failed": "parked",
    "cancelled": "parked",
}
PAIRS = list(itertools.product(Status, Status))


def test_the_edges_are_these() -> None:
    assert {start.value: {to.value for to in ends} for start, ends in EDGES.items()} == {
        start: set(ends.split()) for start, ends in EXPECTED.items()
    }


@pytest.mark.parametrize(("start", "to"), PAIRS)
def test_a_run_goes_along_edges_or_stays(start: Status, to: Status) -> None:
    assert allowed(start, to) is (start is to or to.value in EXPECTED[start.value].split())


@pytest.mark.parametrize("to", Status)
def test_the_sources_of_a_state_are_those_that_may_go_there(to: Status) -> None:
    assert set(sources(to)) == {start for start in Status if start is to or to in EDGES[start]}


def test_the_ends_are_four() -> None:
    assert {status.value for status in ENDS} == {"completed", "compensated", "failed", "cancelled"}
    assert {status for status in Status if status.ended} == ENDS


def test_an_end_becomes_another_only_when_a_person_lets_a_late_undo_go() -> None:
    assert [(start, to) for start in ENDS for to in EDGES[start] if to in ENDS] == [(Status.COMPENSATED, Status.FAILED)]


def test_only_a_completed_run_can_still_be_undone() -> None:
    assert [start for start in ENDS if Status.COMPENSATING in EDGES[start]] == [Status.COMPLETED]


def test_what_is_being_undone_never_goes_forward_again() -> None:
    assert not EDGES[Status.COMPENSATING] & {Status.RUNNING, Status.WAITING, Status.RECOVERING, Status.COMPLETED}


def test_every_state_can_be_reached_and_every_state_can_end() -> None:
    assert _reachable(Status.RUNNING) == set(Status)
    assert all(_reachable(status) & ENDS for status in Status)


def test_a_person_can_be_asked_from_every_state() -> None:
    assert set(sources(Status.PARKED)) == set(Status)


def test_the_document_holds_exactly_the_diagram() -> None:
    drawn = re.findall(r"```mermaid\n(.*?)\n```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    lines = ["stateDiagram-v2", "    [*] --> running"]
    lines += [f"    {start.value} --> {to.value}" for start in Status for to in Status if to in EDGES[start]]
    lines += [f"    {status.value} --> [*]" for status in Status if status.ended]
    assert drawn == ["\n".join(lines)]


def test_the_document_glosses_every_state_as_the_code_does() -> None:
    said = dict(re.findall(r'= "(\w+)"  #: (.+)', inspect.getsource(Status)))
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
    assert said.keys() == {status.value for status in Status}
    assert told == said


def _reachable(start: Status) -> set[Status]:
    found, left = {start}, [start]
    while left:
        new = EDGES[left.pop()] - found
        found |= new
        left += new
    return found
