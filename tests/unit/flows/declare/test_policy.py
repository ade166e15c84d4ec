"""Claims about what an activity declares of an exception: the nearest class wins, then the functions."""

from __future__ import annotations

from typing import Any

import pytest

from aft.fault import Recoverability
from aft.flows.declare.policy import Policy

YES, NO = Recoverability.RECOVERABLE, Recoverability.UNRECOVERABLE


class Busy(ConnectionError):
    """A subclass of a subclass of OSError."""


class BusyForEver(Busy):
    """The most derived one."""


def test_what_declares_nothing_has_no_opinion() -> None:
    assert Policy().recoverability_of(ValueError()) is None


@pytest.mark.parametrize(
    ("recoverable", "unrecoverable", "answer"),
    [
        ((OSError,), (), YES),
        (OSError, (), YES),
        ((), (OSError,), NO),
        ((ValueError,), (KeyError,), None),
        ((OSError,), (Busy,), NO),
        ((Busy,), (OSError,), YES),
        ((ConnectionError,), (OSError, BusyForEver), NO),
        ((BusyForEver,), (Exception,), YES),
        ((Exception,), (Exception,), NO),
    ],
)
def test_the_nearest_class_along_the_bases_wins(
    recoverable: Any, unrecoverable: Any, answer: Recoverability | None
) -> None:
    policy = Policy(recoverable=recoverable, unrecoverable=unrecoverable)
    assert policy.recoverability_of(BusyForEver()) is answer


def test_a_function_looks_at_the_exception() -> None:
    policy = Policy(recoverable=lambda error: "later" in str(error))
    assert policy.recoverability_of(ValueError("try later")) is YES
    assert policy.recoverability_of(ValueError("never")) is None


def test_where_both_functions_agree_it_is_not_tried_again() -> None:
    assert (
        Policy(recoverable=lambda error: True, unrecoverable=lambda error: True).recoverability_of(ValueError()) is NO
    )


def test_a_class_comes_before_a_function() -> None:
    assert Policy(recoverable=(ValueError,), unrecoverable=lambda error: True).recoverability_of(ValueError()) is YES


@pytest.mark.parametrize("option", ["recoverable", "unrecoverable"])
def test_a_function_that_fails_has_no_opinion(option: str) -> None:
    def broken(error: BaseException) -> bool:
        raise RuntimeError("no idea")

    options: dict[str, Any] = {option: broken}
    assert Policy(**options).recoverability_of(ValueError()) is None


def test_a_truthy_answer_is_an_answer() -> None:
    policy = Policy(recoverable=lambda error: error.args)  # type: ignore[arg-type, return-value]
    assert policy.recoverability_of(ValueError("x")) is YES
    assert policy.recoverability_of(ValueError()) is None
