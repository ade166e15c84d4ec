"""Claims about texts that users give: what can be stored, and what is refused where it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aft
from aft.texts import find_unstorable, format_value, with_article


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


class _Broken:
    def __repr__(self) -> str:
        raise RuntimeError("it has no words")


class _Misprinted:
    def __repr__(self) -> str:
        return "a\nb\x1b\ud800"


def _nest(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("publishing", "'publishing'"),
        ("a\nb", "'a\\nb'"),
        (7, "7"),
        (None, "None"),
        ({"a": [1, "b"]}, "{'a': [1, 'b']}"),
        (_nest(10_000), "[[[...]]]"),
        pytest.param(10**5000, "<int that cannot be shown>", id="long"),
        (_Misprinted(), "a\\nb\\x1b\\ud800"),
        ("x" * 1000, "'" + 58 * "x" + "…"),
        (b"x" * 1000, "b'" + 57 * "x" + "…"),
    ],
)
def test_any_value_can_be_shown(value: Any, shown: str) -> None:
    assert format_value(value) == shown


def test_what_cannot_be_shown_is_named_by_its_type() -> None:
    assert format_value(_Broken()).startswith("<_Broken instance at ")
    assert format_value([_Broken()]).startswith("[<_Broken instance at ")


@pytest.mark.parametrize(
    "value",
    [
        aft.Secret("hush-hush"),
        [aft.Secret("hush-hush")],
        {"password": "hush-hush"},
        {"settings": {"api_key": "hush-hush"}},
        "postgresql://aft:hush-hush@db/aft",
        "password=hush-hush",
    ],
)
def test_a_secret_is_not_shown(value: Any) -> None:
    assert "hush" not in format_value(value)
    assert "*" in format_value(value)


def test_a_card_number_is_hidden_also_where_a_text_is_cut() -> None:
    assert "4111" not in format_value("x" * 40 + " 4111 1111 1111 1111")
