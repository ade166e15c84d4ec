"""Claims about ladders: what follows the nth failure, and how a ladder is declared, spelled and stored."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aft.recovery.levels import MOST_LEVELS, MOST_TRIES, Ladder, LadderPosition, Level, read_ladder

levels = st.builds(
    Level,
    st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=3000)),
    st.integers(min_value=1, max_value=20),
)
ladders = st.builds(lambda found: Ladder(tuple(found)), st.lists(levels, max_size=6))


def test_a_level_reads_texts_seconds_and_timedeltas_alike() -> None:
    assert Level("5s", tries=3) == Level(5, tries=3) == Level(timedelta(seconds=5), tries=3)


def test_a_level_is_one_try_unless_told() -> None:
    assert Level("10m").tries == 1


def test_a_level_is_spelled_as_it_is_written() -> None:
    assert repr(Level("5s", tries=3)) == "Level('5s*3')"
    assert repr(Level("5s")) == "Level('5s')"


def test_equal_levels_are_one_in_a_set() -> None:
    assert len({Level("60s"), Level("1m")}) == 1


def test_a_level_may_wait_not_at_all() -> None:
    assert Level(0).wait == timedelta(0)


@pytest.mark.parametrize("wait", [0.0004, "0.5ms", -1, "soon", "", True, None, float("nan"), timedelta(days=-1)])
def test_a_wait_that_is_none_is_refused(wait: Any) -> None:
    with pytest.raises(ValueError, match=r"duration|wait"):
        Level(wait)


@pytest.mark.parametrize("tries", [0, -1, True, 1.0, "3", MOST_TRIES + 1])
def test_tries_are_a_whole_number_from_one(tries: Any) -> None:
    with pytest.raises(ValueError, match="tries="):
        Level("5s", tries=tries)


def test_a_bare_wait_is_a_level_of_one_try() -> None:
    found = Ladder.of([Level("5s", tries=3), "1m", 600, timedelta(hours=1)])
    assert found.levels == (Level("5s", tries=3), Level("1m"), Level("10m"), Level("1h"))


@pytest.mark.parametrize("wrong", [b"5s", 5, None, {"5s"}])
def test_what_is_no_list_of_levels_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="list of levels"):
        Ladder.of(wrong)


def test_a_ladder_has_at_most_so_many_levels() -> None:
    Ladder.of(["5s"] * MOST_LEVELS)
    with pytest.raises(ValueError, match="33 levels"):
        Ladder.of(["5s"] * (MOST_LEVELS + 1))


def test_settings_spell_a_ladder_in_one_line() -> None:
    assert Ladder.parse("5s*3, 1m*2,10m") == Ladder.of([Level("5s", tries=3), Level("1m", tries=2), "10m"])


@pytest.mark.parametrize("text", ["", "  ", "none", "None"])
def test_no_levels_can_be_said(text: str) -> None:
    assert Ladder.parse(text) == Ladder()


@pytest.mark.parametrize("text", ["5s*", "5s*x", "5s*-1", "5s*0", "*3", "5s,,1m", "5s*3*2", "5s 1m", "5s*٣", ","])
def test_a_malformed_setting_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a level"):
        Ladder.parse(text)


def test_failures_climb_the_levels_in_order() -> None:
    ladder = Ladder.parse("5s*2, 1m")
    five, minute = timedelta(seconds=5), timedelta(minutes=1)
    assert [ladder.position_after(n) for n in (1, 2, 3, 4)] == [
        LadderPosition(1, 1, five),
        LadderPosition(1, 2, five),
        LadderPosition(2, 1, minute),
        None,
    ]


def test_without_levels_the_first_failure_is_final() -> None:
    assert Ladder().position_after(1) is None


@pytest.mark.parametrize("failures", [0, -1, True, 1.0])
def test_what_has_not_failed_has_no_rung(failures: Any) -> None:
    with pytest.raises(ValueError, match="failures="):
        Ladder.parse("5s").position_after(failures)


def test_equal_waits_share_one_queue() -> None:
    assert Ladder.parse("60s*2, 1m, 5s").waits == {timedelta(minutes=1), timedelta(seconds=5)}


@given(ladders)
def test_there_are_as_many_rungs_as_tries_and_then_none(ladder: Ladder) -> None:
    total = ladder.total_tries
    rungs = [ladder.position_after(n) for n in range(1, total + 1)]
    assert None not in rungs
    assert ladder.position_after(total + 1) is None
    per_level = [sum(1 for rung in rungs if rung and rung.level == n + 1) for n in range(len(ladder.levels))]
    assert per_level == [level.tries for level in ladder.levels]


@given(ladders)
def test_a_stored_ladder_comes_back(ladder: Ladder) -> None:
    assert read_ladder(ladder.stored) == ladder


@given(ladders)
def test_a_spelled_ladder_comes_back(ladder: Ladder) -> None:
    spelled = str(ladder)
    assert Ladder.parse(spelled) == ladder


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "5s",
        {},
        [5],
        [[5]],
        [[5, 1, 1]],
        [["5s", 1]],
        [[5, 0]],
        [[-1, 1]],
        [[True, 1]],
        [[1.0, 1]],
        [[10**30, 1]],
        [[1, 1]] * (MOST_LEVELS + 1),
    ],
)
def test_a_malformed_stored_ladder_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError):
        read_ladder(json.dumps(stored))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_reading_a_stored_ladder_raises_nothing_but_value_error(stored: Any) -> None:
    try:
        assert isinstance(read_ladder(json.dumps(stored)), Ladder)
    except ValueError:
        pass


@given(st.text(alphabet="0123456789smhd*, .x", max_size=20))
def test_reading_a_setting_raises_nothing_but_value_error(text: str) -> None:
    try:
        assert isinstance(Ladder.parse(text), Ladder)
    except ValueError:
        pass


def test_a_level_is_spelled_and_read_in_one_way_everywhere() -> None:
    ladder = Ladder.parse("5s*3, 1m, 1h30m*2")
    assert ladder == Ladder.of(["5s*3", "1m", "1h30m * 2"]) == Ladder.of("5s*3, 1m, 1h30m*2")
    assert ladder == Ladder.of([Level("5s*3"), Level("1m"), Level("1h30m", tries=2)])
    assert str(ladder) == "5s*3, 1m, 1h30m*2"
    assert [str(level) for level in ladder.levels] == ["5s*3", "1m", "1h30m*2"]
    assert str(Ladder()) == "none"
    assert Ladder.parse(str(Ladder())) == Ladder()


def test_who_says_twice_how_many_tries_is_told() -> None:
    with pytest.raises(ValueError, match=r"'5s\*3' with tries=2 says twice how many tries"):
        Level("5s*3", tries=2)


@pytest.mark.parametrize("text", ["5s*", "5s*x", "*3", "5s*0", "5s*3*2", "5s*-1"])
def test_a_text_that_is_no_level_is_refused_wherever_it_stands(text: str) -> None:
    for give in (lambda: Level(text), lambda: Ladder.of([text]), lambda: Ladder.of(text), lambda: Ladder.parse(text)):
        with pytest.raises(ValueError, match=r"level|duration"):
            give()
