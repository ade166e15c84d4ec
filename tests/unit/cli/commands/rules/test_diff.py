"""Claims about how changed rules are shown."""

from __future__ import annotations

from aft.cli.commands.rules.diff import _lines


def test_a_line_that_looks_like_a_header_of_the_diff_is_shown() -> None:
    assert list(_lines("-- before\nsame", "++ after\nsame")) == ["- -- before", "+ ++ after", "  same"]
