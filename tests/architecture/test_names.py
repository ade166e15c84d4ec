"""Modules are called by what they are, rooms stay small, and unit tests lie where what they test lies."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "aft").rglob("*.py") if path.stem not in ("__init__", "__main__"))
ROOMS = sorted({path.parent for path in FILES})
#: Modules of one folder, after which a reader does not find one any more.
MOST_MODULES = 12
#: Names that say nothing to a reader of the field, or that another word has taken.
BANNED = {
    *("vigil", "whole", "obedience", "standing", "belated", "lateness", "held", "kept", "orphanage", "leaving", "asks"),
    *("writing", "ruled", "settling", "branching", "deeds", "beginnings", "holdings", "plain", "carrying", "judging"),
    *("choosing", "deciding", "door", "keeper", "given", "book", "shelf", "sheets", "hindsight", "questions", "apart"),
    *("moments", "turns", "signs", "knowledge", "answers", "posting", "mailbox", "tools", "steps", "landings"),
}
#: Endings of gerunds and participles. A module is a place or a verb, not something that goes on.
ENDINGS = ("ing", "ed")
#: The word of the field.
NOT_MEANT = {"signing"}
#: Unit tests of what lies outside of aft/.
OUTSIDE = ("bench", "examples")
UNIT_TESTS = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
#: Questions and epigrams are no contracts.
_RIDDLES = ("?", "…")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_is_a_place_or_the_verb_of_what_it_does(path: Path) -> None:
    assert path.stem not in BANNED
    assert path.stem in NOT_MEANT or not path.stem.endswith(ENDINGS)


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_no_room_is_so_full_that_nothing_is_found_in_it(room: Path) -> None:
    modules = [path.stem for path in room.glob("*.py") if path.stem not in ("__init__", "__main__")]
    assert len(modules) <= MOST_MODULES, modules


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_room_says_in_one_sentence_what_lives_there(room: Path) -> None:
    told = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert told
    assert not told.splitlines()[0].endswith(_RIDDLES)


@pytest.mark.parametrize("path", UNIT_TESTS, ids=name_of)
def test_a_unit_test_lies_where_its_module_lies(path: Path) -> None:
    tested = path.relative_to(ROOT / "tests" / "unit").parent / path.stem.removeprefix("test_")
    if tested.parts[0] not in OUTSIDE:
        place = ROOT / "aft" / tested
        assert place.with_suffix(".py").exists() or (place / "__init__.py").exists()
