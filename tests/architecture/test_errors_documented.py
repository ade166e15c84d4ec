"""The tree at the top of errors.py is a claim: it draws every class, where it belongs."""

from __future__ import annotations

import inspect
import re

import pytest

import aft
from aft import errors

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__]


def drawn() -> dict[str, str]:
    """The classes of the tree, each with the one that it hangs under."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        shown = re.match(r"^([ │├└─]*)([A-Z]\w+)(?:  |$)", line)
        if shown is None:
            continue
        depth, name = len(shown[1]), shown[2]
        while above and above[-1][0] >= depth:
            above.pop()
        if above:
            found[name] = above[-1][1]
        above.append((depth, name))
    return found


def test_the_tree_draws_every_class_under_its_base() -> None:
    assert drawn() == {each.__name__: each.__bases__[0].__name__ for each in CLASSES}


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_says_when_it_is_raised(error: type[Exception]) -> None:
    assert re.match(r"(Raised (when|by|at|for) |Base class |Raise it )", inspect.getdoc(error) or "")


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_can_be_caught_from_the_outside(error: type[Exception]) -> None:
    assert getattr(aft, error.__name__) is error


def test_everything_that_aft_raises_has_one_base() -> None:
    assert {each for each in CLASSES if not issubclass(each, errors.AftError)} == {
        errors.Recoverable,
        errors.ResourceUnavailable,
        errors.Unrecoverable,
    }
