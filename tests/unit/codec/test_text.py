"""Claims about the documents that aft stores for itself: what was written before is read, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from aft.app.views.health import AbandonedCall, AbandonedCalls
from aft.ids import StepPath
from aft.rules.trees.choose import AskedTree, RuleChoice
from aft.runs import waits
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.waits import Wait, WaitKind

AT = datetime(2024, 1, 1, 3, 4, 5, 6, tzinfo=UTC)
#: As earlier versions wrote them, with what they are.
STORED: list[tuple[Callable[[Any], Any], str, Any]] = [
    (
        waits.decode,
        '[{"path": "2.1", "kind": "signal", "name": "paß", "since": "2024-01-01T03:04:05.000006+00:00", "until": null},'
        ' {"path": "3", "kind": "sleep", "name": "", "since": "2024-01-01T03:04:05.000006+00:00",'
        ' "until": "2024-01-01T03:04:05.000006+00:00"}]',
        (Wait(StepPath("2.1"), WaitKind.SIGNAL, "paß", AT), Wait(StepPath("3"), WaitKind.SLEEP, "", AT, AT)),
    ),
    (
        Ruling.decode,
        '{"do": "complete", "args": {"a": {"$aft": "date", "v": "2024-01-01"}}, '
        '"result": [[1.5, 123456789012345678901234567890, NaN]], "why": "so"}',
        None,
    ),
    (Ruling.decode, '{"do": null, "args": null, "result": [], "why": ""}', Ruling()),
    (
        RuleChoice.decode,
        '{"on": "fault", "exlet": "park", "node": 3, "condition": "true", "asked": [{"flow": "*", "activity": "*", '
        '"revision": 2, "steps": [[1, true, null], [3, false, "why"]]}], "facts": {"run.args": {"n": 1}}, '
        '"warnings": ["w"]}',
        RuleChoice(
            "fault",
            "park",
            3,
            "true",
            [AskedTree("*", "*", 2, [(1, True, None), (3, False, "why")])],
            {"run.args": {"n": 1}},
            ["w"],
        ),
    ),
    (
        AbandonedCalls.read,
        '{"count": 2, "most": 5, "oldest": [{"run": "r", "path": "1", "activity": "a", '
        '"since": "2024-01-01T03:04:05.000006+00:00"}]}',
        AbandonedCalls(2, 5, (AbandonedCall("r", "1", "a", AT),)),
    ),
]


@pytest.mark.parametrize(("read", "text", "value"), STORED)
def test_what_earlier_versions_wrote_is_read(read: Callable[[Any], Any], text: str, value: Any) -> None:
    assert value is None or read(text) == value


def test_values_in_a_ruling_are_read_exactly() -> None:
    _, text, _ = STORED[1]
    read = Ruling.decode(text)
    assert (read.do, read.args) == (RulingAction.COMPLETE, {"a": {"$aft": "date", "v": "2024-01-01"}})
    ((fraction, large, nan),) = read.result
    assert (fraction, large, nan != nan) == (1.5, 123456789012345678901234567890, True)


def test_what_is_written_is_what_earlier_versions_wrote() -> None:
    assert waits.encode(STORED[0][2]) == STORED[0][1]
    assert waits.encode(()) is None
    assert Ruling().encode() == STORED[2][1]
    assert STORED[3][2].encode() == STORED[3][1]


@pytest.mark.parametrize(
    "text", ["{", "5", "null", "[{}]", '"a"', "[" * 100_000, '[{"path": 5}]', '{"do": "x", "on": 1}']
)
def test_what_was_spoilt_raises_value_error(text: str) -> None:
    for read in (waits.decode, Ruling.decode, RuleChoice.decode):
        with pytest.raises(ValueError, match=": "):
            read(text)
    assert AbandonedCalls.read(text) == AbandonedCalls()


def test_a_refusal_names_the_part_and_not_its_value() -> None:
    with pytest.raises(ValueError, match=r"^0\.kind: Input should be 'signal', 'sleep', 'child' or 'fault'$"):
        waits.decode('[{"path": "1", "kind": "secret", "name": "n", "since": "2024-01-01T00:00:00+00:00"}]')
