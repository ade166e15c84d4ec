"""docs/walk.md tells the way of two runs through the code as it is."""

from __future__ import annotations

import re

import pytest

from tests import walk

_ROW = re.compile(r"^\| `(aft/[\w/]+\.py)` \| `([\w.<>]+)` \|", re.MULTILINE)


@pytest.mark.parametrize("title", walk.WALKS)
def test_the_document_names_the_files_that_a_run_goes_through(title: str) -> None:
    told = walk.DOCUMENT.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    trace = walk.trace_run(walk.WALKS[title])
    for thread, what in walk.THREADS.items():
        section = told.partition(f"**{what}**")[2].partition("\n**")[0]
        found = walk.files_of(trace, thread)
        assert {name for name, _ in _ROW.findall(section)} == set(found), thread
