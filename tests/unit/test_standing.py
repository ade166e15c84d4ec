"""Claims about steps that an earlier owner may have begun."""

from __future__ import annotations

from typing import Any, cast

from aft.flows.standing import Standing
from aft.ids import StepPath

FIRST, SECOND, THIRD = (StepPath(f"1.{number}") for number in (1, 2, 3))


def test_each_of_several_side_by_side_stays_in_doubt_until_it_has_its_own_outcome() -> None:
    """Also if the first has it before the second is begun."""
    nobody = cast(Any, None)
    standing = Standing(nobody, nobody, None)
    standing.unseen = True
    standing.suspect([FIRST, SECOND])
    standing.begin_branch()
    standing.passed(FIRST)
    assert [standing.is_unseen(path) for path in (FIRST, SECOND, THIRD)] == [False, True, False]
    assert standing.is_doubtful(SECOND)
    assert standing.in_doubt
    standing.failed(SECOND, cast(Any, object()), None)
    assert not standing.is_unseen(SECOND)
    assert not standing.in_doubt
