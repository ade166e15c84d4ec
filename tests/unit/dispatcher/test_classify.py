"""Claims about classifying: the exception's own word, then the declaration, then aft's knowledge."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from aft.dispatcher.classify import classify
from aft.fault import Fault, FaultKind, Recoverability
from tests.faults import make_fault

YES, NO = Recoverability.RECOVERABLE, Recoverability.UNRECOVERABLE
PASSING = ("builtins.TimeoutError", "builtins.OSError", "builtins.Exception")
LASTING = ("shop.OutOfStock", "builtins.Exception")


def a_fault(lineage: tuple[str, ...] = LASTING) -> Fault:
    return make_fault(type=lineage[0], lineage=lineage)


@pytest.mark.parametrize("declared", [None, YES, NO])
@pytest.mark.parametrize("said", [YES, NO])
@pytest.mark.parametrize("lineage", [PASSING, LASTING])
def test_what_the_exception_says_of_itself_comes_first(
    said: Recoverability, declared: Recoverability | None, lineage: tuple[str, ...]
) -> None:
    found = classify(replace(a_fault(lineage), own_answer=said, declared_answer=declared))
    assert found.recoverable == (said is YES)
    assert found.reason == f"{lineage[0].rpartition('.')[2]} says so itself, being aft.{said.capitalize()}"


@pytest.mark.parametrize("declared", [YES, NO])
@pytest.mark.parametrize("lineage", [PASSING, LASTING])
def test_the_declaration_comes_before_what_aft_knows(declared: Recoverability, lineage: tuple[str, ...]) -> None:
    found = classify(replace(a_fault(lineage), declared_answer=declared, http_status=503 if declared is NO else 404))
    assert found.recoverable == (declared is YES)
    assert found.reason == f"'charge' declares {lineage[0].rpartition('.')[2]} {declared.value}"


@pytest.mark.parametrize(("lineage", "passes"), [(PASSING, True), (LASTING, False), ((), False)])
def test_where_nobody_says_anything_aft_knows_or_does_not(lineage: tuple[str, ...], passes: bool) -> None:
    assert classify(replace(a_fault(), lineage=lineage)).recoverable is passes


@pytest.mark.parametrize(("status", "passes"), [(429, True), (503, True), (404, False), (500, False)])
def test_the_status_of_an_answer_is_part_of_that_knowledge(status: int, passes: bool) -> None:
    assert classify(replace(a_fault(), http_status=status)).recoverable is passes


def test_what_asks_for_time_is_thought_to_pass() -> None:
    assert classify(replace(a_fault(), http_status=500, after=timedelta(seconds=5))).recoverable


@pytest.mark.parametrize("said", [None, YES, NO])
def test_the_loss_of_a_worker_passes_whatever_the_row_says(said: Recoverability | None) -> None:
    found = classify(replace(a_fault(), kind=FaultKind.ABORT, own_answer=said, declared_answer=NO))
    assert found.recoverable
    assert found.reason == "its worker was lost; the run goes on elsewhere"
