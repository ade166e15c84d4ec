"""docs/walk.md tells the way of two runs through the code as it is."""

from __future__ import annotations

import pytest

from tests import walk

#: Frames between an activity's call and its function, after which nobody follows a stack trace any more.
MOST_FRAMES = 9


@pytest.fixture
def document() -> str:
    return walk.DOCUMENT.read_text(encoding="utf-8")


def parts(text: str) -> list[list[str]]:
    """The paragraphs and tables of a text. The lines of a table are sorted: where threads race, no order is the one."""
    found = [part.splitlines() for part in text.strip().split("\n\n")]
    return [sorted(part) if part[0].startswith("|") else part for part in found]


@pytest.mark.parametrize("title", walk.WALKS)
def test_the_document_tells_which_files_a_run_goes_through_how_and_what_they_are(document: str, title: str) -> None:
    told = document[document.index(f"## {title}\n") :]
    ends = told.find("\n## ") if "\n## " in told else told.rindex("\nBetween")
    assert parts(told[:ends]) == parts(walk.write_walk(title))


def test_it_tells_nothing_else(document: str) -> None:
    titles = [line.removeprefix("## ") for line in document.splitlines() if line.startswith("## ")]
    assert titles == list(walk.WALKS)
    assert document.startswith(walk.HEAD)
    assert document[len(walk.HEAD) :].startswith(f"\n## {titles[0]}\n")


def test_few_frames_lie_between_an_activity_s_call_and_its_function_and_it_tells_how_many(document: str) -> None:
    walk.trace_run(walk.retried)
    assert document.endswith(f"\n\n{walk.write_frames()}")
    assert max(walk.depths.values()) <= MOST_FRAMES
