"""Claims about texts that users give: what can be stored, and what is refused where it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import aft
from aft.texts import find_unstorable, with_article


@pytest.mark.parametrize("text", ["", "publishing", "Größe 7 ✓", "a b", "emoji 😀", "no-break\u00a0space"])
def test_an_ordinary_text_can_be_stored(text: str) -> None:
    assert find_unstorable(text) is None


@pytest.mark.parametrize("text", ["a\x00b", "\x1b[31mred", "a\nb", "\x7f", "\x85"])
def test_a_name_with_a_control_character_is_refused_with_it(text: str) -> None:
    assert "control character" in (find_unstorable(text) or "")


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "two\nlines \udc80"])
def test_a_lone_surrogate_is_refused_everywhere(text: str) -> None:
    assert "half a character" in (find_unstorable(text) or "")
    assert "half a character" in (find_unstorable(text, lines=True) or "")


def test_a_note_may_have_lines_and_tabs_but_no_nul() -> None:
    assert find_unstorable("one\r\n\ttwo", lines=True) is None
    assert find_unstorable("one\n\x00", lines=True) == "the control character '\\x00'"


@pytest.mark.parametrize(
    ("name", "spoken"),
    [
        ("int", "an int"),
        ("uint", "a uint"),
        ("str", "a str"),
        ("OSError", "an OSError"),
        ("HTTPError", "an HTTPError"),
        ("Holder", "a Holder"),
        ("URLError", "a URLError"),
    ],
)
def test_the_name_of_a_type_has_the_article_that_is_spoken(name: str, spoken: str) -> None:
    assert with_article(name) == spoken


def test_a_word_that_is_no_choice_is_told_which_there_are(tmp_path: Path) -> None:
    app = aft.Aft(database=f"sqlite:///{tmp_path / 'aft.db'}", broker="embedded")
    with app, pytest.raises(aft.DefinitionError, match="status='done' is none of 'running', 'waiting'"):
        app.runs(status="done")
    with app, pytest.raises(aft.DefinitionError, match="state='stuck' is none of 'open', 'waiting'"):
        app.faults(state="stuck")
    with app, pytest.raises(aft.DefinitionError, match="only='worker' is none of"):
        app.dispatcher(only=["worker"])
